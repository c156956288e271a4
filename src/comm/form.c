/* How a group comes to be: rank 0 accepts until all have arrived, the others dial. Runs on the
 * caller's thread, before the group has any of its own. */
#include "comm/group_impl.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SLEEP_MAX_MS = 50 /* how often cancelled() is asked */,
    BIND_RETRY_MS = 50,
    BIND_WAIT_MS = 5000
};

/* Sleeps until something happens; ADL_EINTR when the caller wants to stop, ADL_ETIMEOUT at the
 * deadline, both without a text. */
static adl_status nap(const adl_group_options *options, struct pollfd *entries, size_t count,
                      int64_t wake_ms, int64_t deadline_ms)
{
    if (options->cancelled && options->cancelled(options->cancel_context))
        return ADL_EINTR;
    int64_t now = adli_now_ms();
    if (now >= deadline_ms)
        return ADL_ETIMEOUT;
    if (wake_ms > deadline_ms)
        wake_ms = deadline_ms;
    poll(entries, count, adli_until_ms(wake_ms, now, SLEEP_MAX_MS));
    return ADL_OK;
}

/* How long we have waited: all of the time when it is over, less when we were cancelled. */
static int waited_ms(const adl_group_options *options, adl_status why, int64_t deadline_ms)
{
    if (why == ADL_ETIMEOUT)
        return options->connect_timeout_ms;
    return options->connect_timeout_ms - (int)(deadline_ms - adli_now_ms());
}

/* Whoever cancels a group that does not form wants to know for whom it waited. */
static adl_status cancelled(void)
{
    return adli_wrap(ADL_EINTR, "cancelled while the group was forming");
}

static adl_status form_leaf(const adl_group_options *options, const adli_identity *self,
                            const char *host, int64_t deadline_ms, adli_conn **out)
{
    adli_dialer dialer;
    adli_dialer_init(&dialer, self, 0, host, options->master_port);
    adl_status status = ADL_OK;
    while (status == ADL_OK) {
        status = adli_dialer_step(&dialer);
        if (status != ADL_OK || dialer.state == ADLI_DIAL_WELCOME)
            break;
        int64_t wake_ms = INT64_MAX;
        struct pollfd entry = adli_dialer_poll(&dialer, &wake_ms);
        adl_status why = status = nap(options, &entry, 1, wake_ms, deadline_ms);
        if (why == ADL_ETIMEOUT || why == ADL_EINTR)
            status = adli_dialer_timeout(&dialer, waited_ms(options, why, deadline_ms));
        if (why == ADL_EINTR)
            status = cancelled();
    }
    if (status == ADL_OK) {
        *out = dialer.conn;
        dialer.conn = NULL;
    }
    adli_dialer_fini(&dialer);
    return status;
}

/* The port may still be held by the group of the generation before, for a moment. Held for longer it is somebody else's, and
 * whoever started us finds another one. */
static adl_status open_listener(const adl_group_options *options, const char *host,
                                int64_t deadline_ms, int *out)
{
    int64_t start_ms = adli_now_ms();
    if (deadline_ms > start_ms + BIND_WAIT_MS)
        deadline_ms = start_ms + BIND_WAIT_MS;
    if (options->listen_fd >= 0) {
        *out = options->listen_fd;
        return ADL_OK;
    }
    const char *bind_to = adli_sock_loopback(host) ? host : NULL;
    for (;;) {
        adl_status status = adli_sock_listen(bind_to, options->master_port, out, NULL);
        if (status != ADL_ESTATE)
            return status;
        status = nap(options, NULL, 0, adli_now_ms() + BIND_RETRY_MS, deadline_ms);
        if (status == ADL_ETIMEOUT)
            return adli_fail(ADL_ENET, "%s (still after %d ms)", adl_error(),
                             (int)(deadline_ms - start_ms));
        if (status != ADL_OK)
            return cancelled();
    }
}

static adl_status accept_everyone(const adl_group_options *options, adli_acceptor *acceptor,
                                  int64_t deadline_ms)
{
    struct pollfd *entries = adli_calloc(adli_acceptor_poll_max(acceptor), sizeof *entries);
    if (!entries)
        return adli_fail_memory("accepting connections");
    adl_status status = ADL_OK;
    while (status == ADL_OK) {
        status = adli_acceptor_step(acceptor);
        if (status != ADL_OK || acceptor->missing == 0)
            break;
        size_t count = adli_acceptor_poll(acceptor, entries);
        adl_status why = status = nap(options, entries, count, INT64_MAX, deadline_ms);
        if (why == ADL_ETIMEOUT || why == ADL_EINTR)
            status = adli_acceptor_timeout(acceptor, waited_ms(options, why, deadline_ms));
        if (why == ADL_EINTR)
            status = cancelled();
    }
    free(entries);
    return status;
}

static adl_status form_root(const adl_group_options *options, const adli_identity *self,
                            const char *host, int64_t deadline_ms, adli_conn **conns)
{
    int listener;
    adli_acceptor acceptor;
    adl_status status = open_listener(options, host, deadline_ms, &listener);
    if (status == ADL_OK)
        status = adli_acceptor_init(&acceptor, self, listener, conns);
    if (status != ADL_OK)
        return status;
    for (int rank = 1; rank < self->replicas; rank++)
        adli_acceptor_expect(&acceptor, rank);
    status = accept_everyone(options, &acceptor, deadline_ms);
    if (status == ADL_OK)
        status = adli_acceptor_welcome(&acceptor);
    if (status != ADL_OK) {
        char why[ADLI_TEXT_MAX + 1];
        snprintf(why, sizeof why, "%s", adl_error());
        adli_acceptor_refuse_all(&acceptor, why);
        status = adli_fail(status, "%s", why);
    }
    adli_acceptor_fini(&acceptor);
    return status;
}

adl_status adli_group_form(adl_group *group, const adl_group_options *options)
{
    adli_identity self = {
        .purpose = ADLI_PURPOSE_CONTROL,
        .rank = group->rank,
        .replicas = group->replicas,
        .generation = group->generation,
        .secret = group->secret,
        .secret_length = group->secret_length,
    };
    const char *host = options->master_addr ? options->master_addr : "127.0.0.1";
    int64_t deadline_ms = adli_now_ms() + options->connect_timeout_ms;
    adli_conn **conns = adli_calloc((size_t)group->replicas, sizeof(adli_conn *));
    if (!conns) {
        if (options->listen_fd >= 0)
            close(options->listen_fd);
        return adli_fail_memory("a group");
    }
    adl_status status = group->rank == 0 ? form_root(options, &self, host, deadline_ms, conns)
                                         : form_leaf(options, &self, host, deadline_ms, &conns[0]);
    int64_t now = adli_now_ms();
    for (int rank = 0; rank < group->replicas; rank++) {
        group->peers[rank].conn = conns[rank];
        if (!conns[rank])
            continue;
        conns[rank]->max_payload = group->max_frame_bytes + ADLI_CALL_MAX;
        conns[rank]->last_rx_ms = now;
    }
    adli_conn *neighbour = conns[group->rank == 0 ? group->replicas - 1 : 0];
    if (status == ADL_OK)
        status = adli_sock_local(neighbour->fd, group->local);
    free(conns);
    return status;
}
