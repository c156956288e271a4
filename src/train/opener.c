#include "train/opener.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/thread.h"
#include "train/context.h"
#include "train/env.h"
#include "train/regroup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A connection to a launcher. */
typedef struct wire {
    adli_opener base;
    adl_context *ctx;
    int fd;
    pthread_t thread;
    adli_buf line; /* the thread's: what there is of the next one */
} wire;

static void take_line(adl_context *ctx, const char *line)
{
    adli_world next;
    unsigned generation;
    adl_status status = ADL_OK;
    if (strncmp(line, "world ", 6) == 0) {
        status = adli_offer_read(line + 6, &next);
        if (status == ADL_OK) {
            status = adli_regroup_offer(ctx, &next);
            adli_world_fini(&next);
        }
    } else if (sscanf(line, "drop %9u", &generation) == 1) {
        adli_regroup_cancel(ctx, generation);
    } else {
        status = adli_fail(ADL_EPEER, "a line that is not understood: %.80s", line);
    }
    if (status != ADL_OK)
        adli_log(ctx, ADL_LOG_DEBUG, "from the launcher: %s", adl_error());
}

/* Until the connection ends. */
static void *listen_to(void *user)
{
    wire *self = user;
    char chunk[4096];
    ssize_t got;
    while ((got = recv(self->fd, chunk, sizeof chunk, 0)) > 0 || (got < 0 && errno == EINTR)) {
        for (ssize_t i = 0; i < got; i++) {
            if (chunk[i] != '\n') {
                adli_buf_append(&self->line, &chunk[i], 1);
                continue;
            }
            if (self->line.length > 0 && adli_buf_check(&self->line) == ADL_OK)
                take_line(self->ctx, self->line.data);
            adli_buf_clear(&self->line);
        }
    }
    adli_regroup_orphan(self->ctx);
    return NULL;
}

static adl_status connect_to(const char *path, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return adli_fail(ADL_EINVAL, "ADAPTDL_WORLD_SOCKET=%s: too long for a socket", path);
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && connect(*fd, (struct sockaddr *)&address, sizeof address) == 0)
        return ADL_OK;
    adl_status status = adli_fail(ADL_ENET, "ADAPTDL_WORLD_SOCKET=%s: %s", path, strerror(errno));
    if (*fd >= 0)
        close(*fd);
    return status;
}

static void say_line(adli_opener *base, const char *line)
{
    wire *self = (wire *)base;
    char text[514];
    int length = snprintf(text, sizeof text, "%s\n", line);
    if (send(self->fd, text, (size_t)length, MSG_NOSIGNAL) < 0)
        adli_log(self->ctx, ADL_LOG_DEBUG, "the launcher does not listen: %s", strerror(errno));
}

static void hang_up(adli_opener *base)
{
    wire *self = (wire *)base;
    shutdown(self->fd, SHUT_RDWR);
    pthread_join(self->thread, NULL);
    close(self->fd);
    adli_buf_fini(&self->line);
    free(self);
}

static adl_status call_launcher(adl_context *ctx, const char *path, adli_opener **out)
{
    wire *self = adli_calloc(1, sizeof *self);
    if (!self)
        return adli_fail_memory("context");
    char first[32];
    self->base = (adli_opener){say_line, hang_up};
    self->ctx = ctx;
    adli_buf_init(&self->line, ADLI_OFFER_LINE_MAX);
    adl_status status = connect_to(path, &self->fd);
    if (status == ADL_OK) {
        snprintf(first, sizeof first, "member %d", ctx->member);
        say_line(&self->base, first);
        status = adli_thread_start(&self->thread, "adl-worlds", listen_to, self);
        if (status == ADL_OK) {
            *out = &self->base;
            return ADL_OK;
        }
        close(self->fd);
    }
    free(self);
    return status;
}

adl_status adli_opener_start(adl_context *ctx)
{
    if (ctx->env.world_socket)
        return call_launcher(ctx, ctx->env.world_socket, &ctx->opener);
    /* A scheduler that opens worlds numbers its members. */
    if (ctx->env.supervisor_url && adli_env_text("ADAPTDL_MEMBER"))
        return adli_opener_over_http(ctx, &ctx->opener);
    return ADL_OK;
}

void adli_opener_stop(adl_context *ctx)
{
    adli_opener *self = ctx->opener;
    ctx->opener = NULL;
    if (self)
        self->stop(self);
}

void adli_opener_say(adl_context *ctx, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!ctx->opener)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *at = line; *at; at++)
        if (*at == '\n')
            *at = ' ';
    ctx->opener->say(ctx->opener, line);
}
