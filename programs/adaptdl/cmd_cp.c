/* `adaptdl cp`: files of a job to this machine. The names in a directory are the job's to
 * choose, so nothing is written but plain components below the destination, and no link on the
 * way is followed. A file is written under another name and renamed when it is whole. */
#include "cluster.h"
#include "commands.h"
#include "copy_dest.h"
#include "kube_pod.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, REMOTE_MAX = 4096, LEFT_OUT = -1 };

typedef struct copying {
    cluster *k;
    job_name job;
    int fd; /* of the file being written; -1: standard output is wanted */
    bool to_stdout;
    adli_stream *stream;
    adli_buf listing; /* of a directory */
    int depth;
    int left_out; /* links out of the job's directory, names that cannot be written here */
} copying;

static adl_status take(void *user, const char *data, size_t length)
{
    copying *p = user;
    if (adli_stream_is_directory(p->stream)) {
        adli_buf_append(&p->listing, data, length);
        return adli_buf_check(&p->listing);
    }
    if (p->to_stdout)
        return fwrite(data, 1, length, stdout) == length
                   ? ADL_OK
                   : adli_fail(ADL_EIO, "standard output: %s", strerror(errno));
    while (length > 0) {
        ssize_t done = write(p->fd, data, length);
        if (done < 0)
            return adli_fail(ADL_EIO, "%s", strerror(errno));
        data += done;
        length -= (size_t)done;
    }
    return ADL_OK;
}

/* Tells what of a directory is not copied, unless why is NULL: then that was told. */
static int leave_out(copying *p, const char *remote, const char *why)
{
    p->left_out++;
    problem("cp", EXIT_PROBLEM, "%s is left out%s%s", remote, why ? ": " : "", why ? why : "");
    return LEFT_OUT;
}

/* Gets one remote path into p->fd, or into p->listing when it is a directory. */
static int fetch(copying *p, const char *remote, bool *directory)
{
    adli_buf path;
    int code = 0, result = EXIT_DONE;
    char start[PATH_TEXT];
    adli_buf_init(&path, 8 * REMOTE_MAX);
    adli_buf_puts(&path, job_path(&p->job, "/files?path=", start));
    put_encoded(&path, remote);
    adli_buf_clear(&p->listing);
    adli_stream_request request = {.method = "GET", .path = path.data, .data = take, .user = p};
    adl_status status = adli_buf_check(&path);
    if (status == ADL_OK)
        status = adli_stream_open(p->k->streams, &request, &p->stream);
    while (status == ADL_OK && !adli_stream_over(p->stream)) {
        status = adli_streams_step(p->k->streams, 100, -1);
        if (interrupted())
            status = adli_fail(ADL_EINTR, "interrupted");
    }
    if (status == ADL_OK)
        status = adli_stream_result(p->stream, &code);
    if (status == ADL_EIO)
        result = problem("cp", EXIT_USAGE, "cannot write the copy of %s: %s", remote, adl_error());
    else if (status != ADL_OK || code >= 400)
        result =
            cluster_failed(p->k, status, code, p->stream ? adli_stream_answer(p->stream) : NULL);
    /* The rest of the directory is copied nevertheless. */
    if ((code == 400 || code == 403 || code == 404) && p->depth > 0)
        result = leave_out(p, remote, NULL);
    *directory = p->stream && adli_stream_is_directory(p->stream);
    adli_stream_close(p->stream);
    p->stream = NULL;
    adli_buf_fini(&path);
    return result;
}

static int copy_path(copying *p, const char *remote, int parent, const char *name, int depth);

/* The entries of the listing into the directory parent/name. */
static int copy_entries(copying *p, const char *remote, int parent, const char *name, int depth)
{
    json_t *listing = NULL, *entry;
    size_t i;
    if (!p->listing.data)
        return problem("cp", EXIT_REFUSED, "%s: the listing is empty", remote);
    listing = json_loadb(p->listing.data, p->listing.length, 0, NULL);
    if (mkdirat(parent, name, 0777) != 0 && errno != EEXIST) {
        json_decref(listing);
        return copy_cannot_write(name);
    }
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int status = fd < 0 ? copy_cannot_write(name) : EXIT_DONE;
    json_array_foreach(json_object_get(listing, "entries"), i, entry)
    {
        const char *child = text_of(entry, "name", "");
        char below[REMOTE_MAX];
        if (status != EXIT_DONE)
            break;
        bool fits = (size_t)snprintf(below, sizeof below, "%s/%s", remote, child) < sizeof below;
        const json_t *exact = json_object_get(entry, "exact");
        const char *why = !copy_plain(child)      ? "not a name for a file"
                          : !fits                 ? "the names are too long"
                          : json_is_false(exact)  ? "its name is not UTF-8"
                          : depth + 1 > DEPTH_MAX ? "too many directories deep"
                                                  : NULL;
        status = why ? leave_out(p, below, why) : copy_path(p, below, fd, child, depth + 1);
        if (status == LEFT_OUT)
            status = EXIT_DONE;
    }
    if (fd >= 0)
        close(fd);
    json_decref(listing);
    return status;
}

static int copy_path(copying *p, const char *remote, int parent, const char *name, int depth)
{
    char temporary[64];
    bool directory;
    snprintf(temporary, sizeof temporary, ".adaptdl-cp.%ld.%d", (long)getpid(), depth);
    p->fd = openat(parent, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (p->fd < 0)
        return copy_cannot_write(name);
    p->depth = depth;
    int status = fetch(p, remote, &directory);
    if (close(p->fd) != 0 && status == EXIT_DONE)
        status = copy_cannot_write(name);
    p->fd = -1;
    if (status == EXIT_DONE && !directory) {
        if (renameat(parent, temporary, parent, name) != 0)
            status = copy_cannot_write(name);
    }
    if (status != EXIT_DONE || directory)
        unlinkat(parent, temporary, 0);
    if (status == LEFT_OUT)
        return EXIT_DONE;
    return status == EXIT_DONE && directory ? copy_entries(p, remote, parent, name, depth) : status;
}

static int copy_to(copying *p, const char *remote, const char *dest)
{
    const char *name;
    int parent, status = copy_open_dest(remote, dest, &name, &parent);
    if (status == EXIT_DONE)
        status = copy_path(p, remote, parent, name, 0);
    if (parent >= 0)
        close(parent);
    return status;
}

static int copy_to_stdout(copying *p, const char *remote)
{
    bool directory;
    p->to_stdout = true;
    int status = fetch(p, remote, &directory);
    if (status == EXIT_DONE && directory)
        return problem("cp", EXIT_USAGE, "%s is a directory; give a place to copy it to", remote);
    return status;
}

static bool below(const char *path, const char *directory)
{
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* "JOB:/path" into its parts; path without a slash at its end. */
static int parse_source(cluster *k, const char *text, job_name *job, char *remote)
{
    const char *colon = strchr(text, ':');
    char name[160];
    if (!colon || (size_t)(colon - text) >= sizeof name)
        return usage_error("cp", "\"%.80s\": expected JOB:/adaptdl/share/FILE", text);
    snprintf(name, sizeof name, "%.*s", (int)(colon - text), text);
    int status = cluster_job_name(k, name, job);
    if (status != EXIT_DONE)
        return status;
    if (strlen(colon + 1) >= REMOTE_MAX)
        return usage_error("cp", "the path is longer than %d bytes", REMOTE_MAX - 1);
    snprintf(remote, REMOTE_MAX, "%s", colon + 1);
    for (const char *part = remote; *part; part += strspn(part, "/")) {
        size_t length = strcspn(part, "/");
        if (length == 2 && strncmp(part, "..", 2) == 0)
            return usage_error("cp", "\"%.80s\": \"..\" is not allowed in the path", text);
        part += length;
    }
    for (size_t end = strlen(remote); end > 1 && remote[end - 1] == '/'; end--)
        remote[end - 1] = '\0';
    if (!below(remote, "/adaptdl/share") && !below(remote, "/adaptdl/checkpoint"))
        return usage_error("cp",
                           "\"%.80s\": the path must be below /adaptdl/share or "
                           "/adaptdl/checkpoint",
                           text);
    return EXIT_DONE;
}

static int run_cp(cli *c)
{
    int status;
    char remote[REMOTE_MAX];
    cluster k;
    copying p = {.k = &k, .fd = -1};
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) != 2)
        return usage_error("cp", "expected JOB:/adaptdl/share/FILE and where to copy it to");
    catch_interrupts(); /* so that no half file stays behind */
    adli_buf_init(&p.listing, 64 << 20);
    status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = parse_source(&k, cli_argument(c, 0), &p.job, remote);
    if (status == EXIT_DONE && k.kube)
        status = kube_cp(&k, &p.job, remote, cli_argument(c, 1));
    else if (status == EXIT_DONE)
        status = strcmp(cli_argument(c, 1), "-") == 0 ? copy_to_stdout(&p, remote)
                                                      : copy_to(&p, remote, cli_argument(c, 1));
    if (status == EXIT_DONE && p.left_out > 0)
        status = EXIT_PROBLEM;
    adli_buf_fini(&p.listing);
    cluster_close(&k);
    return status;
}

const cli_command command_cp = {
    .name = "cp",
    .summary = "copy files of a job to this machine",
    .usage = "JOB:/adaptdl/share/PATH DEST",
    .text = "Copies a file or a directory that a job wrote below /adaptdl/share or "
            "/adaptdl/checkpoint. When DEST is a directory the copy goes into it; - is standard "
            "output. A file that is there is replaced when the copy is complete. Of a directory, "
            "links that lead out of the job's directories and files whose names are not UTF-8 or "
            "have control characters are left out, and named.",
    .exits = "0 all of it was copied, 1 something was left out; otherwise as in adaptdl --help.",
    .examples = "adaptdl cp hello-world-kgjsc:/adaptdl/share/foo.txt foo.txt\n"
                "adaptdl cp mnist-x7k2p:/adaptdl/share/log.txt - | tail",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_cp,
};
