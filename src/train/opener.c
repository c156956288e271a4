#include "train/opener.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/thread.h"
#include "train/context.h"
#include "train/regroup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct adli_opener {
    adl_context *ctx;
    int fd;
    pthread_t thread;
    adli_buf line; /* the thread's: what there is of the next one */
};

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
    adli_opener *self = user;
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

adl_status adli_opener_start(adl_context *ctx)
{
    const char *path = ctx->env.world_socket;
    if (!path)
        return ADL_OK;
    adli_opener *self = adli_calloc(1, sizeof *self);
    if (!self)
        return adli_fail_memory("context");
    self->ctx = ctx;
    adli_buf_init(&self->line, ADLI_OFFER_LINE_MAX);
    adl_status status = connect_to(path, &self->fd);
    if (status == ADL_OK) {
        ctx->opener = self;
        adli_opener_say(ctx, "member %d", ctx->member);
        status = adli_thread_start(&self->thread, "adl-worlds", listen_to, self);
        if (status == ADL_OK)
            return ADL_OK;
        ctx->opener = NULL;
        close(self->fd);
    }
    free(self);
    return status;
}

void adli_opener_stop(adl_context *ctx)
{
    adli_opener *self = ctx->opener;
    if (!self)
        return;
    ctx->opener = NULL;
    shutdown(self->fd, SHUT_RDWR);
    pthread_join(self->thread, NULL);
    close(self->fd);
    adli_buf_fini(&self->line);
    free(self);
}

void adli_opener_say(adl_context *ctx, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!ctx->opener)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    for (char *at = line; *at; at++)
        if (*at == '\n')
            *at = ' ';
    strcat(line, "\n");
    if (send(ctx->opener->fd, line, strlen(line), MSG_NOSIGNAL) < 0)
        adli_log(ctx, ADL_LOG_DEBUG, "the launcher does not listen: %s", strerror(errno));
}
