/* Reading one checkpoint back, all of it, before anybody uses a byte of it. Nothing in the directory
 * is trusted: files may be of any kind, size and content. */
#include "train/checkpoint_dir.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Errors that mean "this checkpoint is bad", as opposed to "we are out of something": only the
 * former may make us fall back to older states. */
static adl_status classify(int error)
{
    bool damaged = error == ENOENT || error == EIO || error == ELOOP || error == ENOTDIR ||
                   error == ENXIO || error == EISDIR || error == EUCLEAN;
    return error == ENOMEM ? ADL_ENOMEM : damaged ? ADL_ECORRUPT : ADL_EIO;
}

static adl_status read_exactly(int fd, unsigned char *data, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t ask = length - at < (1u << 30) ? length - at : (1u << 30);
        ssize_t got = read(fd, data + at, ask);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return adli_fail(classify(errno), "read: %s", strerror(errno));
        if (got == 0)
            return adli_fail(ADL_ECORRUPT, "ended after %zu of %zu bytes", at, length);
        at += (size_t)got;
    }
    return ADL_OK;
}

/* The whole of a regular file whose size is within low .. high. *out is new, or NULL on failure. */
static adl_status read_file(int dir, const char *name, uint64_t low, uint64_t high,
                            unsigned char **out, size_t *length)
{
    *out = NULL;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return adli_fail(classify(errno), "%s: %s", name, strerror(errno));
    struct stat info;
    adl_status status = ADL_OK;
    if (fstat(fd, &info) != 0)
        status = adli_fail(classify(errno), "%s: %s", name, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = adli_fail(ADL_ECORRUPT, "%s: not a regular file", name);
    else if ((uint64_t)info.st_size < low || (uint64_t)info.st_size > high)
        status = adli_fail(ADL_ECORRUPT, "%s: has %lld bytes instead of %llu", name,
                           (long long)info.st_size,
                           (unsigned long long)((uint64_t)info.st_size < low ? low : high));
    if (status == ADL_OK) {
        *length = (size_t)info.st_size;
        if (!(*out = adli_calloc(*length, 1)))
            status = adli_fail_memory(name);
        else if ((status = read_exactly(fd, *out, *length)) != ADL_OK)
            status = adli_wrap(status, "%s", name);
    }
    close(fd);
    if (status != ADL_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

static adl_status read_manifest(int dir, adli_ckpt_id id, const char *program,
                                adli_ckpt_manifest *out)
{
    unsigned char *data;
    size_t length;
    adl_status status =
        read_file(dir, ADLI_CKPT_MANIFEST_NAME, 0, ADLI_CKPT_MANIFEST_MAX, &data, &length);
    if (status != ADL_OK)
        return status;
    status = adli_ckpt_manifest_parse(data, length, out);
    free(data);
    if (status != ADL_OK)
        return adli_wrap(status, ADLI_CKPT_MANIFEST_NAME);
    if (adli_ckpt_id_compare(out->id, id) != 0) {
        char name[ADLI_CKPT_DIR_NAME_MAX];
        adli_ckpt_id_name(out->id, name);
        return adli_fail(ADL_ECORRUPT, ADLI_CKPT_MANIFEST_NAME ": is that of %s", name);
    }
    if (program[0] && out->program[0] && strcmp(program, out->program) != 0)
        return adli_fail(ADL_EINVAL, "saved by program \"%s\", this is \"%s\"", out->program,
                         program);
    return ADL_OK;
}

/* The largest file of a state of max bytes: what does not compress grows by less than 1/128. */
static uint64_t file_limit(uint64_t max)
{
    uint64_t slack = max / 128 + ADLI_CKPT_HEADER_MAX + 1024;
    return max > UINT64_MAX - slack ? UINT64_MAX : max + slack;
}

static adl_status check_limits(const adli_ckpt_manifest *manifest, const adli_ckpt_limits *limits)
{
    for (size_t i = 0; i < manifest->count; i++) {
        uint64_t bytes = manifest->entries[i].file_bytes;
        if (bytes > file_limit(limits->max_state_bytes))
            return adli_fail(ADL_EINVAL, "state \"%s\" has %llu bytes, more than the limit of %llu",
                             manifest->entries[i].name, (unsigned long long)bytes,
                             (unsigned long long)limits->max_state_bytes);
    }
    return ADL_OK;
}

static adl_status read_state(int dir, const adli_ckpt_entry *entry, uint64_t max_bytes,
                             adli_ckpt_value *out)
{
    char name[ADLI_CKPT_FILE_NAME_MAX];
    unsigned char *file;
    size_t length;
    adli_ckpt_header header;
    adli_ckpt_file_name(entry->name, name);
    adl_status status = read_file(dir, name, entry->file_bytes, entry->file_bytes, &file, &length);
    if (status != ADL_OK)
        return status;
    status = adli_ckpt_state_parse_take(file, length, max_bytes, &header, out);
    if (status != ADL_OK) {
        free(file);
        return adli_wrap(status, "%s", name);
    }
    if (memcmp(&header.header_sum, &entry->header_sum, sizeof header.header_sum) != 0 ||
        strcmp(header.name, entry->name) != 0)
        return adli_fail(ADL_ECORRUPT, "%s: belongs to another checkpoint or state", name);
    return ADL_OK;
}

static adl_status read_all(int dir, const adli_ckpt_limits *limits, adli_ckpt_content *out)
{
    size_t count = out->manifest.count;
    uint64_t left = limits->max_total_bytes;
    if (!(out->values = adli_calloc(count, sizeof *out->values)))
        return adli_fail_memory("the states of a checkpoint");
    for (size_t i = 0; i < count; i++) {
        if (!(out->values[i] = adli_calloc(1, sizeof **out->values)))
            return adli_fail_memory("the states of a checkpoint");
        bool total = left < limits->max_state_bytes;
        adl_status status = read_state(dir, &out->manifest.entries[i],
                                       total ? left : limits->max_state_bytes, out->values[i]);
        if (status == ADL_EINVAL && total)
            return adli_wrap(status, "with all states limited to %llu bytes",
                             (unsigned long long)limits->max_total_bytes);
        if (status != ADL_OK)
            return status;
        left -= out->values[i]->length;
    }
    return ADL_OK;
}

adl_status adli_ckpt_read(int dir, adli_ckpt_id id, const char *program,
                          const adli_ckpt_limits *limits, adli_ckpt_content *out)
{
    char name[ADLI_CKPT_DIR_NAME_MAX];
    *out = (adli_ckpt_content){0};
    adli_ckpt_id_name(id, name);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : classify(errno), "%s: %s", name,
                         strerror(errno));
    adl_status status = read_manifest(fd, id, program, &out->manifest);
    if (status == ADL_OK)
        status = check_limits(&out->manifest, limits);
    if (status == ADL_OK)
        status = read_all(fd, limits, out);
    close(fd);
    if (status != ADL_OK) {
        status = adli_wrap(status, "%s", name);
        adli_ckpt_content_fini(out);
    }
    return status;
}

void adli_ckpt_content_fini(adli_ckpt_content *content)
{
    for (size_t i = 0; content->values && i < content->manifest.count; i++) {
        if (content->values[i])
            adli_ckpt_value_fini(content->values[i]);
        free(content->values[i]);
    }
    free(content->values);
    adli_ckpt_manifest_fini(&content->manifest);
    *content = (adli_ckpt_content){0};
}
