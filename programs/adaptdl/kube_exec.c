/* `adaptdl exec` on Kubernetes: a program in the container of a replica. On a terminal it has one there as well. */
#include "kube_pod.h"

#include "base/json_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { PIECE = 16 << 10, WAIT_MS = 500 };

typedef struct session {
    adli_kube_exec *exec;
    bool tty, in_open;
    struct termios before;
    unsigned short rows, columns;
} session;

/* The pod of the rank in the newest start that runs. */
static int find_pod(cluster *k, const job_name *job, int rank, char pod[254], char container[64])
{
    char path[PATH_TEXT];
    json_t *list = NULL, *item;
    size_t i;
    int newest = 0;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods?labelSelector=adaptdl/job%%3D%s",
             job->ns, job->name);
    int status = kube_ask(k, "GET", path, NULL, NULL, 0, &list);
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        const json_t *metadata = json_object_get(item, "metadata"),
                     *notes = json_object_get(metadata, "annotations");
        const json_t *first =
            json_array_get(json_object_get(json_object_get(item, "spec"), "containers"), 0);
        int group = atoi(text_of(notes, "adaptdl/group", "0"));
        bool runs = strcmp(text_of(json_object_get(item, "status"), "phase", ""), "Running") == 0;
        if (!runs || atoi(text_of(notes, "adaptdl/rank", "-1")) != rank || group < newest)
            continue;
        newest = group;
        snprintf(pod, 254, "%s", text_of(metadata, "name", ""));
        snprintf(container, 64, "%s", text_of(first, "name", ""));
    }
    json_decref(list);
    if (status == EXIT_DONE && newest == 0)
        status = problem("exec", EXIT_ABSENT, "rank %d of job %s/%s does not run now", rank,
                         job->ns, job->name);
    return status;
}

/* ---- the terminal ---- */

static void enter(session *s)
{
    struct termios raw;
    if (!s->tty || tcgetattr(STDIN_FILENO, &s->before) != 0) {
        s->tty = false;
        return;
    }
    raw = s->before;
    cfmakeraw(&raw);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

static void leave(const session *s)
{
    if (s->tty)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &s->before);
}

static adl_status tell_size(session *s)
{
    struct winsize size;
    adli_buf text;
    if (!s->tty || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
        (size.ws_row == s->rows && size.ws_col == s->columns))
        return ADL_OK;
    s->rows = size.ws_row;
    s->columns = size.ws_col;
    adli_buf_init(&text, 256);
    adli_jw_open(&text, NULL, '{');
    adli_jw_int(&text, "Width", s->columns);
    adli_jw_int(&text, "Height", s->rows);
    adli_jw_close(&text, '}');
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = adli_kube_exec_send(s->exec, ADLI_EXEC_SIZE, text.data, text.length);
    adli_buf_fini(&text);
    return status;
}

/* ---- its streams ---- */

static bool readable(int fd)
{
    fd_set set;
    struct timeval none = {0, 0};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &none) > 0;
}

static adl_status pass_input(session *s)
{
    char piece[PIECE];
    if (!s->in_open || !readable(STDIN_FILENO))
        return ADL_OK;
    ssize_t got = read(STDIN_FILENO, piece, sizeof piece);
    if (got > 0)
        return adli_kube_exec_send(s->exec, ADLI_EXEC_IN, piece, (size_t)got);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return ADL_OK;
    s->in_open = false;
    return adli_kube_exec_end_input(s->exec);
}

static adl_status pass_output(int channel, const char *data, size_t length)
{
    int fd = channel == ADLI_EXEC_OUT ? STDOUT_FILENO : STDERR_FILENO;
    while (length > 0) {
        ssize_t done = write(fd, data, length);
        if (done < 0 && errno != EINTR)
            return adli_fail(ADL_EIO, "cannot write the output");
        data += done > 0 ? done : 0;
        length -= done > 0 ? (size_t)done : 0;
    }
    return ADL_OK;
}

static adl_status serve(session *s)
{
    bool over = false;
    adl_status status = ADL_OK;
    while (!over && status == ADL_OK && !interrupted()) {
        int channel;
        const char *data;
        size_t length;
        status = tell_size(s);
        if (status == ADL_OK)
            status = adli_kube_exec_next(s->exec, WAIT_MS, s->in_open ? STDIN_FILENO : -1, &channel,
                                         &data, &length, &over);
        if (status == ADL_OK && channel >= 0)
            status = pass_output(channel, data, length);
        if (status == ADL_OK && !over)
            status = pass_input(s);
    }
    return status;
}

int kube_exec(cluster *k, const job_name *job, int rank, char *const *words)
{
    static const char *const shell[] = {"sh", NULL};
    char pod[254], container[64];
    session s = {.tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO), .in_open = true};
    int code = 0, status = find_pod(k, job, rank, pod, container);
    if (status == EXIT_DONE)
        status =
            kube_exec_begin(k, job->ns, pod, container,
                            words[0] ? (const char *const *)words : shell, true, s.tty, &s.exec);
    if (status != EXIT_DONE)
        return status;
    enter(&s);
    adl_status result = serve(&s);
    leave(&s);
    if (result == ADL_OK && interrupted())
        code = EXIT_INTERRUPTED;
    else if (result == ADL_OK)
        result = adli_kube_exec_result(s.exec, &code);
    adli_kube_exec_close(s.exec);
    return result == ADL_OK ? code : report_error("exec", EXIT_REFUSED);
}
