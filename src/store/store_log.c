/* What happened: events, rounds, decisions, samples. Kept in numbers, oldest out. */
#include "store/store_impl.h"

#include "base/json_write.h"

#include <math.h>

enum { MORE_MAX = 2 << 20 };

int64_t adli_store_event(adli_store *store, double time_s, const char *type, const char *job,
                         const char *message, const char *fields)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_EVENT);
    if (!stmt)
        return 0;
    sqlite3_bind_double(stmt, 1, time_s);
    adli_store_text(stmt, 2, type);
    adli_store_text(stmt, 3, job);
    adli_store_text(stmt, 4, message);
    /* a file format: as they go behind the other members */
    adli_buf more;
    adli_buf_init(&more, MORE_MAX);
    if (fields && *fields)
        adli_buf_printf(&more, ",%s", fields);
    if (adli_buf_check(&more) != ADL_OK)
        adli_buf_clear(&more);
    adli_store_text(stmt, 5, more.data ? more.data : "");
    adli_store_run(store, stmt);
    adli_buf_fini(&more);
    if (store->failed == ADL_OK)
        store->new_event = sqlite3_last_insert_rowid(store->writer);
    return store->failed == ADL_OK ? store->new_event : 0;
}

void adli_store_round(adli_store *store, int64_t round, double time_s, double duration_s, int jobs,
                      int changed)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_ROUND);
    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, round);
    sqlite3_bind_double(stmt, 2, time_s);
    sqlite3_bind_double(stmt, 3, duration_s);
    sqlite3_bind_int(stmt, 4, jobs);
    sqlite3_bind_int(stmt, 5, changed);
    adli_store_run(store, stmt);
    store->new_round = round;
}

void adli_store_decision(adli_store *store, const char *uid, int64_t round, const char *text)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_DECISION);
    if (!stmt)
        return;
    adli_store_text(stmt, 1, uid);
    sqlite3_bind_int64(stmt, 2, round);
    adli_store_text(stmt, 3, text);
    adli_store_run(store, stmt);
}

static void bind_known(sqlite3_stmt *stmt, int at, double value)
{
    if (isfinite(value))
        sqlite3_bind_double(stmt, at, value);
    else
        sqlite3_bind_null(stmt, at);
}

void adli_store_add_sample(adli_store *store, const char *uid, const adli_store_sample *sample)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_SAMPLE);
    if (!stmt)
        return;
    adli_store_text(stmt, 1, uid);
    sqlite3_bind_double(stmt, 2, sample->time_s);
    sqlite3_bind_int(stmt, 3, sample->phase);
    sqlite3_bind_int(stmt, 4, sample->replicas);
    bind_known(stmt, 5, sample->batch_size);
    bind_known(stmt, 6, sample->throughput);
    bind_known(stmt, 7, sample->efficiency);
    bind_known(stmt, 8, sample->goodput);
    bind_known(stmt, 9, sample->progress);
    adli_store_run(store, stmt);
}

static void prune(adli_store *store, adli_stmt which, int keep)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, which);
    if (stmt)
        sqlite3_bind_int(stmt, 1, keep);
    adli_store_run(store, stmt);
}

void adli_store_prune(adli_store *store, const adli_store_limits *limits)
{
    prune(store, STMT_PRUNE_EVENTS, limits->events);
    prune(store, STMT_PRUNE_ROUNDS, limits->rounds);
    prune(store, STMT_PRUNE_DECISIONS, limits->decisions_per_job);
    prune(store, STMT_PRUNE_SAMPLES, limits->samples_per_job);
}

static void put_event(adli_buf *out, sqlite3_stmt *stmt)
{
    const char *job = adli_store_column(stmt, 3);
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "seq", sqlite3_column_int64(stmt, 0));
    adli_jw_number(out, "time", sqlite3_column_double(stmt, 1));
    adli_jw_text(out, "type", adli_store_column(stmt, 2));
    adli_jw_text(out, "job", *job ? job : NULL);
    adli_jw_text(out, "message", adli_store_column(stmt, 4));
    adli_buf_printf(out, "%s}\n", adli_store_column(stmt, 5));
}

adl_status adli_store_events(adli_store *store, const char *job, int limit, int64_t *seq,
                             adli_buf *out)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt = adli_store_ask(
        store,
        *job ? "SELECT seq,time_s,type,job,message,fields FROM events WHERE seq>?1 AND job=?3 "
               "ORDER BY seq LIMIT ?2"
             : "SELECT seq,time_s,type,job,message,fields FROM events WHERE seq>?1 "
               "ORDER BY seq LIMIT ?2",
        &status);
    if (stmt) {
        sqlite3_bind_int64(stmt, 1, *seq);
        sqlite3_bind_int(stmt, 2, limit);
        if (*job)
            adli_store_text(stmt, 3, job);
    }
    int code = SQLITE_DONE;
    while (status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        put_event(out, stmt);
        *seq = sqlite3_column_int64(stmt, 0);
        status = adli_buf_check(out);
    }
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "events");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}

adl_status adli_store_decisions(adli_store *store, const char *uid, int limit, adli_buf *out)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt =
        adli_store_ask(store,
                       uid ? "SELECT text FROM decisions WHERE uid=?2 ORDER BY seq DESC LIMIT ?1"
                           : "SELECT text FROM decisions ORDER BY seq DESC LIMIT ?1",
                       &status);
    if (stmt)
        sqlite3_bind_int(stmt, 1, limit);
    if (uid)
        adli_store_text(stmt, 2, uid);
    int code = SQLITE_DONE;
    for (int i = 0; status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_buf_puts(out, adli_store_column(stmt, 0));
        status = adli_buf_check(out);
    }
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "decisions");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}

static double known(sqlite3_stmt *stmt, int at)
{
    return sqlite3_column_type(stmt, at) == SQLITE_NULL ? NAN : sqlite3_column_double(stmt, at);
}

adl_status adli_store_samples(adli_store *store, const char *uid,
                              void (*each)(void *user, const adli_store_sample *sample), void *user)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt =
        adli_store_ask(store,
                       "SELECT time_s,phase,replicas,batch_size,throughput,efficiency,goodput,"
                       "progress FROM samples WHERE uid=?1 ORDER BY seq",
                       &status);
    adli_store_text(stmt, 1, uid);
    int code = SQLITE_DONE;
    while (status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        adli_store_sample sample = {sqlite3_column_double(stmt, 0),
                                    sqlite3_column_int(stmt, 1),
                                    sqlite3_column_int(stmt, 2),
                                    known(stmt, 3),
                                    known(stmt, 4),
                                    known(stmt, 5),
                                    known(stmt, 6),
                                    known(stmt, 7)};
        each(user, &sample);
    }
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "samples");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}
