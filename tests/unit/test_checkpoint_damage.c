/* Damage to a checkpoint on disk: every bit of a small one flipped, every truncation, thousands of
 * random bytes of a larger one, torn sectors, files exchanged, missing or of the wrong kind. Each time
 * the damage must be noticed, named, and the previous checkpoint used. Also: running out of memory
 * while loading is not damage, and must not make anybody fall back to older states. */
#include "harness.h"

#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint_fixture.h"
#include "train/checkpoint_store.h"

#include <errno.h>

enum { STATES = 3 };
static const char *const state_names[STATES] = {"accumulator", "empty", "model"};
static const char *const file_names[STATES + 1] = {"accumulator.state", "empty.state",
                                                   "model.state", "MANIFEST"};

typedef struct fixture {
    char directory[256];
    size_t lengths[STATES];
} fixture;

/* checkpoint-0.1 with seed 1 and checkpoint-0.2 with seed 2. */
static void make(fixture *f, size_t model_length, int level)
{
    snprintf(f->directory, sizeof f->directory, "%s", fresh_directory());
    f->lengths[0] = 40, f->lengths[1] = 0, f->lengths[2] = model_length;
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.compress_level = level;
    options.program = "damage";
    adl_checkpoint *store;
    REQUIRE_OK(adl_checkpoint_open(f->directory, &options, &store));
    blob blobs[STATES] = {{0}};
    for (int i = 0; i < STATES; i++)
        CHECK_OK(adl_checkpoint_register(store, state_names[i], &blob_functions, &blobs[i], NULL));
    for (unsigned seed = 1; seed <= 2; seed++) {
        for (int i = 0; i < STATES; i++)
            blob_set(&blobs[i], f->lengths[i], seed);
        CHECK_OK(adl_checkpoint_save_all(store));
    }
    adl_checkpoint_close(store);
    for (int i = 0; i < STATES; i++)
        free(blobs[i].data);
}

/* Which checkpoint a fresh process loads: 1, or 2 for the second and its successors; 0 when none could
 * be, -1 when its values are not those that were saved. */
static int loads(const fixture *f, log_lines *lines)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    options.program = "damage";
    options.log = log_line;
    options.log_user = lines;
    memset(lines, 0, sizeof *lines);
    adl_checkpoint *store;
    if (adl_checkpoint_open(f->directory, &options, &store) != ADL_OK)
        return 0;
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    int which = strcmp(info.loaded, "checkpoint-0.1") == 0 ? 1 : 2;
    for (int i = 0; i < STATES; i++) {
        blob b = {0};
        adl_checkpoint_state *state;
        bool found = false;
        if (adl_checkpoint_register(store, state_names[i], &blob_functions, &b, &state) != ADL_OK ||
            adl_checkpoint_load_state(store, state, &found) != ADL_OK || !found ||
            !blob_is(&b, f->lengths[i], (unsigned)which))
            which = -1;
        free(b.data);
    }
    adl_checkpoint_close(store);
    return which;
}

/* The damage is in `file` of checkpoint-0.2. */
static bool noticed(const fixture *f, const char *file)
{
    log_lines lines;
    char where[300];
    snprintf(where, sizeof where, "checkpoint-0.2: %s", file);
    return loads(f, &lines) == 1 && lines.count == 1 && strstr(lines.text, where);
}

static void path_of(const fixture *f, int checkpoint, int file, char out[512])
{
    snprintf(out, 512, "%s/checkpoint-0.%d/%s", f->directory, checkpoint, file_names[file]);
}

static bool poke(const char *path, size_t at, const void *data, size_t length)
{
    int fd = open(path, O_WRONLY);
    bool good = fd >= 0 && pwrite(fd, data, length, (off_t)at) == (ssize_t)length;
    if (fd >= 0)
        close(fd);
    return good;
}

static void flip_every_bit(int level)
{
    fixture f;
    make(&f, 300, level);
    long flips = 0, cuts = 0;
    for (int file = 0; file <= STATES; file++) {
        char path[512];
        size_t length;
        path_of(&f, 2, file, path);
        unsigned char *data = slurp(path, &length);
        REQUIRE(data && length);
        for (size_t at = 0; at < length; at++) {
            for (int bit = 0; bit < 8; bit++, flips++) {
                unsigned char wrong = data[at] ^ (unsigned char)(1 << bit);
                CHECK(poke(path, at, &wrong, 1));
                CHECK(noticed(&f, file_names[file]));
            }
            CHECK(poke(path, at, &data[at], 1));
        }
        for (size_t keep = length; keep-- > 0; cuts++) {
            CHECK(truncate(path, (off_t)keep) == 0);
            CHECK(noticed(&f, file_names[file]));
        }
        spill(path, data, length);
        free(data);
    }
    log_lines lines;
    CHECK_INT(loads(&f, &lines), 2); /* all put back: nothing else was broken */
    printf("info - %s: %ld single-bit flips, %ld truncations, all noticed\n",
           level ? "zstd" : "raw", flips, cuts);
    remove_tree(f.directory);
}

TEST(every_bit_and_every_length)
{
    flip_every_bit(0);
}

TEST(every_bit_and_every_length_compressed)
{
    flip_every_bit(1);
}

/* Random bytes, and sectors that still have what was there before or only zeros. */
static void damage_a_large_one(int level)
{
    enum { BYTES = 3000, SECTORS = 600, SECTOR = 512 };
    fixture f;
    make(&f, 200000, level);
    char path[512];
    size_t length;
    path_of(&f, 2, 2, path);
    unsigned char *data = slurp(path, &length);
    REQUIRE(data && length > 2 * SECTOR);
    adli_rng rng;
    adli_rng_init(&rng, 7);
    for (int i = 0; i < BYTES; i++) {
        size_t at = adli_rng_below(&rng, (uint32_t)length);
        unsigned char wrong = data[at] ^ (unsigned char)(1 + adli_rng_below(&rng, 255));
        CHECK(poke(path, at, &wrong, 1));
        CHECK(noticed(&f, "model.state"));
        CHECK(poke(path, at, &data[at], 1));
    }
    int torn = 0;
    for (int i = 0; i < SECTORS; i++) {
        size_t at = adli_rng_below(&rng, (uint32_t)(length / SECTOR)) * SECTOR;
        unsigned char sector[SECTOR] = {0};
        if (i % 2)
            for (size_t j = 0; j < SECTOR; j++)
                sector[j] = (unsigned char)adli_rng_u64(&rng);
        if (memcmp(sector, data + at, SECTOR) == 0)
            continue;
        CHECK(poke(path, at, sector, SECTOR));
        CHECK(noticed(&f, "model.state"));
        CHECK(poke(path, at, data + at, SECTOR));
        torn++;
    }
    log_lines lines;
    CHECK_INT(loads(&f, &lines), 2);
    printf("info - %s: %d random bytes, %d torn sectors, all noticed\n", level ? "zstd" : "raw",
           BYTES, torn);
    free(data);
    remove_tree(f.directory);
}

TEST(random_damage_to_a_large_one)
{
    damage_a_large_one(0);
}

TEST(random_damage_to_a_large_one_compressed)
{
    damage_a_large_one(3);
}

/* Replaces file number `file` of checkpoint-0.2 by the bytes of `from`. */
static void exchange(const fixture *f, int file, const char *from)
{
    char path[512];
    size_t length, old_length;
    path_of(f, 2, file, path);
    unsigned char *data = slurp(from, &length), *old = slurp(path, &old_length);
    REQUIRE(data && old);
    spill(path, data, length);
    CHECK(noticed(f, file_names[file]));
    spill(path, old, old_length);
    free(data), free(old);
}

TEST(whole_files_of_other_places_are_noticed)
{
    fixture f;
    make(&f, 500, 0);
    char other[512];
    for (int file = 0; file <= STATES; file++) {
        path_of(&f, 1, file, other); /* intact, but of the previous checkpoint */
        size_t a, b;
        char mine[512];
        path_of(&f, 2, file, mine);
        unsigned char *x = slurp(other, &a), *y = slurp(mine, &b);
        bool same = a == b && memcmp(x, y, a) == 0; /* an empty state is the same in both */
        free(x), free(y);
        if (!same)
            exchange(&f, file, other);
    }
    path_of(&f, 2, 0, other); /* another state of the same checkpoint */
    exchange(&f, 2, other);
    char junk[512];
    snprintf(junk, sizeof junk, "%s/junk", f.directory);
    for (size_t length = 0; length < 300; length += 37) {
        char zeros[300] = {0};
        spill(junk, zeros, length);
        for (int file = 0; file <= STATES; file++)
            exchange(&f, file, junk);
    }
    log_lines lines;
    CHECK_INT(loads(&f, &lines), 2);
    remove_tree(f.directory);
}

TEST(things_that_are_no_files_are_noticed)
{
    fixture f;
    make(&f, 500, 0);
    char path[512], aside[512];
    snprintf(aside, sizeof aside, "%s/aside", f.directory);
    for (int file = 0; file <= STATES; file++) {
        path_of(&f, 2, file, path);
        CHECK(rename(path, aside) == 0);
        CHECK(noticed(&f, file_names[file])); /* missing */
        CHECK(mkdir(path, 0777) == 0);
        CHECK(noticed(&f, file_names[file]));
        CHECK(rmdir(path) == 0 && symlink(aside, path) == 0);
        CHECK(noticed(&f, file_names[file])); /* also to the very file: not ours to follow */
        CHECK(unlink(path) == 0 && symlink("/dev/zero", path) == 0);
        CHECK(noticed(&f, file_names[file]));
        CHECK(unlink(path) == 0 && mkfifo(path, 0666) == 0);
        CHECK(noticed(&f, file_names[file])); /* and nobody hangs on it */
        CHECK(unlink(path) == 0 && rename(aside, path) == 0);
        int fd = open(path, O_WRONLY | O_APPEND);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1);
        close(fd);
        CHECK(noticed(&f, file_names[file])); /* too long */
        struct stat info;
        CHECK(stat(path, &info) == 0 && truncate(path, info.st_size - 1) == 0);
    }
    log_lines lines;
    CHECK_INT(loads(&f, &lines), 2);
    /* the checkpoint itself is a file, or a link */
    snprintf(path, sizeof path, "%s/checkpoint-0.2", f.directory);
    CHECK(rename(path, aside) == 0 && symlink(aside, path) == 0);
    CHECK_INT(loads(&f, &lines), 1);
    CHECK(unlink(path) == 0);
    spill(path, "x", 1);
    CHECK_INT(loads(&f, &lines), 1);
    CHECK(strstr(lines.text, "checkpoint-0.2"));
    remove_tree(f.directory);
}

static void ruin(const fixture *f, int checkpoint)
{
    char path[512];
    path_of(f, checkpoint, 2, path);
    CHECK(truncate(path, 100) == 0);
}

TEST(when_all_are_damaged_the_user_decides)
{
    fixture f;
    make(&f, 500, 0);
    ruin(&f, 1);
    ruin(&f, 2);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint *store;
    CHECK_FAILS(adl_checkpoint_open(f.directory, &options, &store), ADL_ECORRUPT,
                "all 2 checkpoints are damaged");
    CHECK(strstr(adl_error(), "model.state: has 100 bytes") && strstr(adl_error(), f.directory));
    CHECK(exists(f.directory, "checkpoint-0.1") && exists(f.directory, "checkpoint-0.2"));
    options.only = "checkpoint-0.2";
    CHECK_FAILS(adl_checkpoint_open(f.directory, &options, &store), ADL_ECORRUPT, "model.state");
    options.only = NULL;
    options.ignore_damage = true;
    REQUIRE_OK(adl_checkpoint_open(f.directory, &options, &store));
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    CHECK(info.damaged == 2 && info.loaded[0] == '\0' && info.pending == 0);
    CHECK(exists(f.directory, "checkpoint-0.2"));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK_INT(count_entries(f.directory, ""), 1); /* the damaged ones go after a good save */
    CHECK(exists(f.directory, "checkpoint-0.3"));
    adl_checkpoint_close(store);
    remove_tree(f.directory);
}

/* keep_last counts good ones: a damaged one must not push the good one it stood before out. */
TEST(a_damaged_one_does_not_count_as_kept)
{
    fixture f;
    make(&f, 500, 0);
    ruin(&f, 2);
    adl_checkpoint *store;
    REQUIRE_OK(adl_checkpoint_open(f.directory, NULL, &store));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK(exists(f.directory, "checkpoint-0.1") && !exists(f.directory, "checkpoint-0.2") &&
          exists(f.directory, "checkpoint-0.3"));
    adl_checkpoint_close(store);
    remove_tree(f.directory);
}

/* ---- no memory -------------------------------------------------------------------------------- */

static adl_status load_everything(const fixture *f, int *which)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.program = "damage";
    adl_checkpoint *store;
    *which = 0;
    adl_status status = adl_checkpoint_open(f->directory, &options, &store);
    if (status != ADL_OK)
        return status;
    blob blobs[STATES] = {{0}};
    for (int i = 0; i < STATES && status == ADL_OK; i++)
        status = adl_checkpoint_register(store, state_names[i], &blob_functions, &blobs[i], NULL);
    if (status == ADL_OK)
        status = adl_checkpoint_load_all(store, NULL, NULL);
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    *which = strcmp(info.loaded, "checkpoint-0.2") == 0 ? 2 : 1;
    adl_checkpoint_close(store);
    for (int i = 0; i < STATES; i++)
        free(blobs[i].data);
    return status;
}

TEST(no_memory_while_loading)
{
    for (int level = 0; level <= 1; level++) {
        fixture f;
        make(&f, 5000, level);
        int failures = 0, which = 0;
        for (int64_t nth = 1;; nth++) {
            adli_mem_fail_at(nth);
            int64_t before = adli_mem_count();
            adl_status status = load_everything(&f, &which);
            bool hit = adli_mem_count() - before >= nth;
            adli_mem_fail_at(0);
            if (!hit) {
                CHECK(status == ADL_OK && which == 2);
                break;
            }
            CHECK(status == ADL_ENOMEM); /* never the older checkpoint in silence */
            failures++;
        }
        CHECK(failures > 10);
        printf("info - %s: %d allocations of a load failed in turn\n", level ? "zstd" : "raw",
               failures);
        remove_tree(f.directory);
    }
}

TEST(no_memory_while_saving)
{
    for (int mode = 0; mode < 4; mode++) {
        fixture f;
        make(&f, 5000, 0);
        adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
        options.compress_level = mode & 1;
        options.program = "damage";
        int failures = 0;
        for (int64_t nth = 1;; nth++) {
            adl_checkpoint *store; /* a new one each time: the copies are allocated anew */
            blob b = blob_of(5000, 9);
            REQUIRE_OK(adl_checkpoint_open(f.directory, &options, &store));
            CHECK_OK(adl_checkpoint_register(store, "other", &blob_functions, &b, NULL));
            adli_mem_fail_at(nth);
            int64_t before = adli_mem_count();
            adl_status status;
            if (mode & 2) {
                status = adl_checkpoint_save_async(store);
                adl_status flushed = adl_checkpoint_flush(store);
                status = status == ADL_OK ? flushed : status;
            } else {
                status = adl_checkpoint_save_all(store);
                CHECK_OK(adl_checkpoint_flush(store)); /* until what is old is removed */
            }
            bool hit = adli_mem_count() - before >= nth;
            adli_mem_fail_at(0);
            CHECK(hit ? status == ADL_ENOMEM || status == ADL_OK : status == ADL_OK);
            failures += status == ADL_ENOMEM;
            CHECK_INT(count_entries(f.directory, ".tmp"), 0);
            adl_checkpoint_close(store);
            free(b.data);
            log_lines lines;
            CHECK_INT(loads(&f, &lines), 2);
            if (!hit)
                break;
        }
        CHECK(failures >= 5);
        printf("info - %s, %s: %d allocations of a save failed in turn\n",
               mode & 1 ? "zstd" : "raw", mode & 2 ? "background" : "foreground", failures);
        remove_tree(f.directory);
    }
}
