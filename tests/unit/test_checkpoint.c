/* What the checkpoint store promises when nothing goes wrong, and how it says no: values come back,
 * names are checked, late states find their values, old checkpoints go, the background writer keeps
 * its hands off what the caller changes. Crashes, faults and damage have their own files. */
#include "harness.h"

#include "base/mem.h"
#include "checkpoint_fixture.h"
#include "train/checkpoint_store.h"

#include <pthread.h>
#include <sys/wait.h>

static adl_checkpoint *open_store(const char *directory, int restarts, log_lines *lines)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.restarts = restarts;
    options.program = "test";
    options.log = lines ? log_line : NULL;
    options.log_user = lines;
    adl_checkpoint *store = NULL;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        printf("# open: %s\n", adl_error());
    return store;
}

/* Registers b and loads it; is the result what `found` says? */
static bool add(adl_checkpoint *store, const char *name, blob *b, bool found)
{
    adl_checkpoint_state *state;
    bool got = !found;
    return adl_checkpoint_register(store, name, &blob_functions, b, &state) == ADL_OK &&
           adl_checkpoint_load_state(store, state, &got) == ADL_OK && got == found;
}

static const char *saved_name(adl_checkpoint *store)
{
    static adl_checkpoint_info info;
    info = (adl_checkpoint_info)ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    return info.saved;
}

static const char *loaded_name(adl_checkpoint *store)
{
    static adl_checkpoint_info info;
    info = (adl_checkpoint_info)ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    return info.loaded;
}

/* ---- values come back ------------------------------------------------------------------------- */

static void round_trip(int level, size_t length)
{
    const char *directory = fresh_directory();
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.compress_level = level;
    adl_checkpoint *store;
    blob model = blob_of(length, 1), empty = blob_of(0, 0);
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(add(store, "model", &model, false));
    CHECK(add(store, "empty", &empty, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    CHECK_STR(info.saved, "checkpoint-0.1");
    CHECK_INT(info.saves_ok, 1);
    CHECK_INT(info.raw_bytes, length);
    CHECK(level == 0 || length < 4096 || info.stored_bytes < length);
    adl_checkpoint_close(store);

    blob again = {0}, nothing = blob_of(3, 3);
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK_STR(loaded_name(store), "checkpoint-0.1");
    CHECK(add(store, "model", &again, true));
    CHECK(add(store, "empty", &nothing, true));
    CHECK(blob_is(&again, length, 1));
    CHECK_INT(nothing.length, 0);
    adl_checkpoint_close(store);
    free(model.data), free(empty.data), free(again.data), free(nothing.data);
    remove_tree(directory);
}

TEST(values_come_back)
{
    static const size_t lengths[] = {0, 1, 4095, 1 << 20, (1 << 20) + 1, (3 << 20) + 12345};
    for (size_t i = 0; i < ADLI_COUNT(lengths); i++)
        round_trip(0, lengths[i]);
}

TEST(values_come_back_compressed)
{
    static const size_t lengths[] = {0, 1, 4095, 1 << 20, (1 << 20) + 1, (3 << 20) + 12345};
    for (size_t i = 0; i < ADLI_COUNT(lengths); i++)
        round_trip(1, lengths[i]);
    round_trip(19, 200000);
}

static adl_status fields_save(void *user, adl_sink *sink)
{
    (void)user;
    adl_sink_u32(sink, 0xfedcba98u);
    adl_sink_u64(sink, 0x0123456789abcdefu);
    adl_sink_f64(sink, -0.1);
    void *space;
    if (adl_sink_reserve(sink, 3, &space) != ADL_OK)
        return ADL_ENOMEM;
    memcpy(space, "xyz", 3);
    adl_sink_text(sink, "");
    return adl_sink_text(sink, "hello");
}

static adl_status fields_load(void *user, adl_source *source)
{
    uint32_t a = 0;
    uint64_t b = 0;
    double c = 0;
    const void *view;
    char text[6], small[5];
    CHECK_INT(adl_source_remaining(source), 4 + 8 + 8 + 3 + 4 + 9);
    CHECK_OK(adl_source_u32(source, &a));
    CHECK_OK(adl_source_u64(source, &b));
    CHECK_OK(adl_source_f64(source, &c));
    CHECK(a == 0xfedcba98u && b == 0x0123456789abcdefu && c == -0.1);
    CHECK_FAILS(adl_source_view(source, 17, &view), ADL_ECORRUPT, "17 bytes wanted where 16");
    CHECK_OK(adl_source_view(source, 3, &view));
    CHECK(memcmp(view, "xyz", 3) == 0);
    CHECK_OK(adl_source_text(source, text, sizeof text));
    CHECK_STR(text, "");
    CHECK_FAILS(adl_source_text(source, small, sizeof small), ADL_ECORRUPT, "text of 5 bytes");
    CHECK_INT(adl_source_remaining(source), 9);
    CHECK_OK(adl_source_text(source, text, sizeof text));
    CHECK_STR(text, "hello");
    CHECK_FAILS(adl_source_u32(source, &a), ADL_ECORRUPT, "4 bytes wanted where 0");
    *(bool *)user = true;
    return ADL_OK;
}

TEST(fields_are_little_endian_and_bounded)
{
    const char *directory = fresh_directory();
    adl_checkpoint_functions functions = {sizeof functions, fields_save, fields_load, NULL};
    adl_checkpoint *store = open_store(directory, 0, NULL);
    REQUIRE_OK(adl_checkpoint_register(store, "fields", &functions, NULL, NULL));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    bool seen = false;
    store = open_store(directory, 1, NULL);
    REQUIRE_OK(adl_checkpoint_register(store, "fields", &functions, &seen, NULL));
    int loaded, absent;
    CHECK_OK(adl_checkpoint_load_all(store, &loaded, &absent));
    CHECK(seen && loaded == 1 && absent == 0);
    adl_checkpoint_close(store);
    remove_tree(directory);
}

/* ---- names ------------------------------------------------------------------------------------ */

TEST(names_are_checked)
{
    adl_checkpoint *store = open_store(NULL, 0, NULL);
    blob b = {0};
    adl_checkpoint_state *state;
    char longest[ADL_CHECKPOINT_NAME_MAX + 2];
    memset(longest, 'n', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    CHECK_FAILS(adl_checkpoint_register(store, longest, &blob_functions, &b, &state), ADL_EINVAL,
                "longer than 80");
    longest[ADL_CHECKPOINT_NAME_MAX] = '\0';
    CHECK_OK(adl_checkpoint_register(store, longest, &blob_functions, &b, &state));
    static const char *const bad[] = {"", "a/b", "/", "..", "a..b", "a\nb", "\x7f", "tab\t"};
    for (size_t i = 0; i < ADLI_COUNT(bad); i++) {
        CHECK_FAILS(adl_checkpoint_register(store, bad[i], &blob_functions, &b, &state), ADL_EINVAL,
                    "state name");
        CHECK(state == NULL);
    }
    CHECK_OK(adl_checkpoint_register(store, "twice", &blob_functions, &b, &state));
    CHECK_FAILS(adl_checkpoint_register(store, "twice", &blob_functions, &b, NULL), ADL_ESTATE,
                "\"twice\": the name is taken");
    adl_checkpoint_unregister(store, state);
    CHECK_OK(adl_checkpoint_register(store, "twice", &blob_functions, &b, NULL));
    adl_checkpoint_functions none = {.size = sizeof none};
    CHECK_FAILS(adl_checkpoint_register(store, "x", &none, &b, NULL), ADL_EINVAL, "no save");
    none.size = 1000;
    CHECK_FAILS(adl_checkpoint_register(store, "x", &none, &b, NULL), ADL_EINVAL, "size is 1000");
    adl_checkpoint_unregister(store, NULL);
    adl_checkpoint_close(store);
    adl_checkpoint_close(NULL);
}

TEST(names_become_file_names)
{
    static const char *const pairs[][2] = {
        {"model", "model.state"},
        {"a b", "a%20b.state"},
        {".hidden", "%2Ehidden.state"},
        {"v1.2", "v1.2.state"},
        {"100%", "100%25.state"},
        {"\xc3\xa9t\xc3\xa9", "%C3%A9t%C3%A9.state"},
        {"MANIFEST", "MANIFEST.state"},
        {"a\\b:c*", "a%5Cb%3Ac%2A.state"},
        {".", "%2E.state"},
    };
    const char *directory = fresh_directory();
    adl_checkpoint *store = open_store(directory, 0, NULL);
    blob blobs[ADLI_COUNT(pairs)], again = {0};
    for (size_t i = 0; i < ADLI_COUNT(pairs); i++) {
        blobs[i] = blob_of(10 + i, (unsigned)i);
        CHECK(add(store, pairs[i][0], &blobs[i], false));
    }
    char longest[ADL_CHECKPOINT_NAME_MAX + 1]; /* every byte escaped: 246 in the file's name */
    memset(longest, 0xff, sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CHECK(add(store, longest, &blobs[0], false));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    char path[512];
    for (size_t i = 0; i < ADLI_COUNT(pairs); i++) {
        snprintf(path, sizeof path, "checkpoint-0.1/%s", pairs[i][1]);
        CHECK(exists(directory, path));
    }
    store = open_store(directory, 0, NULL);
    for (size_t i = 0; i < ADLI_COUNT(pairs); i++) {
        CHECK(add(store, pairs[i][0], &again, true));
        CHECK(blob_is(&again, 10 + i, (unsigned)i));
        free(blobs[i].data);
    }
    CHECK(add(store, longest, &again, true));
    adl_checkpoint_close(store);
    free(again.data);
    remove_tree(directory);
}

TEST(checkpoint_names_parse_one_way)
{
    adli_ckpt_id id;
    CHECK(adli_ckpt_id_parse("checkpoint-12.345", &id) && id.generation == 12 &&
          id.sequence == 345);
    static const char *const bad[] = {"checkpoint-",         "checkpoint-1",
                                      "checkpoint-1.",       "checkpoint-.1",
                                      "checkpoint-01.1",     "checkpoint-1.1 ",
                                      "checkpoint--1.1",     "checkpoint-1.+1",
                                      "Checkpoint-1.1",      "checkpoint-1.1234567890123456789",
                                      ".tmp-checkpoint-1.1", "",
                                      "checkpoint-1.1.1"};
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK(!adli_ckpt_id_parse(bad[i], &id));
}

TEST(options_are_checked)
{
    const char *directory = fresh_directory();
    adl_checkpoint_options good = ADL_CHECKPOINT_OPTIONS_INIT, options = good;
    adl_checkpoint *store;
    char identity[300];
    memset(identity, 'p', sizeof identity);
    identity[299] = '\0';
#define CHECK_OPTION(field, value, text)                                                           \
    do {                                                                                           \
        options = good;                                                                            \
        options.field = value;                                                                     \
        CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL, text);           \
        CHECK(store == NULL);                                                                      \
    } while (0)
    CHECK_OPTION(size, 0, "size is 0");
    CHECK_OPTION(size, sizeof good + 8, "size");
    CHECK_OPTION(keep_last, 0, "keep_last: 0");
    CHECK_OPTION(compress_level, 20, "compress_level: 20");
    CHECK_OPTION(compress_level, -1, "compress_level: -1");
    CHECK_OPTION(restarts, -1, "restarts: -1");
    CHECK_OPTION(interval_s, -1, "interval_s: -1");
    CHECK_OPTION(interval_s, NAN, "interval_s");
    CHECK_OPTION(program, identity, "program");
    CHECK_OPTION(only, "latest", "only: \"latest\"");
    options = good;
    options.size = offsetof(adl_checkpoint_options, compress_level); /* an older library's struct */
    options.compress_level = 99;
    CHECK_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK_INT(store->options.compress_level, 0);
    adl_checkpoint_close(store);
    CHECK_OK(adl_checkpoint_open(directory, NULL, &store));
    CHECK_INT(store->options.keep_last, 2);
    adl_checkpoint_close(store);
    CHECK_FAILS(adl_checkpoint_open("/proc/none/such", NULL, &store), ADL_EIO, "/proc/none/such");
    remove_tree(directory);
}

TEST(no_directory_means_no_checkpoints)
{
    adl_checkpoint *store = open_store(NULL, 0, NULL);
    REQUIRE(store != NULL);
    blob b = blob_of(10, 1);
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_OK(adl_checkpoint_save_async(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(!adl_checkpoint_due(store, 0) && !adl_checkpoint_due(store, 1e9));
    CHECK(b.syncs == 2 && b.saves == 0);
    adl_checkpoint_close(store);
    free(b.data);
}

/* ---- which checkpoint ------------------------------------------------------------------------- */

TEST(old_ones_go_and_the_newest_wins)
{
    const char *directory = fresh_directory();
    blob b = blob_of(100, 0);
    adl_checkpoint *store = open_store(directory, 3, NULL);
    CHECK(add(store, "b", &b, false));
    for (unsigned i = 1; i <= 12; i++) {
        blob_set(&b, 100, i);
        CHECK_OK(adl_checkpoint_save_all(store));
    }
    CHECK_STR(saved_name(store), "checkpoint-3.12");
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK_INT(count_entries(directory, ""), 2);
    CHECK(exists(directory, "checkpoint-3.11") && exists(directory, "checkpoint-3.12"));
    adl_checkpoint_close(store);

    store = open_store(directory, 4, NULL);
    CHECK(add(store, "b", &b, true));
    CHECK(blob_is(&b, 100, 12));
    CHECK_STR(loaded_name(store), "checkpoint-3.12");
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_STR(saved_name(store), "checkpoint-4.1");
    CHECK(!exists(directory, "checkpoint-3.11") && exists(directory, "checkpoint-3.12"));
    adl_checkpoint_close(store);

    /* Somebody runs the program by hand: what it saves must still be the newest. */
    store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, true));
    blob_set(&b, 100, 77);
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_STR(saved_name(store), "checkpoint-4.2");
    adl_checkpoint_close(store);
    store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, true));
    CHECK(blob_is(&b, 100, 77));
    adl_checkpoint_close(store);
    free(b.data);
    remove_tree(directory);
}

TEST(a_late_process_of_an_earlier_generation_cannot_overtake)
{
    const char *directory = fresh_directory();
    blob old = blob_of(10, 1), new = blob_of(10, 2), got = {0};
    adl_checkpoint *stale = open_store(directory, 1, NULL);
    CHECK(add(stale, "b", &old, false));
    CHECK_OK(adl_checkpoint_save_all(stale));
    adl_checkpoint *store = open_store(directory, 2, NULL);
    CHECK(add(store, "b", &new, true));
    blob_set(&new, 10, 2);
    CHECK_OK(adl_checkpoint_save_all(store));
    for (int i = 0; i < 5; i++)
        CHECK_OK(adl_checkpoint_save_all(stale));
    CHECK(exists(directory, "checkpoint-2.1"));
    adl_checkpoint_close(store);
    adl_checkpoint_close(stale);
    store = open_store(directory, 3, NULL);
    CHECK(add(store, "b", &got, true));
    CHECK(blob_is(&got, 10, 2));
    adl_checkpoint_close(store);
    free(old.data), free(new.data), free(got.data);
    remove_tree(directory);
}

TEST(one_checkpoint_can_be_asked_for)
{
    const char *directory = fresh_directory();
    blob b = blob_of(10, 1);
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    blob_set(&b, 10, 2);
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.only = "checkpoint-0.1";
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(add(store, "b", &b, true));
    CHECK(blob_is(&b, 10, 1));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_STR(saved_name(store), "checkpoint-0.3"); /* newer than the one that was not asked for */
    adl_checkpoint_close(store);
    options.only = "checkpoint-7.7";
    CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_ENOENT, "checkpoint-7.7");
    options.only = "none";
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(add(store, "b", &b, false));
    adl_checkpoint_close(store);
    remove_tree(directory);
    options.is_writer = false;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store)); /* not there: fine for a reader */
    adl_checkpoint_close(store);
    free(b.data);
}

/* ---- late and missing states ------------------------------------------------------------------ */

TEST(late_states_find_their_values)
{
    const char *directory = fresh_directory();
    blob early = blob_of(50, 1), late = blob_of(60, 2), new = blob_of(5, 5);
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "early", &early, false));
    CHECK(add(store, "late", &late, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);

    log_lines lines = {0};
    blob_set(&late, 1, 9);
    store = open_store(directory, 1, &lines);
    CHECK(add(store, "early", &early, true));
    CHECK(add(store, "new", &new, false));
    int loaded, absent;
    CHECK_OK(adl_checkpoint_load_all(store, &loaded, &absent));
    CHECK(loaded == 0 && absent == 2); /* "early" was loaded before: not twice */
    CHECK(strstr(lines.text, "checkpoint-0.1 has no state \"new\""));
    CHECK(blob_is(&new, 5, 5));
    /* saves before "late" is registered carry its value along ... */
    for (int i = 0; i < 3; i++)
        CHECK_OK(adl_checkpoint_save_all(store));
    CHECK(!exists(directory, "checkpoint-0.1"));
    adl_checkpoint_close(store); /* ... also over a crash */
    store = open_store(directory, 2, NULL);
    CHECK(add(store, "early", &early, true));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK(add(store, "late", &late, true));
    CHECK(blob_is(&late, 60, 2));
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    CHECK_INT(info.pending, 1); /* "new" */
    CHECK_OK(adl_checkpoint_forget(store, "new"));
    CHECK_FAILS(adl_checkpoint_forget(store, "new"), ADL_ENOENT, "\"new\"");
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    store = open_store(directory, 3, NULL);
    CHECK(add(store, "new", &new, false));
    CHECK(add(store, "late", &late, true));
    adl_checkpoint_close(store);
    free(early.data), free(late.data), free(new.data);
    remove_tree(directory);
}

TEST(values_can_be_handed_to_another_replica)
{
    const char *directory = fresh_directory();
    blob a = blob_of(50, 1), b = blob_of(0, 2), got = {0};
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "a", &a, false));
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    store = open_store(directory, 1, NULL);
    adl_checkpoint *other = open_store(NULL, 1, NULL);
    const char *name;
    const void *data;
    size_t length;
    int count = 0;
    while (adl_checkpoint_pending(store, count, &name, &data, &length) == ADL_OK) {
        CHECK_OK(adl_checkpoint_offer(other, name, data, length));
        CHECK_OK(adl_checkpoint_offer(other, name, data, length)); /* replaces */
        count++;
    }
    CHECK_INT(count, 2);
    CHECK_FAILS(adl_checkpoint_offer(other, "a/b", "", 0), ADL_EINVAL, "slash");
    CHECK(add(other, "b", &got, true) && got.length == 0);
    CHECK(add(other, "a", &got, true) && blob_is(&got, 50, 1));
    adl_checkpoint_close(other);
    adl_checkpoint_close(store);
    free(a.data), free(b.data), free(got.data);
    remove_tree(directory);
}

/* ---- refusals --------------------------------------------------------------------------------- */

TEST(another_program_is_refused)
{
    const char *directory = fresh_directory();
    blob b = blob_of(10, 1);
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.program = "other";
    CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL,
                "checkpoint-0.1: saved by program \"test\", this is \"other\"");
    options.program = NULL; /* not checked */
    CHECK_OK(adl_checkpoint_open(directory, &options, &store));
    adl_checkpoint_close(store);
    CHECK(exists(directory, "checkpoint-0.1"));
    free(b.data);
    remove_tree(directory);
}

TEST(another_format_version_is_refused)
{
    const char *directory = fresh_directory();
    blob b = blob_of(10, 1);
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    char path[512];
    size_t length;
    snprintf(path, sizeof path, "%s/checkpoint-0.2/MANIFEST", directory);
    unsigned char *manifest = slurp(path, &length);
    REQUIRE(manifest && length > ADLI_CKPT_MANIFEST_PREFIX);
    manifest[8] = 2;
    /* A manifest of version 2, intact: its sum is over everything but itself. */
    unsigned char *whole = malloc(length);
    memcpy(whole, manifest, 24);
    memcpy(whole + 24, manifest + 40, length - 40);
    adli_ckpt_sum sum = adli_ckpt_sum_of(whole, length - 16);
    memcpy(manifest + 24, sum.bytes, 16);
    spill(path, manifest, length);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL,
                "checkpoint-0.2: MANIFEST: format version 2, this library reads version 1");
    free(whole), free(manifest), free(b.data);
    remove_tree(directory);
}

TEST(sizes_are_limited)
{
    const char *directory = fresh_directory();
    blob b = blob_of(100000, 1), c = blob_of(100000, 2);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint *store;
    options.max_state_bytes = 99999;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(add(store, "b", &b, false));
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_ENOMEM,
                "state \"b\": save: larger than the limit of 99999 bytes");
    adl_checkpoint_close(store);
    options.max_state_bytes = 100000, options.max_total_bytes = 199999;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK(add(store, "c", &c, false));
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_ENOMEM, "200000 bytes: the limit is 199999");
    adl_checkpoint_close(store);
    for (int level = 0; level <= 1; level++) {
        options.max_total_bytes = 1 << 20, options.compress_level = level;
        options.max_state_bytes = 1 << 20;
        REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
        CHECK(add(store, "b", &b, true) && add(store, "c", &c, level == 1));
        CHECK_OK(adl_checkpoint_save_all(store));
        adl_checkpoint_close(store);
        /* intact but too large: refused, not passed over for an older one */
        options.max_state_bytes = 99999;
        CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL, "limit of 99999");
        options.max_state_bytes = 50000;
        CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL, "limit of 50000");
        options.max_state_bytes = 1 << 20, options.max_total_bytes = 199999;
        CHECK_FAILS(adl_checkpoint_open(directory, &options, &store), ADL_EINVAL,
                    "with all states limited to 199999 bytes: c.state");
    }
    free(b.data), free(c.data);
    remove_tree(directory);
}

static adl_status calls_back_save(void *user, adl_sink *sink)
{
    (void)sink;
    return adl_checkpoint_save_all(user);
}

static adl_status ignores_save(void *user, adl_sink *sink)
{
    (void)user;
    void *space;
    adl_status status = adl_sink_reserve(sink, SIZE_MAX, &space);
    CHECK(status == ADL_ENOMEM && space == NULL);
    return ADL_OK;
}

static adl_status lazy_load(void *user, adl_source *source)
{
    (void)user;
    uint32_t value;
    return adl_source_u32(source, &value);
}

typedef struct large {
    blob all;  /* in three parts: small, large, small */
    bool fail; /* after the large one */
} large;

static adl_status large_save(void *user, adl_sink *sink)
{
    const large *l = user;
    size_t tail = l->all.length - 100;
    adl_status status = adl_sink_write(sink, l->all.data, 100);
    if (status == ADL_OK)
        status = adl_sink_write(sink, l->all.data + 100, tail - 100);
    if (status == ADL_OK && l->fail)
        return ADL_EINVAL;
    return status == ADL_OK ? adl_sink_write(sink, l->all.data + tail, 100) : status;
}

static adl_status large_load(void *user, adl_source *source)
{
    large *l = user;
    return adl_source_read(source, l->all.data, l->all.length);
}

TEST(what_is_large_goes_to_the_file_without_a_copy)
{
    const char *directory = fresh_directory();
    enum { LENGTH = 5 << 20 };
    adl_checkpoint_functions functions = {sizeof functions, large_save, large_load, NULL};
    large l = {.all = blob_of(LENGTH, 3)};
    blob b = blob_of(10, 1);
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_register(store, "large", &functions, &l, NULL));
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK(store->save.copies[1].capacity < 2 << 20);
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    CHECK_INT((long long)info.raw_bytes, LENGTH + 10);
    blob_set(&l.all, LENGTH, 4);
    l.fail = true; /* when most of it is in the file */
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_EINVAL, "state \"large\": save");
    CHECK_INT(count_entries(directory, ""), 1);
    adl_checkpoint_close(store);
    store = open_store(directory, 1, NULL);
    CHECK_OK(adl_checkpoint_register(store, "large", &functions, &l, NULL));
    CHECK_OK(adl_checkpoint_load_all(store, NULL, NULL));
    CHECK(blob_is(&l.all, LENGTH, 3));
    adl_checkpoint_close(store);
    free(l.all.data), free(b.data);
}

TEST(failing_callbacks_are_named)
{
    const char *directory = fresh_directory();
    blob a = blob_of(10, 1), b = blob_of(10, 2);
    log_lines lines = {0};
    adl_checkpoint *store = open_store(directory, 0, &lines);
    CHECK(add(store, "zz", &a, false) && add(store, "b", &b, false));
    CHECK_OK(adl_checkpoint_save_all(store));
    b.fail_sync = ADL_EPEER;
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_EPEER, "state \"b\": sync: told to fail");
    CHECK(a.syncs == 2 && b.syncs == 2 && a.saves == 1); /* all synced, nothing saved */
    b.fail_sync = ADL_OK, b.fail_save = ADL_EIO;
    CHECK_FAILS(adl_checkpoint_save_async(store), ADL_EIO, "state \"b\": save: told to fail");
    b.fail_save = ADL_OK;
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    CHECK(info.saves_failed == 2 && info.saves_ok == 1 && info.last_status == ADL_EIO);
    CHECK_STR(info.last_error, "state \"b\": save: told to fail");
    adl_checkpoint_functions calls = {sizeof calls, calls_back_save, NULL, NULL};
    adl_checkpoint_state *state;
    CHECK_OK(adl_checkpoint_register(store, "calls", &calls, store, &state));
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_ESTATE, "called from a state's callback");
    adl_checkpoint_unregister(store, state);
    calls.save = ignores_save;
    CHECK_OK(adl_checkpoint_register(store, "ignores", &calls, store, &state));
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_ENOMEM, "state \"ignores\"");
    adl_checkpoint_unregister(store, state);
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK_INT(count_entries(directory, ""), 2);
    adl_checkpoint_close(store);

    store = open_store(directory, 1, NULL);
    bool found;
    calls.load = lazy_load;
    CHECK_OK(adl_checkpoint_register(store, "zz", &calls, store, &state));
    CHECK_FAILS(adl_checkpoint_load_state(store, state, &found), ADL_ECORRUPT,
                "state \"zz\": load: 6 of 10 bytes were not read");
    CHECK(!found);
    b.fail_load = ADL_EINVAL;
    CHECK_OK(adl_checkpoint_register(store, "b", &blob_functions, &b, &state));
    CHECK_FAILS(adl_checkpoint_load_all(store, NULL, NULL), ADL_EINVAL, "state \"b\": load: told");
    b.fail_load = ADL_OK; /* the value is still there */
    CHECK_OK(adl_checkpoint_load_state(store, state, &found));
    CHECK(found && blob_is(&b, 10, 2));
    adl_checkpoint_close(store);
    free(a.data), free(b.data);
    remove_tree(directory);
}

/* ---- replicas --------------------------------------------------------------------------------- */

static char sync_order[64];

static adl_status order_sync(void *user)
{
    size_t used = strlen(sync_order);
    snprintf(sync_order + used, sizeof sync_order - used, "%s ", (const char *)user);
    return ADL_OK;
}

static adl_status order_save(void *user, adl_sink *sink)
{
    return adl_sink_text(sink, user);
}

TEST(sync_runs_everywhere_in_order_of_name)
{
    const char *directory = fresh_directory();
    static char names[3][2] = {"b", "c", "a"};
    adl_checkpoint_functions functions = {sizeof functions, order_save, NULL, order_sync};
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    adl_checkpoint *reader;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &reader));
    for (int i = 0; i < 3; i++)
        CHECK_OK(adl_checkpoint_register(reader, names[i], &functions, names[i], NULL));
    CHECK_OK(adl_checkpoint_save_all(reader));
    CHECK_OK(adl_checkpoint_save_async(reader));
    CHECK_OK(adl_checkpoint_flush(reader));
    CHECK_STR(sync_order, "a b c a b c ");
    CHECK_INT(count_entries(directory, ""), 0); /* a reader writes nothing */
    CHECK(!adl_checkpoint_due(reader, 0) && !adl_checkpoint_due(reader, 1000));
    adl_checkpoint_close(reader);
    remove_tree(directory);
}

TEST(leftovers_of_crashed_writers_are_removed)
{
    const char *directory = fresh_directory();
    char path[512];
    static const char *const left[] = {".tmp-checkpoint-3.1-new-77", ".tmp-checkpoint-2.9-old",
                                       "somebody's"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, left[i]);
        mkdir(path, 0777);
        strcat(path, "/b.state");
        spill(path, "junk", 4);
    }
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    adl_checkpoint *store;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    adl_checkpoint_close(store);
    CHECK_INT(count_entries(directory, ".tmp"), 2);
    store = open_store(directory, 0, NULL);
    adl_checkpoint_close(store);
    CHECK_INT(count_entries(directory, ".tmp"), 0);
    CHECK_INT(count_entries(directory, ""), 1);
    remove_tree(directory);
}

TEST(periodic_saves_fall_due)
{
    const char *directory = fresh_directory();
    adl_checkpoint *store = open_store(directory, 0, NULL);
    CHECK(!adl_checkpoint_due(store, 1000.0)); /* starts the interval */
    CHECK(!adl_checkpoint_due(store, 1059.9));
    CHECK(adl_checkpoint_due(store, 1060.0));
    CHECK(!adl_checkpoint_due(store, 1060.1));
    CHECK(!adl_checkpoint_due(store, NAN));
    CHECK(adl_checkpoint_due(store, 1500.0));
    CHECK(!adl_checkpoint_due(store, 1559.0));
    adl_checkpoint_close(store);
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.interval_s = 0;
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    CHECK(!adl_checkpoint_due(store, 0) && !adl_checkpoint_due(store, 1e6));
    adl_checkpoint_close(store);
    remove_tree(directory);
}
