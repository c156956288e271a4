/* A power failure is worse than a kill: what was written but not fsync'ed may be on the disk, or not,
 * or in part. This records every file operation of a save and then builds, for every instant of it,
 * the directories that a disk could be left with:
 *   - the bytes written to a file since its last fsync are there, absent, zero, or cut anywhere;
 *   - of the entries that were made, renamed or removed in a directory since that directory's last
 *     fsync, any subset has happened (real file systems promise more; nothing here relies on it).
 * Each such directory must load the old or the new checkpoint, and only the new one after save
 * returned. With keep_last = 1, so that a lost checkpoint cannot hide behind an older one.
 *
 * The model can fail: with any one fsync of the save taken away, it finds a state of the disk in which
 * both checkpoints are lost. So each of them is needed, too. */
#include "harness.h"

#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint_fixture.h"
#include "train/checkpoint_store.h"

#include <errno.h>

enum { NODES_MAX = 128, OPS_MAX = 512, ENTRIES_MAX = 32 };

/* ---- recording -------------------------------------------------------------------------------- */

typedef enum op_kind { OP_MAKE, OP_WRITE, OP_FSYNC, OP_RENAME, OP_UNLINK } op_kind;

typedef struct op {
    op_kind kind;
    int node;              /* the file written, or the directory whose entries change */
    int child;             /* OP_MAKE */
    char from[64], to[64]; /* entry names */
    unsigned char *data;   /* OP_WRITE */
    size_t length, offset;
} op;

/* What the recorder knows of the real directory: nodes by inode. Node 0 is the directory. */
static struct {
    bool on;
    int node_count, op_count;
    ino_t inodes[NODES_MAX];
    off_t positions[NODES_MAX];
    bool is_directory[NODES_MAX];
    op ops[OPS_MAX];
} tape;

static int node_of(int fd)
{
    struct stat info;
    if (fstat(fd, &info) == 0)
        for (int i = tape.node_count - 1; i >= 0; i--) /* the latest: inodes are used again */
            if (tape.inodes[i] == info.st_ino)
                return i;
    return -1;
}

static op *record(op_kind kind, int node)
{
    if (tape.op_count == OPS_MAX || node < 0) {
        printf("# operation on an unknown file\n");
        abort();
    }
    op *o = &tape.ops[tape.op_count++];
    *o = (op){.kind = kind, .node = node};
    return o;
}

static int add_node(int dir, const char *name, bool is_directory)
{
    struct stat info;
    if (tape.node_count == NODES_MAX || fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        abort();
    tape.inodes[tape.node_count] = info.st_ino;
    tape.positions[tape.node_count] = 0;
    tape.is_directory[tape.node_count] = is_directory;
    return tape.node_count++;
}

static int tape_open(int dir, const char *name, int flags, unsigned mode)
{
    int fd = adli_ckpt_system_io.open(dir, name, flags, mode);
    if (fd >= 0 && (flags & O_CREAT)) {
        op *o = record(OP_MAKE, node_of(dir));
        o->child = add_node(dir, name, false);
        snprintf(o->to, sizeof o->to, "%s", name);
    }
    return fd;
}

static int tape_mkdir(int dir, const char *name, unsigned mode)
{
    int result = adli_ckpt_system_io.mkdir(dir, name, mode);
    if (result == 0) {
        op *o = record(OP_MAKE, node_of(dir));
        o->child = add_node(dir, name, true);
        snprintf(o->to, sizeof o->to, "%s", name);
    }
    return result;
}

static ssize_t tape_pwrite(int fd, const void *data, size_t length, off_t offset)
{
    op *o = record(OP_WRITE, node_of(fd));
    o->data = malloc(length + 1);
    memcpy(o->data, data, length);
    o->length = length;
    o->offset = (size_t)offset;
    return pwrite(fd, data, length, offset);
}

static ssize_t tape_write(int fd, const void *data, size_t length)
{
    int node = node_of(fd);
    ssize_t wrote = tape_pwrite(fd, data, length, tape.positions[node]);
    tape.positions[node] += wrote;
    return wrote;
}

static int tape_fsync(int fd)
{
    record(OP_FSYNC, node_of(fd));
    return fsync(fd);
}

static int tape_rename(int dir, const char *from, const char *to)
{
    int result = adli_ckpt_system_io.rename(dir, from, to);
    if (result == 0) {
        op *o = record(OP_RENAME, node_of(dir));
        snprintf(o->from, sizeof o->from, "%s", from);
        snprintf(o->to, sizeof o->to, "%s", to);
    }
    return result;
}

static int tape_unlink(int dir, const char *name, int flags)
{
    int node = node_of(dir), result = unlinkat(dir, name, flags);
    if (result == 0)
        snprintf(record(OP_UNLINK, node)->from, sizeof tape.ops[0].from, "%s", name);
    return result;
}

static const adli_ckpt_io tape_io = {tape_open, tape_mkdir,  tape_write,  tape_pwrite, tape_fsync,
                                     close,     tape_rename, tape_unlink, NULL};

/* ---- the disk after a crash ------------------------------------------------------------------- */

typedef struct model_node {
    bool is_directory;
    unsigned char *data;
    size_t length;
    int count; /* entries of a directory */
    struct {
        char name[64];
        int node;
    } entries[ENTRIES_MAX];
} model_node;

typedef struct model {
    model_node nodes[NODES_MAX];
} model;

static void link_entry(model_node *dir, const char *name, int node)
{
    int i = 0;
    while (i < dir->count && strcmp(dir->entries[i].name, name) != 0)
        i++;
    if (i == dir->count && dir->count++ == ENTRIES_MAX)
        abort();
    snprintf(dir->entries[i].name, sizeof dir->entries[i].name, "%s", name);
    dir->entries[i].node = node;
}

/* The node that the name had, -1 when it had none. */
static int unlink_entry(model_node *dir, const char *name)
{
    for (int i = 0; i < dir->count; i++)
        if (strcmp(dir->entries[i].name, name) == 0) {
            int node = dir->entries[i].node;
            dir->entries[i] = dir->entries[--dir->count];
            return node;
        }
    return -1;
}

static void write_bytes(model_node *file, const op *o, size_t length)
{
    if (length == 0)
        return;
    if (o->offset + length > file->length) {
        file->data = realloc(file->data, o->offset + length + 1);
        memset(file->data + file->length, 0, o->offset + length - file->length);
        file->length = o->offset + length;
    }
    memcpy(file->data + o->offset, o->data, length);
}

/* An entry operation that was not preceded by those it builds on (they are not on the disk) finds
 * nothing under its name. The node of a rename is then looked up in what really happened. */
static void apply_entry(model *m, const op *o, int renamed)
{
    model_node *dir = &m->nodes[o->node];
    if (o->kind == OP_MAKE) {
        link_entry(dir, o->to, o->child);
    } else if (o->kind == OP_UNLINK) {
        unlink_entry(dir, o->from);
    } else {
        unlink_entry(dir, o->from);
        link_entry(dir, o->to, renamed);
    }
}

/* Reads the real directory as it was before the save: all of that is on the disk. */
static void base_model(model *m, int fd, int node)
{
    DIR *entries = fdopendir(dup(fd));
    struct dirent *entry;
    m->nodes[node].is_directory = true;
    while ((entry = readdir(entries))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int child_fd = openat(fd, entry->d_name, O_RDONLY);
        struct stat info;
        fstat(child_fd, &info);
        int child = add_node(fd, entry->d_name, S_ISDIR(info.st_mode));
        link_entry(&m->nodes[node], entry->d_name, child);
        if (S_ISDIR(info.st_mode)) {
            base_model(m, child_fd, child);
        } else {
            model_node *file = &m->nodes[child];
            file->data = malloc((size_t)info.st_size + 1);
            file->length = (size_t)read(child_fd, file->data, (size_t)info.st_size);
        }
        close(child_fd);
    }
    closedir(entries);
}

static void copy_model(model *to, const model *from)
{
    *to = *from;
    for (int i = 0; i < NODES_MAX; i++)
        if (from->nodes[i].data) {
            to->nodes[i].data = malloc(from->nodes[i].length + 1);
            memcpy(to->nodes[i].data, from->nodes[i].data, from->nodes[i].length);
        }
}

static void free_model(model *m)
{
    for (int i = 0; i < NODES_MAX; i++)
        free(m->nodes[i].data);
}

static void materialize(const model *m, int node, const char *path)
{
    const model_node *n = &m->nodes[node];
    if (!n->is_directory) {
        spill(path, n->data, n->length);
        return;
    }
    mkdir(path, 0777);
    for (int i = 0; i < n->count; i++) {
        char below[512];
        snprintf(below, sizeof below, "%s/%s", path, n->entries[i].name);
        materialize(m, n->entries[i].node, below);
    }
}

/* ---- all the states of the disk --------------------------------------------------------------- */

/* How the part that is not on the disk for certain is chosen. */
typedef enum choice {
    CHOOSE_NOTHING,
    CHOOSE_EVERYTHING,
    CHOOSE_BUT,
    CHOOSE_ONLY,
    CHOOSE_RANDOM
} choice;

typedef struct chooser {
    choice entries, data;
    int which; /* CHOOSE_BUT and CHOOSE_ONLY: this one of the uncertain entry operations */
    adli_rng *rng;
} chooser;

static bool entry_happens(const chooser *c, int index)
{
    switch (c->entries) {
    case CHOOSE_NOTHING:
        return false;
    case CHOOSE_EVERYTHING:
        return true;
    case CHOOSE_BUT:
        return index != c->which;
    case CHOOSE_ONLY:
        return index == c->which;
    default:
        return adli_rng_u64(c->rng) & 1;
    }
}

static void apply_uncertain_write(model *m, const op *o, const chooser *c)
{
    model_node *file = &m->nodes[o->node];
    if (c->data == CHOOSE_EVERYTHING) {
        write_bytes(file, o, o->length);
        return;
    }
    if (c->data == CHOOSE_NOTHING)
        return;
    uint32_t dice = adli_rng_below(c->rng, 4);
    if (dice == 0)
        write_bytes(file, o, o->length);
    else if (dice == 1)
        write_bytes(file, o, adli_rng_below(c->rng, (uint32_t)o->length + 1));
    else if (dice == 2 && o->length) { /* the length is there, the bytes are not */
        op zeros = *o;
        zeros.data = calloc(o->length, 1);
        write_bytes(file, &zeros, o->length);
        free(zeros.data);
    }
}

/* The disk after the first `done` operations and a power failure; the fsync number `dropped` (an index
 * into the operations, or -1) never happened. Returns how many entry operations were uncertain. */
static int crash(model *m, const model *base, int done, int dropped, const chooser *c)
{
    int fsynced[NODES_MAX], uncertain = 0;
    model real; /* without a failure: what a rename renames */
    for (int i = 0; i < NODES_MAX; i++)
        fsynced[i] = -1;
    for (int i = 0; i < done; i++)
        if (tape.ops[i].kind == OP_FSYNC && i != dropped)
            fsynced[tape.ops[i].node] = i;
    copy_model(m, base);
    copy_model(&real, base);
    for (int i = 0; i < done; i++) {
        const op *o = &tape.ops[i];
        bool certain = i < fsynced[o->node];
        if (o->kind == OP_FSYNC)
            continue;
        if (o->kind == OP_WRITE) {
            if (certain)
                write_bytes(&m->nodes[o->node], o, o->length);
            else
                apply_uncertain_write(m, o, c);
            continue;
        }
        int renamed = o->kind == OP_RENAME ? unlink_entry(&real.nodes[o->node], o->from) : -1;
        apply_entry(&real, o, renamed);
        if (certain || entry_happens(c, uncertain))
            apply_entry(m, o, renamed);
        uncertain += !certain;
    }
    free_model(&real);
    return uncertain;
}

typedef struct counts {
    long disks, old, new, lost;
} counts;

static unsigned load_seed(const char *directory)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    adl_checkpoint *store;
    blob a = {0}, b = {0};
    int loaded = 0;
    unsigned seed = 0;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        return 0;
    if (adl_checkpoint_register(store, "a", &blob_functions, &a, NULL) == ADL_OK &&
        adl_checkpoint_register(store, "b", &blob_functions, &b, NULL) == ADL_OK &&
        adl_checkpoint_load_all(store, &loaded, NULL) == ADL_OK && loaded == 2)
        seed = (unsigned)(a.length - 100);
    if (seed && (!blob_is(&a, 100 + seed, seed) || !blob_is(&b, 700, seed)))
        seed = 0;
    adl_checkpoint_close(store);
    free(a.data), free(b.data);
    return seed;
}

static int examine(const model *base, const char *scratch, int done, int dropped, const chooser *c,
                   counts *n)
{
    static model m;
    int uncertain = crash(&m, base, done, dropped, c);
    m.nodes[0].is_directory = true;
    materialize(&m, 0, scratch);
    free_model(&m);
    unsigned seed = load_seed(scratch);
    remove_tree(scratch);
    n->disks++;
    n->old += seed == 1;
    n->new += seed == 2;
    n->lost += seed != 1 && seed != 2;
    return uncertain;
}

/* Every way to choose that is looked at for one instant. */
static void examine_instant(const model *base, const char *scratch, int done, int dropped,
                            int randoms, adli_rng *rng, counts *n)
{
    static const choice whole[] = {CHOOSE_NOTHING, CHOOSE_EVERYTHING};
    int uncertain = 0;
    for (int e = 0; e < 2; e++)
        for (int d = 0; d < 2; d++) {
            chooser c = {whole[e], whole[d], 0, rng};
            uncertain = examine(base, scratch, done, dropped, &c, n);
        }
    for (int which = 0; which < uncertain; which++)
        for (int d = 0; d < 2; d++) {
            chooser but = {CHOOSE_BUT, whole[d], which, rng};
            chooser only = {CHOOSE_ONLY, whole[d], which, rng};
            examine(base, scratch, done, dropped, &but, n);
            examine(base, scratch, done, dropped, &only, n);
        }
    for (int i = 0; i < randoms; i++) {
        chooser c = {CHOOSE_RANDOM, CHOOSE_RANDOM, 0, rng};
        examine(base, scratch, done, dropped, &c, n);
    }
}

/* Records one save over an existing checkpoint. Returns the operation that made it durable: the fsync
 * of the directory after the rename. */
static int record_save(const char *directory, model *base)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.keep_last = 1;
    adl_checkpoint *store;
    blob a = blob_of(101, 1), b = blob_of(700, 1);
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK ||
        adl_checkpoint_register(store, "a", &blob_functions, &a, NULL) != ADL_OK ||
        adl_checkpoint_register(store, "b", &blob_functions, &b, NULL) != ADL_OK ||
        adl_checkpoint_save_all(store) != ADL_OK)
        return -1;
    memset(&tape, 0, sizeof tape);
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    add_node(fd, ".", true);
    base_model(base, fd, 0);
    close(fd);
    adli_checkpoint_set_io(store, &tape_io);
    blob_set(&a, 102, 2);
    blob_set(&b, 700, 2);
    adl_status status = adl_checkpoint_save_all(store);
    adl_checkpoint_close(store);
    free(a.data), free(b.data);
    for (int i = 0; i < tape.node_count; i++)
        base->nodes[i].is_directory = tape.is_directory[i];
    int durable = -1;
    for (int i = 0; i < tape.op_count; i++)
        if (tape.ops[i].kind == OP_FSYNC && tape.ops[i].node == 0)
            durable = i;
    return status == ADL_OK ? durable : -1;
}

static void free_tape(void)
{
    for (int i = 0; i < tape.op_count; i++)
        free(tape.ops[i].data);
}

TEST(power_fails_at_every_instant)
{
    static model base;
    memset(&base, 0, sizeof base);
    char directory[256], scratch[300];
    snprintf(directory, sizeof directory, "%s", fresh_directory());
    snprintf(scratch, sizeof scratch, "%s-disk", directory);
    int durable = record_save(directory, &base);
    REQUIRE(durable > 0);
    adli_rng rng;
    adli_rng_init(&rng, 11);
    counts n = {0}, after = {0};
    for (int done = 0; done <= tape.op_count; done++)
        examine_instant(&base, scratch, done, -1, 100, &rng, done > durable ? &after : &n);
    CHECK_INT(n.lost + after.lost, 0);
    CHECK_INT(after.old, 0); /* save may return from here on: the new one it is */
    CHECK(n.old > 0 && n.new > 0 && after.new > 0);
    printf("info - %d operations, %ld states of the disk: %ld old, %ld new, %ld lost\n",
           tape.op_count, n.disks + after.disks, n.old, n.new + after.new, n.lost + after.lost);
    free_model(&base);
    free_tape();
    remove_tree(directory);
}

TEST(every_fsync_is_needed)
{
    static model base;
    memset(&base, 0, sizeof base);
    char directory[256], scratch[300];
    snprintf(directory, sizeof directory, "%s", fresh_directory());
    snprintf(scratch, sizeof scratch, "%s-disk", directory);
    REQUIRE(record_save(directory, &base) > 0);
    adli_rng rng;
    adli_rng_init(&rng, 12);
    int fsyncs = 0, needed = 0;
    for (int i = 0; i < tape.op_count; i++) {
        if (tape.ops[i].kind != OP_FSYNC)
            continue;
        counts n = {0};
        for (int done = tape.op_count; done > i && n.lost == 0; done--)
            examine_instant(&base, scratch, done, i, 0, &rng, &n);
        fsyncs++;
        needed += n.lost > 0;
    }
    CHECK(fsyncs >= 5); /* two states, the manifest, and two directories */
    CHECK_INT(needed, fsyncs);
    printf("info - without any one of the %d fsyncs a checkpoint can be lost\n", fsyncs);
    free_model(&base);
    free_tape();
    remove_tree(directory);
}
