/* Archive -> directory, for archives that anybody may have made. libarchive reads the headers;
 * what is accepted and where it goes is decided here: directories and regular files below
 * "image/" only, each component of a path opened by itself and without following links, nothing
 * overwritten. */
#include "image/image.h"
#include "base/mem.h"
#include "image/names.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 16, DEFAULT_ENTRIES = 1000000 };
static const int64_t DEFAULT_BYTES = (int64_t)8 << 30;

typedef struct unpacking {
    struct archive *archive;
    struct archive_entry *entry;
    int fd;           /* of the archive */
    const char *name; /* of the present entry, without a leading "./" */
    int64_t bytes_left, entries_left, archive_left;
    char chunk[CHUNK_BYTES];
} unpacking;

static adl_status damaged(unpacking *u)
{
    const char *why = archive_error_string(u->archive);
    return adli_fail(ADL_ECORRUPT, "the archive of the job is damaged: %s",
                     why ? why : "unknown error");
}

static adl_status open_archive(unpacking *u, const char *tar_path)
{
    u->fd = open(tar_path, O_RDONLY | O_CLOEXEC);
    if (u->fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", tar_path,
                         strerror(errno));
    /* it is not compressed: more than it has cannot come out of it, whatever its headers say */
    struct stat info;
    u->archive_left = fstat(u->fd, &info) == 0 ? info.st_size : 0;
    u->archive = archive_read_new();
    if (!u->archive || archive_read_support_filter_none(u->archive) != ARCHIVE_OK ||
        archive_read_support_format_tar(u->archive) != ARCHIVE_OK)
        return adli_fail_memory("tar reader");
    if (archive_read_open_fd(u->archive, u->fd, CHUNK_BYTES) != ARCHIVE_OK)
        return damaged(u);
    return ADL_OK;
}

static unpacking *new_unpacking(int64_t bytes, int64_t entries)
{
    unpacking *u = adli_calloc(1, sizeof *u);
    if (u)
        *u = (unpacking){.fd = -1, .bytes_left = bytes, .entries_left = entries};
    return u;
}

static void free_unpacking(unpacking *u)
{
    archive_read_free(u->archive);
    if (u->fd >= 0)
        close(u->fd);
    free(u);
}

/* The next entry; *more is false at the end. Refuses whatever is neither file nor directory. */
static adl_status next_entry(unpacking *u, bool *more)
{
    int result = archive_read_next_header(u->archive, &u->entry);
    *more = false;
    if (result == ARCHIVE_EOF)
        return ADL_OK;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN)
        return damaged(u);
    const char *name = archive_entry_pathname(u->entry);
    if (!name)
        return adli_fail(ADL_EINVAL, "the archive of the job has an entry without a name");
    if (strncmp(name, "./", 2) == 0 && name[2])
        name += 2;
    u->name = name;
    mode_t type = archive_entry_filetype(u->entry);
    if (archive_entry_hardlink(u->entry) || archive_entry_symlink(u->entry) ||
        (type != AE_IFREG && type != AE_IFDIR))
        return adli_fail(
            ADL_EINVAL,
            "archive entry \"%.200s\": only files and directories are allowed, no links or devices",
            name);
    if (u->entries_left-- <= 0)
        return adli_fail(ADL_EINVAL, "the archive of the job has too many entries");
    *more = true;
    return adli_image_name_check(name);
}

static adl_status append_data(unpacking *u, adli_buf *out)
{
    ssize_t got;
    while ((got = archive_read_data(u->archive, u->chunk, sizeof u->chunk)) > 0) {
        adli_buf_append(out, u->chunk, (size_t)got);
        if (out->status != ADL_OK || out->length > ADLI_IMAGE_JOB_MAX_BYTES)
            return adli_fail(ADL_EINVAL, "%s: larger than %d bytes", u->name,
                             ADLI_IMAGE_JOB_MAX_BYTES);
    }
    if (got < 0)
        return damaged(u);
    adli_buf_append(out, "", 0);
    return adli_buf_check(out);
}

/* The first entry must be the job file. */
static adl_status first_entry(unpacking *u, bool *yaml)
{
    bool more;
    adl_status status = next_entry(u, &more);
    if (status != ADL_OK)
        return status;
    if (!more)
        return adli_fail(ADL_EINVAL, "the archive of the job is empty");
    *yaml = strcmp(u->name, "job.yaml") == 0;
    if ((!*yaml && strcmp(u->name, "job.json") != 0) ||
        archive_entry_filetype(u->entry) != AE_IFREG)
        return adli_fail(ADL_EINVAL,
                         "the first entry of the archive is \"%.200s\", not job.yaml or job.json",
                         u->name);
    return ADL_OK;
}

adl_status adli_image_read_job(const char *tar_path, adli_buf *job, bool *yaml)
{
    unpacking *u = new_unpacking(ADLI_IMAGE_JOB_MAX_BYTES, 1);
    if (!u)
        return adli_fail_memory("tar reader");
    adl_status status = open_archive(u, tar_path);
    if (status == ADL_OK)
        status = first_entry(u, yaml);
    if (status == ADL_OK)
        status = append_data(u, job);
    free_unpacking(u);
    return status;
}

static adl_status fail_at(const unpacking *u, const char *what)
{
    return adli_fail(errno == EEXIST || errno == ENOTDIR || errno == ELOOP ? ADL_EINVAL : ADL_EIO,
                     "archive entry \"%.200s\": %s: %s", u->name, what, strerror(errno));
}

/* Opens the directory that holds the last component of path (made where it is missing) and gives
 * that component. *fd is the caller's to close. */
static adl_status open_parent(unpacking *u, int root, const char *path, int *fd, char *last)
{
    *fd = dup(root);
    while (*fd >= 0) {
        size_t length = strcspn(path, "/");
        memcpy(last, path, length);
        last[length] = '\0';
        path += length + strspn(path + length, "/");
        if (*path == '\0')
            return ADL_OK;
        if (mkdirat(*fd, last, 0755) != 0 && errno != EEXIST)
            break;
        int next = openat(*fd, last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(*fd);
        *fd = next;
    }
    adl_status status = fail_at(u, "cannot make its directory");
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return status;
}

static adl_status write_all(unpacking *u, int fd)
{
    ssize_t got;
    while ((got = archive_read_data(u->archive, u->chunk, sizeof u->chunk)) > 0) {
        if ((u->bytes_left -= got) < 0 || (u->archive_left -= got) < 0)
            return adli_fail(ADL_EINVAL,
                             "archive entry \"%.200s\": the files of the job are too large",
                             u->name);
        for (ssize_t done = 0, now; done < got; done += now)
            if ((now = write(fd, u->chunk + done, (size_t)(got - done))) < 0)
                return fail_at(u, "cannot write");
    }
    return got < 0 ? damaged(u) : ADL_OK;
}

/* Holes are written as zeros: a small archive must not become a large directory. */
static adl_status write_file(unpacking *u, int parent, const char *name)
{
    if (archive_entry_sparse_count(u->entry) > 0)
        return adli_fail(ADL_EINVAL, "archive entry \"%.200s\": sparse files are not allowed",
                         u->name);
    if (archive_entry_size(u->entry) > u->bytes_left)
        return adli_fail(ADL_EINVAL, "archive entry \"%.200s\": the files of the job are too large",
                         u->name);
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail_at(u, "cannot create it");
    adl_status status = write_all(u, fd);
    mode_t mode = archive_entry_perm(u->entry) & 0100 ? 0755 : 0644;
    if (status == ADL_OK && (fchmod(fd, mode) != 0 || fsync(fd) != 0))
        status = fail_at(u, "cannot write");
    if (close(fd) != 0 && status == ADL_OK)
        status = fail_at(u, "cannot write");
    return status;
}

static adl_status unpack_entry(unpacking *u, int root)
{
    char last[ADLI_PATH_PART_MAX + 1];
    int parent;
    if (strcmp(u->name, "image") == 0 || strcmp(u->name, "image/") == 0) {
        if (archive_entry_filetype(u->entry) != AE_IFDIR)
            return adli_fail(ADL_EINVAL, "archive entry \"image\": must be a directory");
        return ADL_OK;
    }
    if (strncmp(u->name, "image/", 6) != 0)
        return adli_fail(ADL_EINVAL, "archive entry \"%.200s\": must be below image/", u->name);
    adl_status status = open_parent(u, root, u->name + 6, &parent, last);
    if (status != ADL_OK)
        return status;
    struct stat seen;
    if (archive_entry_filetype(u->entry) == AE_IFREG)
        status = write_file(u, parent, last);
    else if (mkdirat(parent, last, 0755) != 0 &&
             (errno != EEXIST || fstatat(parent, last, &seen, AT_SYMLINK_NOFOLLOW) != 0 ||
              !S_ISDIR(seen.st_mode)))
        status = fail_at(u, "cannot make the directory");
    close(parent);
    return status;
}

/* The names are on disk, not only the files. Takes fd. */
static adl_status sync_directories(int fd)
{
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return adli_fail(ADL_EIO, "the directory of the job's files: %s", strerror(errno));
    }
    adl_status status = ADL_OK;
    for (struct dirent *entry; status == ADL_OK && (entry = readdir(dir));) {
        struct stat seen;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(fd, entry->d_name, &seen, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(seen.st_mode))
            status = sync_directories(
                openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    }
    if (status == ADL_OK && fsync(fd) != 0)
        status = adli_fail(ADL_EIO, "the directory of the job's files: %s", strerror(errno));
    closedir(dir);
    return status;
}

static adl_status unpack_all(unpacking *u, int root)
{
    bool yaml, more = true;
    adl_status status = first_entry(u, &yaml);
    while (status == ADL_OK) {
        status = next_entry(u, &more);
        if (status != ADL_OK || !more)
            break;
        status = unpack_entry(u, root);
    }
    return status;
}

adl_status adli_image_unpack(const char *tar_path, const char *directory,
                             const adli_image_limits *limits)
{
    unpacking *u =
        new_unpacking(limits && limits->max_bytes ? limits->max_bytes : DEFAULT_BYTES,
                      limits && limits->max_entries ? limits->max_entries : DEFAULT_ENTRIES);
    if (!u)
        return adli_fail_memory("tar reader");
    adl_status status = ADL_OK;
    int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        status =
            adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", directory, strerror(errno));
        goto out;
    }
    status = open_archive(u, tar_path);
    if (status == ADL_OK)
        status = unpack_all(u, root);
    if (status == ADL_OK)
        status = sync_directories(dup(root));
    close(root);
out:
    free_unpacking(u);
    return status;
}
