/* A job's files. Paths come from strangers and the files were made by jobs, so the kernel is told to stay
 * below the job's directory whatever links there are (openat2, Linux 5.6); where it cannot, links are not
 * followed at all. */
#include "daemon/api_impl.h"

#include "base/json_write.h"
#include "base/mem.h"
#include "httpd/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, ENTRIES_MAX = 100000, LISTING_MAX = 32 << 20 };
enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

/* Component by component, following no link. Changes path. */
static int open_walking(int dir, char *path)
{
    int fd = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    char *save = NULL;
    for (char *word = strtok_r(path, "/", &save); word && fd >= 0;
         word = strtok_r(NULL, "/", &save)) {
        int next = -1;
        if (strcmp(word, "..") == 0)
            errno = EXDEV;
        else
            next = openat(fd, word, OPEN_FLAGS | O_NOFOLLOW);
        int reason = errno;
        close(fd);
        errno = reason;
        fd = next;
    }
    return fd;
}

static int open_below(int dir, char *path)
{
    struct open_how how = {.flags = OPEN_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
        return (int)fd;
    return open_walking(dir, path);
}

/* "/adaptdl/share/x" -> "share" and "x". */
static const char *split(const char *path, const char **rest)
{
    static const char *const roots[] = {"share", "checkpoint"};
    if (strncmp(path, "/adaptdl/", 9) != 0)
        return NULL;
    for (size_t i = 0; i < ADLI_COUNT(roots); i++) {
        size_t length = strlen(roots[i]);
        if (strncmp(path + 9, roots[i], length) != 0 ||
            (path[9 + length] && path[9 + length] != '/'))
            continue;
        *rest = path + 9 + length;
        while (**rest == '/')
            (*rest)++;
        return roots[i];
    }
    return NULL;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void put_entry(adli_buf *out, int dir, char *name)
{
    struct stat info;
    if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    adli_target_printable(name);
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", name);
    adli_jw_int(out, "size", S_ISDIR(info.st_mode) ? 0 : info.st_size);
    adli_jw_bool(out, "directory", S_ISDIR(info.st_mode));
    adli_jw_close(out, '}');
}

static void answer_directory(adli_httpd_request *request, int fd)
{
    struct dirent **entries = NULL;
    adli_buf out;
    adli_buf_init(&out, LISTING_MAX);
    int count = scandirat(fd, ".", &entries, NULL, by_name);
    if (count < 0) {
        adli_httpd_answer_error(request, 500, "the directory cannot be read: %s", strerror(errno));
        return;
    }
    adli_buf_puts(&out, "{\"directory\":true,\"entries\":[");
    for (int i = 0; i < count; i++) {
        if (i < ENTRIES_MAX && strcmp(entries[i]->d_name, ".") && strcmp(entries[i]->d_name, ".."))
            put_entry(&out, fd, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    adli_buf_puts(&out, "]}\n");
    adli_httpd_set_header(request, "X-Adaptdl-Directory", "1");
    adli_api_answer(request, ADL_OK, 200, &out);
}

static void answer_open(adli_httpd_request *request, const char *path, int fd)
{
    struct stat info;
    if (fd < 0) {
        int code = errno == ENOENT || errno == ENOTDIR                   ? 404
                   : errno == EXDEV || errno == ELOOP || errno == EACCES ? 403
                   : errno == ENAMETOOLONG                               ? 400
                                                                         : 500;
        adli_httpd_answer_error(request, code, "%.200s: %s", path,
                                errno == EXDEV || errno == ELOOP
                                    ? "leads out of the job's directory"
                                    : strerror(errno));
        return;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        adli_httpd_set_header(request, "Content-Disposition", "attachment");
        adli_httpd_answer_file(request, "application/octet-stream", fd, 0, info.st_size);
        return;
    }
    if (S_ISDIR(info.st_mode))
        answer_directory(request, fd);
    else
        adli_httpd_answer_error(request, 400, "%.200s: neither a file nor a directory", path);
    close(fd);
}

adli_httpd_verdict adli_api_files(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    char root[PATH_SIZE], relative[PATH_SIZE];
    const char *path = adli_httpd_query(request, "path"), *rest = NULL;
    const char *which = path && strlen(path) < sizeof relative ? split(path, &rest) : NULL;
    if (!which) {
        adli_httpd_answer_error(request, 400,
                                "path=%.100s: expected /adaptdl/share/... or "
                                "/adaptdl/checkpoint/...",
                                path ? path : "");
        return ADLI_HTTPD_DONE;
    }
    adl_status status = adli_core_job_path(api->core, adli_httpd_part(request, 0),
                                           adli_httpd_part(request, 1), which, root, sizeof root);
    if (status != ADL_OK) {
        adli_api_answer_failure(request, status);
        return ADLI_HTTPD_DONE;
    }
    strcpy(relative, rest);
    int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = dir < 0 ? -1 : open_below(dir, relative);
    answer_open(request, path, fd);
    if (dir >= 0)
        close(dir);
    return ADLI_HTTPD_DONE;
}
