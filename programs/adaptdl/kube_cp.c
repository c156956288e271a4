/* `adaptdl cp` on Kubernetes: a pod that sees the job's volume runs tar, and what it says becomes files here. The names
 * are the job's to choose, so nothing is written but plain components below the destination, and no link on the way
 * is followed. A file is written under another name and renamed when it is whole. */
#include "copy_dest.h"
#include "kube_pod.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, PATH_BYTES = 4096, SAID_MAX = 4096, BLOCK = 64 << 10 };

typedef struct unpacking {
    cluster *k;
    adli_kube_exec *exec;
    adli_buf said; /* by tar, on its other stream */
    bool over;
    const char *name; /* of the first component here; NULL: standard output */
    int parent;
    int files, left_out;
    int result; /* a message was shown; EXIT_DONE: none yet */
} unpacking;

/* ---- what tar says, for libarchive ---- */

static la_ssize_t on_read(struct archive *archive, void *user, const void **data)
{
    unpacking *u = user;
    while (!u->over) {
        int channel;
        const char *bytes;
        size_t length;
        adl_status status =
            adli_kube_exec_next(u->exec, 200, -1, &channel, &bytes, &length, &u->over);
        if (status != ADL_OK || interrupted()) {
            if (archive)
                archive_set_error(archive, EIO, "%s", interrupted() ? "interrupted" : adl_error());
            return -1;
        }
        if (channel == ADLI_EXEC_ERR && u->said.length + length < SAID_MAX)
            adli_buf_append(&u->said, bytes, length);
        if (channel == ADLI_EXEC_OUT) {
            *data = bytes;
            return (la_ssize_t)length;
        }
    }
    return 0;
}

/* ---- files here ---- */

static int copy_data(unpacking *u, struct archive *archive, int fd, const char *name)
{
    char block[BLOCK];
    la_ssize_t got;
    while ((got = archive_read_data(archive, block, sizeof block)) > 0)
        for (la_ssize_t done = 0, part; done < got; done += part) {
            part = write(fd, block + done, (size_t)(got - done));
            if (part < 0)
                return copy_cannot_write(name);
        }
    if (got < 0)
        return interrupted()
                   ? EXIT_INTERRUPTED
                   : problem("cp", EXIT_REFUSED, "%s: %s", name, archive_error_string(archive));
    u->files++;
    return EXIT_DONE;
}

static int write_file(unpacking *u, struct archive *archive, int directory, const char *name)
{
    char temporary[64];
    snprintf(temporary, sizeof temporary, ".adaptdl-cp.%ld", (long)getpid());
    int fd =
        openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return copy_cannot_write(name);
    int status = copy_data(u, archive, fd, name);
    if (close(fd) != 0 && status == EXIT_DONE)
        status = copy_cannot_write(name);
    if (status == EXIT_DONE && renameat(directory, temporary, directory, name) != 0)
        status = copy_cannot_write(name);
    if (status != EXIT_DONE)
        unlinkat(directory, temporary, 0);
    return status;
}

/* The directory that an entry is in, made on the way; *last: its last component, a directory's as well. -1: told. */
static int walk(unpacking *u, char *path, bool is_directory, const char **last)
{
    int fd = dup(u->parent), depth = 0;
    char *save = NULL, *part = strtok_r(path, "/", &save);
    for (char *next; fd >= 0 && part; part = next) {
        next = strtok_r(NULL, "/", &save);
        const char *name = depth++ == 0 ? u->name : part;
        if (!copy_plain(part) || depth > DEPTH_MAX) {
            u->result =
                problem("cp", EXIT_REFUSED,
                        "a file there has the name \"%.80s\", which is not written here", part);
            break;
        }
        if (!next && !is_directory) {
            *last = name;
            return fd;
        }
        if (mkdirat(fd, name, 0777) != 0 && errno != EEXIST) {
            u->result = copy_cannot_write(name);
            break;
        }
        int below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0)
            u->result = copy_cannot_write(name);
        close(fd);
        fd = below;
        if (!next && fd >= 0) {
            *last = NULL;
            return fd;
        }
    }
    if (fd >= 0)
        close(fd);
    if (u->result == EXIT_DONE)
        u->result = copy_cannot_write(path);
    return -1;
}

static int take_entry(unpacking *u, struct archive *archive, struct archive_entry *entry)
{
    char path[PATH_BYTES];
    const char *name = archive_entry_pathname(entry), *last = NULL;
    int kind = archive_entry_filetype(entry);
    if (!name || strlen(name) >= sizeof path)
        return problem("cp", EXIT_REFUSED, "the names are too long");
    if (kind != AE_IFREG && kind != AE_IFDIR) {
        problem("cp", EXIT_PROBLEM, "%s is a link or a device, and left out", name);
        u->left_out++;
        return EXIT_DONE;
    }
    if (!u->name)
        return kind == AE_IFREG ? copy_data(u, archive, STDOUT_FILENO, name)
                                : problem("cp", EXIT_USAGE,
                                          "%s is a directory; give a place to copy it to", name);
    snprintf(path, sizeof path, "%s", name);
    int directory = walk(u, path, kind == AE_IFDIR, &last);
    if (directory < 0)
        return u->result;
    int status = last ? write_file(u, archive, directory, last) : EXIT_DONE;
    close(directory);
    return status;
}

static int unpack(unpacking *u)
{
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;
    int status = EXIT_DONE, code = ARCHIVE_OK;
    if (!archive)
        return problem("cp", EXIT_REFUSED, "out of memory");
    archive_read_support_format_tar(archive);
    archive_read_support_format_empty(archive);
    code = archive_read_open(archive, u, NULL, on_read, NULL);
    while (code == ARCHIVE_OK && status == EXIT_DONE &&
           (code = archive_read_next_header(archive, &entry)) == ARCHIVE_OK)
        status = take_entry(u, archive, entry);
    if (status == EXIT_DONE && interrupted())
        status = EXIT_INTERRUPTED;
    else if (status == EXIT_DONE && code != ARCHIVE_EOF && code != ARCHIVE_OK && !u->said.length)
        status = problem("cp", EXIT_REFUSED, "what comes is no archive: %s",
                         archive_error_string(archive));
    archive_read_free(archive);
    return status;
}

/* How tar ended. */
static int judge(unpacking *u, const char *remote)
{
    const void *rest;
    int code = 0;
    while (!u->over && on_read(NULL, u, &rest) > 0)
        continue;
    if (adli_kube_exec_result(u->exec, &code) != ADL_OK)
        return problem("cp", EXIT_REFUSED,
                       "tar cannot be run in the job's image (%s); ADAPTDL_CP_IMAGE names another",
                       adl_error());
    if (code == 0)
        return EXIT_DONE;
    const char *said = u->said.data ? u->said.data : "";
    bool absent = strstr(said, "o such file") != NULL;
    return problem("cp", absent ? EXIT_ABSENT : EXIT_REFUSED, "%s: %.*s", remote,
                   (int)strcspn(said, "\n"), *said ? said : "tar failed");
}

static int copy(unpacking *u, const kube_helper *helper, const char *remote)
{
    char directory[PATH_BYTES];
    const char *slash = strrchr(remote, '/');
    snprintf(directory, sizeof directory, "%.*s", (int)(slash - remote) ? (int)(slash - remote) : 1,
             remote);
    const char *const words[] = {"tar", "-c", "-f", "-", "-C", directory, slash + 1, NULL};
    int status = kube_exec_begin(u->k, helper->ns, helper->name, helper->container, words, false,
                                 false, &u->exec);
    if (status != EXIT_DONE)
        return status;
    status = unpack(u);
    if (status == EXIT_DONE)
        status = judge(u, remote);
    adli_kube_exec_close(u->exec);
    return status == EXIT_DONE && u->left_out > 0 ? EXIT_PROBLEM : status;
}

int kube_cp(cluster *k, const job_name *job, const char *remote, const char *dest)
{
    unpacking u = {.k = k, .parent = -1};
    kube_helper helper = {.name = ""};
    json_t *object = NULL;
    adli_buf_init(&u.said, SAID_MAX + 1);
    int status =
        strcmp(dest, "-") == 0 ? EXIT_DONE : copy_open_dest(remote, dest, &u.name, &u.parent);
    if (status == EXIT_DONE)
        status = kube_job(k, job, &object);
    if (status == EXIT_DONE)
        status = kube_helper_start(k, object, remote, &helper);
    if (status == EXIT_DONE)
        status = copy(&u, &helper, remote);
    kube_helper_end(k, &helper);
    if (u.parent >= 0)
        close(u.parent);
    adli_buf_fini(&u.said);
    json_decref(object);
    return status;
}
