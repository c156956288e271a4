/* A job's output: the end of it, or all of it as it comes, from one group of replicas to the next, until
 * the job ends. A follower costs one open file; files are looked at when the core has news and a few
 * times a second. */
#include "daemon/api_impl.h"

#include "backend/output.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 32768, TAIL_LINES_MAX = 1000000 };
static const double LOOK_EVERY_S = 0.25;
static const int64_t TAIL_BYTES_MAX = (int64_t)64 << 20;
static const char TYPE[] = "text/plain; charset=utf-8";

static int64_t size_of(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 ? (int64_t)info.st_size : 0;
}

/* Where the last `lines` lines of the file's first `size` bytes begin. */
static int64_t tail_offset(int fd, int64_t size, int64_t lines)
{
    char piece[PIECE];
    int64_t at = size, stop = adli_output_begin(fd);
    if (size - stop > TAIL_BYTES_MAX)
        stop = size - TAIL_BYTES_MAX;
    if (lines == 0)
        return size;
    while (at > stop) {
        int64_t length = at - stop < PIECE ? at - stop : PIECE;
        if (pread(fd, piece, (size_t)length, (off_t)(at - length)) != length)
            return stop;
        for (int64_t i = length - 1; i >= 0; i--)
            if (piece[i] == '\n' && at - length + i + 1 < size && --lines == 0)
                return at - length + i + 1;
        at -= length;
    }
    return stop;
}

typedef struct follower {
    adli_api *api;
    char *ns, *name;
    int group, rank;
    bool one_group;
    int fd;
    int64_t offset, tail; /* tail: -1 none; of the first log that is opened */
} follower;

static void follower_free(void *self)
{
    follower *f = self;
    if (f->fd >= 0)
        close(f->fd);
    free(f->ns);
    free(f->name);
    free(f);
}

static adl_status open_next(follower *f)
{
    adl_status status = adli_core_open_log(f->api->core, f->ns, f->name, f->group, f->rank, &f->fd);
    if (status != ADL_OK)
        return status;
    f->offset = f->tail >= 0 ? tail_offset(f->fd, size_of(f->fd), f->tail) : 0;
    f->tail = -1;
    return status;
}

/* What the file has beyond offset. What was removed meanwhile, because a reader was too slow, is left out. */
static bool read_piece(follower *f, adli_buf *out)
{
    char piece[PIECE];
    int64_t begin = f->fd < 0 ? 0 : adli_output_begin(f->fd);
    if (f->fd >= 0 && (f->offset < begin || f->offset > size_of(f->fd)))
        f->offset = begin;
    ssize_t got = f->fd < 0 ? 0 : pread(f->fd, piece, sizeof piece, (off_t)f->offset);
    if (got <= 0)
        return false;
    adli_buf_append(out, piece, (size_t)got);
    f->offset += got;
    return true;
}

/* The job's state is asked before the file is read: what was written before the state became "over" is
 * then in the file. */
static adli_httpd_flow follow(void *self, adli_buf *out, double now_s, double *again_s)
{
    follower *f = self;
    adli_log_state state = {0};
    for (;;) {
        bool gone =
            adli_core_log_state(f->api->core, f->ns, f->name, &state) != ADL_OK || state.over;
        if (f->fd < 0 && f->group <= state.group && open_next(f) == ADL_OK)
            continue;
        if (read_piece(f, out))
            return ADLI_FLOW_DATA;
        bool complete = f->group < state.group;
        if ((gone && !complete) || (complete && f->one_group))
            return ADLI_FLOW_END;
        if (!complete)
            break;
        if (f->fd >= 0)
            close(f->fd);
        f->fd = -1;
        f->group++;
    }
    *again_s = now_s + LOOK_EVERY_S;
    return ADLI_FLOW_WAIT;
}

static void answer_follower(adli_api *api, adli_httpd_request *request, int group, int rank,
                            bool one_group, int64_t tail)
{
    follower *f = adli_calloc(1, sizeof *f);
    if (f)
        *f = (follower){.api = api,
                        .ns = adli_strdup(adli_httpd_part(request, 0)),
                        .name = adli_strdup(adli_httpd_part(request, 1)),
                        .group = group > 0 ? group : 1,
                        .rank = rank,
                        .one_group = one_group,
                        .fd = -1,
                        .tail = tail};
    if (!f || !f->ns || !f->name) {
        if (f)
            follower_free(f);
        adli_httpd_answer_error(request, 503, "no memory to follow the log");
        return;
    }
    adli_httpd_stream stream = {.self = f, .fill = follow, .free = follower_free};
    adli_httpd_answer_stream(request, TYPE, &stream);
}

static void answer_log(adli_api *api, adli_httpd_request *request, const adli_log_state *state,
                       int group, int rank, int64_t tail)
{
    const char *ns = adli_httpd_part(request, 0), *name = adli_httpd_part(request, 1);
    int fd;
    adl_status status =
        group > 0 ? adli_core_open_log(api->core, ns, name, group, rank, &fd) : ADL_ENOENT;
    if (status == ADL_OK) {
        int64_t size = size_of(fd),
                offset = tail >= 0 ? tail_offset(fd, size, tail) : adli_output_begin(fd);
        adli_httpd_answer_file(request, TYPE, fd, offset, size - offset);
    } else if (status == ADL_ENOENT && group == state->group &&
               (rank == 0 || rank < state->replicas)) {
        adli_httpd_answer(request, 200, TYPE, "", 0); /* it has not said anything yet */
    } else if (status == ADL_ENOENT) {
        adli_httpd_answer_error(request, 404, "job %.100s/%.100s: no log of rank %d in group %d",
                                ns, name, rank, group);
    } else {
        adli_api_answer_failure(request, status);
    }
}

adli_httpd_verdict adli_api_logs(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    const char *ns = adli_httpd_part(request, 0), *name = adli_httpd_part(request, 1);
    adli_log_state state = {0};
    int64_t group, rank, tail;
    bool following;
    if (!adli_api_query_int(request, "group", 1, 1000000000, 0, &group) ||
        !adli_api_query_int(request, "rank", 0, 1000000, 0, &rank) ||
        !adli_api_query_int(request, "tail", 0, TAIL_LINES_MAX, -1, &tail) ||
        !adli_api_query_bool(request, "follow", &following))
        return ADLI_HTTPD_DONE;
    adl_status status = adli_core_log_state(api->core, ns, name, &state);
    bool one_group = group > 0;
    if (status != ADL_OK) {
        adli_api_answer_failure(request, status);
    } else if (group > state.group) {
        adli_httpd_answer_error(request, 404, "job %.100s/%.100s: no group %lld; the newest is %d",
                                ns, name, (long long)group, state.group);
    } else {
        /* Followers see everything from the first group on; who wants the tail wants the newest. */
        if (!one_group)
            group = following && tail < 0 ? 1 : state.group;
        if (following)
            answer_follower(api, request, (int)group, (int)rank, one_group, tail);
        else
            answer_log(api, request, &state, (int)group, (int)rank, tail);
    }
    return ADLI_HTTPD_DONE;
}
