/* Image -> archive. Times and owners are left out, so that the same files make the same bytes. */
#include "image/image_impl.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct packing {
    struct archive *archive;
    struct archive_entry *entry;
} packing;

static adl_status write_failed(packing *p)
{
    const char *why = archive_error_string(p->archive);
    return adli_fail(ADL_EIO, "cannot write the archive of the job: %s", why ? why : "?");
}

static adl_status write_header(packing *p, const char *prefix, const char *path, bool directory,
                               int64_t size, mode_t mode)
{
    char name[8192];
    snprintf(name, sizeof name, "%s%s", prefix, path);
    archive_entry_clear(p->entry);
    archive_entry_set_pathname(p->entry, name);
    archive_entry_set_filetype(p->entry, directory ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(p->entry, mode & 0100 ? 0755 : 0644);
    archive_entry_set_size(p->entry, directory ? 0 : size);
    archive_entry_set_mtime(p->entry, 0, 0);
    /* GNU tar writes names as they are: a warning about their encoding means nothing here. */
    int result = archive_write_header(p->archive, p->entry);
    return result == ARCHIVE_OK || result == ARCHIVE_WARN ? ADL_OK : write_failed(p);
}

static adl_status write_file(packing *p, const adli_file *file)
{
    static const char changed[] = "its size changed while it was read; try again";
    char chunk[1 << 16];
    int64_t left = file->size;
    int fd = open(file->source, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    adl_status status = ADL_OK;
    if (fd < 0)
        return adli_fail(ADL_EIO, "%s: %s", file->source, strerror(errno));
    while (left > 0 && status == ADL_OK) {
        ssize_t got = read(fd, chunk, left < (int64_t)sizeof chunk ? (size_t)left : sizeof chunk);
        if (got <= 0)
            status =
                adli_fail(ADL_EIO, "%s: %s", file->source, got < 0 ? strerror(errno) : changed);
        else if (archive_write_data(p->archive, chunk, (size_t)got) != got)
            status = write_failed(p);
        left -= got;
    }
    if (status == ADL_OK && read(fd, chunk, 1) == 1)
        status = adli_fail(ADL_EIO, "%s: %s", file->source, changed);
    close(fd);
    return status;
}

static adl_status write_all(packing *p, const adli_image *image, const char *job, size_t length,
                            bool yaml)
{
    adl_status status =
        write_header(p, "", yaml ? "job.yaml" : "job.json", false, (int64_t)length, 0644);
    if (status == ADL_OK && archive_write_data(p->archive, job, length) != (la_ssize_t)length)
        status = write_failed(p);
    for (size_t i = 0; image && i < image->tree.count && status == ADL_OK; i++) {
        const adli_file *file = &image->tree.files[i];
        status = write_header(p, "image/", file->path, !file->source, file->size, file->mode);
        if (status == ADL_OK && file->source)
            status = write_file(p, file);
    }
    if (status == ADL_OK && archive_write_close(p->archive) != ARCHIVE_OK)
        status = write_failed(p);
    return status;
}

adl_status adli_image_pack(const adli_image *image, const char *job, size_t job_length, bool yaml,
                           int fd)
{
    packing p = {archive_write_new(), archive_entry_new()};
    adl_status status = ADL_OK;
    if (!p.archive || !p.entry || archive_write_set_format_gnutar(p.archive) != ARCHIVE_OK ||
        archive_write_add_filter_none(p.archive) != ARCHIVE_OK)
        status = adli_fail_memory("tar writer");
    else if (archive_write_open_fd(p.archive, fd) != ARCHIVE_OK)
        status = write_failed(&p);
    else
        status = write_all(&p, image, job, job_length, yaml);
    archive_entry_free(p.entry);
    archive_write_free(p.archive);
    return status;
}
