/* Workers: handlers that may wait for a disk run here, with their connection suspended, so that an event
 * thread never holds up its other clients. Each class of work has workers of its own: unpacking uploads keeps no replica
 * from reporting. */
#include "httpd/impl.h"

#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void run_one(adli_httpd *httpd, conn *c)
{
    adli_httpd_request *request = &c->request;
    pthread_mutex_unlock(&httpd->lock);
    if (request->route->handle(httpd->options.user, request) != ADLI_HTTPD_DONE ||
        request->answer == ANSWER_NONE)
        adli_httpd_answer_error(request, 500, "the request was not answered");
    pthread_mutex_lock(&httpd->lock);
    c->state = CONN_ANSWER;
    c->since_s = adli_monotonic_s();
    MHD_resume_connection(c->mhd);
}

static void *work(void *user)
{
    struct work_class *of = user;
    adli_httpd *httpd = of->httpd;
    pthread_mutex_lock(&httpd->lock);
    for (;;) {
        while (!of->first && !httpd->halted)
            pthread_cond_wait(&of->there, &httpd->lock);
        conn *c = of->first;
        if (!c)
            break;
        of->first = c->work_next;
        if (!of->first)
            of->last = NULL;
        run_one(httpd, c);
    }
    pthread_mutex_unlock(&httpd->lock);
    return NULL;
}

bool adli_work_push(conn *c)
{
    adli_httpd *httpd = c->door->httpd;
    struct work_class *of = &httpd->classes[c->request.route->slow - 1];
    pthread_mutex_lock(&httpd->lock);
    bool pushed = !httpd->halted && !c->doomed;
    if (pushed) {
        c->state = CONN_WORK;
        c->work_next = NULL;
        if (of->last)
            of->last->work_next = c;
        else
            of->first = c;
        of->last = c;
        MHD_suspend_connection(c->mhd);
        pthread_cond_signal(&of->there);
    }
    pthread_mutex_unlock(&httpd->lock);
    return pushed;
}

adl_status adli_work_start(adli_httpd *httpd)
{
    int count = ADLI_HTTPD_CLASSES * (httpd->options.workers > 0 ? httpd->options.workers : 2);
    sigset_t all, before;
    httpd->workers = adli_calloc((size_t)count, sizeof *httpd->workers);
    if (!httpd->workers)
        return adli_fail_memory("HTTP workers");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&httpd->ticker, NULL, adli_httpd_tick, httpd);
    httpd->ticking = failure == 0;
    while (failure == 0 && httpd->worker_count < count) {
        failure = pthread_create(&httpd->workers[httpd->worker_count], NULL, work,
                                 &httpd->classes[httpd->worker_count % ADLI_HTTPD_CLASSES]);
        httpd->worker_count += failure == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure ? adli_fail(ADL_EIO, "HTTP server: thread: %s", strerror(failure)) : ADL_OK;
}

void adli_work_stop(adli_httpd *httpd)
{
    pthread_mutex_lock(&httpd->lock);
    httpd->halted = true;
    for (int i = 0; i < ADLI_HTTPD_CLASSES; i++)
        pthread_cond_broadcast(&httpd->classes[i].there);
    pthread_cond_signal(&httpd->tick);
    pthread_mutex_unlock(&httpd->lock);
    for (int i = 0; i < httpd->worker_count; i++)
        pthread_join(httpd->workers[i], NULL);
    if (httpd->ticking)
        pthread_join(httpd->ticker, NULL);
    free(httpd->workers);
}
