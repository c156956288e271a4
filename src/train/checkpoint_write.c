/* Writing one checkpoint so that it is either there completely or not at all:
 *   1. a temporary directory, one file per state in it, each fsync'ed: the kernel is told to begin with
 *      each piece as soon as it is there, and the last OPEN_MAX files are waited for together, so that
 *      the disk works while the next bytes are summed
 *   2. the manifest, which vouches for all of them, fsync'ed, and the temporary directory fsync'ed
 *   3. one rename to the final name: the instant at which the checkpoint exists
 *   4. fsync of the parent: from here on it survives a power failure
 *   5. only now older checkpoints are removed: renamed, which is quick, and then taken apart, which the caller may put off
 * A crash before 3 leaves a temporary directory that the next writer removes. */
#include "train/checkpoint_write.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

enum { CHUNK_BYTES = 1 << 20, BEGIN_BYTES = 4 << 20, OPEN_MAX = 32 };

/* What writing the files of one checkpoint needs, allocated once for all of them. */
typedef struct writer {
    const adli_ckpt_plan *plan;
    int dir; /* the temporary directory */
    XXH3_state_t *raw_sum, *stored_sum;
    ZSTD_CCtx *compressor; /* NULL without compression */
    unsigned char *packed; /* [CHUNK_BYTES], likewise */
    int fd;                /* the file being written */
    uint64_t stored;       /* its payload so far */
    uint64_t streamed;     /* what came from plan->save, of all files */
    adl_status failed;     /* of a write, while plan->save was called */
    char failed_text[512];
    adli_ckpt_outcome *out;
    int unsynced[OPEN_MAX]; /* files that are written and not safe yet, oldest first */
    char unsynced_names[OPEN_MAX][ADLI_CKPT_FILE_NAME_MAX];
    int unsynced_count;
} writer;

static adl_status write_all(const adli_ckpt_io *io, int fd, const unsigned char *data,
                            size_t length)
{
    while (length) {
        ssize_t wrote = io->write(fd, data, length);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return adli_fail(ADL_EIO, "write: %s", wrote ? strerror(errno) : "nothing written");
        data += wrote;
        length -= (size_t)wrote;
    }
    return ADL_OK;
}

/* The header is short and written over bytes that are there already, but NFS and friends may still
 * refuse it. */
static adl_status write_at_start(const adli_ckpt_io *io, int fd, const unsigned char *data,
                                 size_t length)
{
    off_t offset = 0;
    while ((size_t)offset < length) {
        ssize_t wrote = io->pwrite(fd, data + offset, length - (size_t)offset, offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return adli_fail(ADL_EIO, "write: %s", wrote ? strerror(errno) : "nothing written");
        offset += wrote;
    }
    return ADL_OK;
}

static adl_status sync_and_close(const adli_ckpt_io *io, int fd)
{
    adl_status status = ADL_OK;
    if (io->fsync(fd) != 0)
        status = adli_fail(ADL_EIO, "fsync: %s", strerror(errno));
    if (io->close(fd) != 0 && status == ADL_OK)
        status = adli_fail(ADL_EIO, "close: %s", strerror(errno));
    return status;
}

static adl_status put_stored(writer *w, const unsigned char *data, size_t length)
{
    XXH3_128bits_update(w->stored_sum, data, length);
    w->stored += length;
    adl_status status = write_all(w->plan->io, w->fd, data, length);
    bool enough = w->stored / BEGIN_BYTES != (w->stored - length) / BEGIN_BYTES;
    if (status == ADL_OK && enough && w->plan->io->begin)
        w->plan->io->begin(w->fd);
    return status;
}

static adl_status put_raw(writer *w, const adli_ckpt_item *item)
{
    for (size_t at = 0; at < item->length; at += CHUNK_BYTES) {
        size_t length = item->length - at < CHUNK_BYTES ? item->length - at : CHUNK_BYTES;
        adl_status status = put_stored(w, item->data + at, length);
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

static adl_status put_compressed(writer *w, const adli_ckpt_item *item)
{
    ZSTD_CCtx_reset(w->compressor, ZSTD_reset_session_only);
    ZSTD_CCtx_setPledgedSrcSize(w->compressor, item->length);
    size_t at = 0;
    bool last;
    do {
        size_t length = item->length - at < CHUNK_BYTES ? item->length - at : CHUNK_BYTES;
        ZSTD_inBuffer in = {item->data + at, length, 0};
        XXH3_128bits_update(w->raw_sum, item->data + at, length);
        at += length;
        last = at == item->length;
        bool done;
        do {
            ZSTD_outBuffer packed = {w->packed, CHUNK_BYTES, 0};
            size_t left = ZSTD_compressStream2(w->compressor, &packed, &in,
                                               last ? ZSTD_e_end : ZSTD_e_continue);
            if (ZSTD_isError(left))
                return adli_fail(ADL_ENOMEM, "compression: %s", ZSTD_getErrorName(left));
            adl_status status = put_stored(w, w->packed, packed.pos);
            if (status != ADL_OK)
                return status;
            done = last ? left == 0 : in.pos == in.size;
        } while (!done);
    } while (!last);
    return ADL_OK;
}

static adl_status put_piece(void *user, const void *data, size_t length)
{
    writer *w = user;
    if (w->failed != ADL_OK)
        return w->failed;
    const adli_ckpt_limits *limits = &w->plan->limits;
    if (length > limits->max_state_bytes - w->stored)
        return adli_fail(ADL_ENOMEM, "larger than the limit of %llu bytes",
                         (unsigned long long)limits->max_state_bytes);
    if (length > limits->max_total_bytes - w->plan->data_bytes - w->streamed)
        return adli_fail(ADL_ENOMEM, "all states have at least %llu bytes: the limit is %llu",
                         (unsigned long long)(w->plan->data_bytes + w->streamed + length),
                         (unsigned long long)limits->max_total_bytes);
    w->streamed += length;
    w->failed = put_stored(w, data, length);
    if (w->failed != ADL_OK)
        snprintf(w->failed_text, sizeof w->failed_text, "%s", adl_error());
    return w->failed;
}

/* From the program's memory into the file: what is large is not copied on the way. */
static adl_status put_streamed(writer *w, const adli_ckpt_item *item)
{
    adl_status status = w->plan->save(w->plan->user, item, put_piece, w);
    if (w->failed != ADL_OK)
        return adli_fail(w->failed, "%s", w->failed_text);
    if (status != ADL_OK)
        snprintf(w->out->refusal, sizeof w->out->refusal, "%.500s", adl_error());
    return status;
}

static adl_status put_payload(writer *w, const adli_ckpt_item *item)
{
    if (!item->data)
        return put_streamed(w, item);
    return w->compressor ? put_compressed(w, item) : put_raw(w, item);
}

static adli_ckpt_sum digest(const XXH3_state_t *state)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    adli_ckpt_sum sum;
    memcpy(sum.bytes, canonical.digest, sizeof sum.bytes);
    return sum;
}

/* The payload goes out in one pass, through checksum and compressor; so the header, which has the
 * sums, is written over its place at the end. */
static adl_status write_payload_and_header(writer *w, const adli_ckpt_item *item,
                                           adli_ckpt_header *header)
{
    unsigned char bytes[ADLI_CKPT_HEADER_MAX] = {0};
    size_t header_bytes = adli_ckpt_header_bytes(item->name);
    XXH3_128bits_reset(w->raw_sum);
    XXH3_128bits_reset(w->stored_sum);
    w->stored = 0;
    adl_status status = write_all(w->plan->io, w->fd, bytes, header_bytes);
    if (status == ADL_OK)
        status = put_payload(w, item);
    if (status != ADL_OK)
        return status;
    *header = (adli_ckpt_header){
        .codec = w->compressor ? ADLI_CKPT_ZSTD : ADLI_CKPT_RAW,
        .raw_length = w->compressor ? item->length : w->stored,
        .stored_length = w->stored,
        .raw_sum = digest(w->compressor ? w->raw_sum : w->stored_sum),
        .stored_sum = digest(w->stored_sum),
    };
    memcpy(header->name, item->name, sizeof header->name);
    adli_ckpt_header_encode(header, bytes);
    return write_at_start(w->plan->io, w->fd, bytes, header_bytes);
}

/* Makes the file that was written first safe. */
static adl_status sync_oldest(writer *w)
{
    adl_status status = sync_and_close(w->plan->io, w->unsynced[0]);
    if (status != ADL_OK)
        adli_wrap(status, "%s", w->unsynced_names[0]);
    w->unsynced_count--;
    memmove(w->unsynced, w->unsynced + 1, (size_t)w->unsynced_count * sizeof w->unsynced[0]);
    memmove(w->unsynced_names, w->unsynced_names + 1,
            (size_t)w->unsynced_count * sizeof w->unsynced_names[0]);
    return status;
}

/* All of them; when something has failed they are only closed. */
static adl_status sync_rest(writer *w, adl_status status)
{
    while (w->unsynced_count > 0) {
        if (status == ADL_OK)
            status = sync_oldest(w);
        else
            w->plan->io->close(w->unsynced[--w->unsynced_count]);
    }
    return status;
}

static adl_status write_state(writer *w, const adli_ckpt_item *item, adli_ckpt_entry *entry)
{
    char file[ADLI_CKPT_FILE_NAME_MAX];
    adli_ckpt_header header;
    adli_ckpt_file_name(item->name, file);
    w->fd = w->plan->io->open(w->dir, file, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (w->fd < 0)
        return adli_fail(ADL_EIO, "%s: %s", file, strerror(errno));
    adl_status status = write_payload_and_header(w, item, &header);
    if (status != ADL_OK) {
        w->plan->io->close(w->fd);
        return adli_wrap(status, "%s", file);
    }
    if (w->unsynced_count == OPEN_MAX)
        status = sync_oldest(w);
    w->unsynced[w->unsynced_count] = w->fd;
    memcpy(w->unsynced_names[w->unsynced_count++], file, sizeof file);
    if (status != ADL_OK)
        return status;
    memcpy(entry->name, header.name, sizeof entry->name);
    entry->file_bytes = adli_ckpt_header_bytes(header.name) + header.stored_length;
    entry->header_sum = header.header_sum;
    w->out->raw_bytes += header.raw_length;
    return ADL_OK;
}

static adl_status write_manifest(writer *w, const adli_ckpt_manifest *manifest,
                                 uint64_t *written_bytes)
{
    const adli_ckpt_io *io = w->plan->io;
    adl_sink sink;
    adli_sink_init(&sink, ADLI_CKPT_MANIFEST_MAX);
    adl_status status = adli_ckpt_manifest_encode(manifest, &sink);
    if (status != ADL_OK)
        goto out;
    int fd = io->open(w->dir, ADLI_CKPT_MANIFEST_NAME, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0) {
        status = adli_fail(ADL_EIO, ADLI_CKPT_MANIFEST_NAME ": %s", strerror(errno));
        goto out;
    }
    status = write_all(io, fd, sink.data, sink.length);
    if (status != ADL_OK)
        io->close(fd);
    else
        status = sync_and_close(io, fd);
    if (status != ADL_OK)
        status = adli_wrap(status, ADLI_CKPT_MANIFEST_NAME);
    *written_bytes = sink.length;
out:
    adli_sink_fini(&sink);
    return status;
}

/* Every file of the checkpoint, into the temporary directory w->dir. */
static adl_status write_files(writer *w, adli_ckpt_outcome *out)
{
    const adli_ckpt_plan *plan = w->plan;
    uint64_t manifest_bytes = 0;
    adli_ckpt_manifest manifest = {.id = out->id};
    snprintf(manifest.program, sizeof manifest.program, "%s", plan->program);
    manifest.entries = adli_calloc(plan->count, sizeof *manifest.entries);
    if (!manifest.entries)
        return adli_fail_memory("the manifest");
    adl_status status = ADL_OK;
    for (; status == ADL_OK && manifest.count < plan->count; manifest.count++) {
        adli_ckpt_entry *entry = &manifest.entries[manifest.count];
        status = write_state(w, &plan->items[manifest.count], entry);
        out->stored_bytes += entry->file_bytes;
    }
    status = sync_rest(w, status);
    if (status == ADL_OK)
        status = write_manifest(w, &manifest, &manifest_bytes);
    out->stored_bytes += manifest_bytes;
    adli_ckpt_manifest_fini(&manifest);
    if (status == ADL_OK && adli_ckpt_sync_directory(plan->io, w->dir) != 0)
        status = adli_fail(ADL_EIO, "fsync: %s", strerror(errno));
    return status;
}

static adl_status writer_init(writer *w, const adli_ckpt_plan *plan, adli_ckpt_outcome *out)
{
    *w = (writer){.plan = plan, .out = out, .dir = -1, .fd = -1};
    w->raw_sum = XXH3_createState();
    w->stored_sum = XXH3_createState();
    if (!w->raw_sum || !w->stored_sum)
        return adli_fail_memory("a checksum");
    if (plan->compress_level == 0)
        return ADL_OK;
    w->compressor = ZSTD_createCCtx();
    w->packed = adli_calloc(CHUNK_BYTES, 1);
    if (!w->compressor || !w->packed)
        return adli_fail_memory("the compressor");
    ZSTD_CCtx_setParameter(w->compressor, ZSTD_c_compressionLevel, plan->compress_level);
    return ADL_OK;
}

static void writer_fini(writer *w)
{
    free(w->packed);
    ZSTD_freeCCtx(w->compressor);
    XXH3_freeState(w->stored_sum);
    XXH3_freeState(w->raw_sum);
}

/* The id after every one of this generation that is in the directory or was used before. */
static adl_status next_id(const adli_ckpt_plan *plan, int dir, adli_ckpt_id *out)
{
    adli_ckpt_list list;
    *out = (adli_ckpt_id){plan->generation, plan->after_sequence};
    adl_status status = adli_ckpt_list_read(dir, &list);
    if (status != ADL_OK)
        return status;
    for (size_t i = 0; i < list.count; i++)
        if (list.ids[i].generation == out->generation && list.ids[i].sequence > out->sequence)
            out->sequence = list.ids[i].sequence;
    out->sequence++;
    adli_ckpt_list_fini(&list);
    return ADL_OK;
}

static adl_status fill_temporary(writer *w, int dir, const char *temporary, adli_ckpt_outcome *out)
{
    const adli_ckpt_io *io = w->plan->io;
    if (io->mkdir(dir, temporary, 0777) != 0)
        return adli_fail(ADL_EIO, "%s: %s", temporary, strerror(errno));
    w->dir = io->open(dir, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (w->dir < 0)
        return adli_fail(ADL_EIO, "%s: %s", temporary, strerror(errno));
    adl_status status = write_files(w, out);
    io->close(w->dir);
    return status;
}

static adl_status write_into(const adli_ckpt_plan *plan, int dir, adli_ckpt_outcome *out)
{
    char name[ADLI_CKPT_DIR_NAME_MAX], temporary[ADLI_CKPT_DIR_NAME_MAX + 64];
    writer w;
    adl_status status = writer_init(&w, plan, out);
    if (status == ADL_OK)
        status = next_id(plan, dir, &out->id);
    if (status != ADL_OK)
        goto out;
    adli_ckpt_id_name(out->id, name);
    /* Processes of several pods have the same numbers, and one that leaves may still be writing. */
    uint32_t mark = 0;
    if (getrandom(&mark, sizeof mark, 0) != sizeof mark)
        mark = 0;
    snprintf(temporary, sizeof temporary, ADLI_CKPT_TEMPORARY_FORMAT "-new-%ld-%08" PRIx32, name,
             (long)getpid(), mark);
    status = fill_temporary(&w, dir, temporary, out);
    if (status == ADL_OK && plan->io->rename(dir, temporary, name) != 0)
        status = adli_fail(ADL_EIO, "rename to %s: %s", name, strerror(errno));
    if (status != ADL_OK) {
        /* frees the space when the disk is full; what cannot be removed goes at the next open */
        int ignored = adli_ckpt_remove_tree(plan->io, dir, temporary);
        (void)ignored;
        goto out;
    }
    if (adli_ckpt_sync_directory(plan->io, dir) != 0) {
        status = adli_fail(ADL_EIO, "fsync: %s", strerror(errno));
        goto out;
    }
    adli_ckpt_prune(plan, dir, out);
out:
    writer_fini(&w);
    return status;
}

adl_status adli_ckpt_write(const adli_ckpt_plan *plan, adli_ckpt_outcome *out)
{
    *out = (adli_ckpt_outcome){0};
    int dir = plan->io->open(AT_FDCWD, plan->directory, O_RDONLY | O_DIRECTORY, 0);
    if (dir < 0)
        return adli_fail(ADL_EIO, "%s: %s", plan->directory, strerror(errno));
    adl_status status = write_into(plan, dir, out);
    plan->io->close(dir);
    return status == ADL_OK ? status : adli_wrap(status, "%s", plan->directory);
}
