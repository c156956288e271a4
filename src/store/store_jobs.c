/* Jobs, drained nodes and settings: what a scheduler needs to go on. */
#include "store/store_impl.h"

#include <stdio.h>

#define LIFE                                                                                       \
    "phase=?2,grp=?3,failures=?4,killed=?5,group_started_s=?6,stop_since_s=?7,retry_at_s=?8,"      \
    "wanted=?9,placed=?10,started_s=?11,completed_s=?12,reason=?13,message=?14,last_change_s=?15," \
    "accounted_s=?16,attained_s=?17,run_s=?18,active_sum=?19,active_weight=?20,"                   \
    "world=?21,resized=?22,resize_cost_s=?23"

const char *const adli_store_sql[STMT_COUNT] = {
    [STMT_ADD_JOB] = "INSERT INTO jobs(uid,ns,name,spec,token,secret,created_s,last_change_s,"
                     "accounted_s) VALUES(?1,?2,?3,?4,?5,?6,?7,?7,?7)",
    [STMT_SAVE_JOB] = "UPDATE jobs SET " LIFE " WHERE uid=?1",
    [STMT_HINTS] = "UPDATE jobs SET hints=?2,restart_cost_s=?3 WHERE uid=?1",
    [STMT_ASK] = "UPDATE jobs SET deleted=?2 WHERE uid=?1", /* named when that was all there was */
    [STMT_PIN] = "UPDATE jobs SET pin=?2 WHERE uid=?1",
    [STMT_REMOVE_JOB] = "DELETE FROM jobs WHERE uid=?1",
    [STMT_DRAIN] = "INSERT OR REPLACE INTO drained(node) VALUES(?1)",
    [STMT_UNDRAIN] = "DELETE FROM drained WHERE node=?1",
    [STMT_SET] = "INSERT OR REPLACE INTO meta(key,value) VALUES(?1,?2)",
    [STMT_EVENT] = "INSERT INTO events(time_s,type,job,message,fields) VALUES(?1,?2,?3,?4,?5)",
    [STMT_ROUND] = "INSERT OR REPLACE INTO rounds(round,time_s,duration_s,jobs,changed) "
                   "VALUES(?1,?2,?3,?4,?5)",
    [STMT_DECISION] = "INSERT INTO decisions(uid,round,text) VALUES(?1,?2,?3)",
    [STMT_SAMPLE] =
        "INSERT INTO samples(uid,time_s,phase,replicas,batch_size,throughput,efficiency,"
        "goodput,progress) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
    [STMT_REPORT] = "INSERT OR REPLACE INTO reports(uid,name,step,time_s,value) "
                    "VALUES(?1,?2,?3,?4,?5)",
    [STMT_REPORT_RESTART] = "UPDATE jobs SET reports_restart=?2 WHERE uid=?1",
    [STMT_REPORT_FROM] = "DELETE FROM reports WHERE uid=?1 AND name=?2 AND step>=?3",
    [STMT_REPORT_THIN] =
        "DELETE FROM reports WHERE uid=?1 AND name=?2 AND step IN (SELECT step FROM (SELECT step,"
        "row_number() OVER (ORDER BY step DESC) AS place,min(step) OVER () AS first "
        "FROM reports WHERE uid=?1 AND name=?2) WHERE place%2=0 AND step<>first)",
    [STMT_PRUNE_EVENTS] = "DELETE FROM events WHERE seq<=(SELECT max(seq) FROM events)-?1",
    [STMT_PRUNE_ROUNDS] = "DELETE FROM rounds WHERE round<=(SELECT max(round) FROM rounds)-?1",
    [STMT_PRUNE_DECISIONS] =
        "DELETE FROM decisions WHERE seq IN (SELECT d.seq FROM jobs j JOIN decisions d "
        "ON d.uid=j.uid AND d.seq<=(SELECT seq FROM decisions WHERE uid=j.uid "
        "ORDER BY seq DESC LIMIT 1 OFFSET ?1))",
    [STMT_PRUNE_SAMPLES] =
        "DELETE FROM samples WHERE seq IN (SELECT s.seq FROM jobs j JOIN samples s "
        "ON s.uid=j.uid AND s.seq<=(SELECT seq FROM samples WHERE uid=j.uid "
        "ORDER BY seq DESC LIMIT 1 OFFSET ?1))",
};

void adli_store_add_job(adli_store *store, const adli_store_job *job)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_ADD_JOB);
    const char *const texts[] = {job->uid, job->ns, job->name, job->spec, job->token, job->secret};
    for (int i = 0; stmt && i < 6; i++)
        adli_store_text(stmt, i + 1, texts[i]);
    if (stmt)
        sqlite3_bind_double(stmt, 7, job->created_s);
    adli_store_run(store, stmt);
}

void adli_store_save_job(adli_store *store, const adli_store_job *job)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_SAVE_JOB);
    if (!stmt)
        return;
    adli_store_text(stmt, 1, job->uid);
    sqlite3_bind_int(stmt, 2, job->phase);
    sqlite3_bind_int(stmt, 3, job->group);
    sqlite3_bind_int(stmt, 4, job->failures);
    sqlite3_bind_int(stmt, 5, job->killed);
    sqlite3_bind_double(stmt, 6, job->group_started_s);
    sqlite3_bind_double(stmt, 7, job->stop_since_s);
    sqlite3_bind_double(stmt, 8, job->retry_at_s);
    adli_store_text(stmt, 9, job->wanted);
    adli_store_text(stmt, 10, job->placed);
    sqlite3_bind_double(stmt, 11, job->started_s);
    sqlite3_bind_double(stmt, 12, job->completed_s);
    adli_store_text(stmt, 13, job->reason);
    adli_store_text(stmt, 14, job->message);
    const adl_account *account = &job->account;
    const double numbers[] = {account->last_change_s, account->accounted_s, account->attained_s,
                              account->run_s,         account->active_sum,  account->active_weight};
    for (int i = 0; i < 6; i++)
        sqlite3_bind_double(stmt, 15 + i, numbers[i]);
    adli_store_text(stmt, 21, job->world);
    adli_store_text(stmt, 22, job->resized);
    sqlite3_bind_double(stmt, 23, job->resize_cost_s);
    adli_store_run(store, stmt);
}

void adli_store_hints(adli_store *store, const char *uid, const char *hints, double restart_cost_s)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_HINTS);
    adli_store_text(stmt, 1, uid);
    adli_store_text(stmt, 2, hints);
    if (stmt)
        sqlite3_bind_double(stmt, 3, restart_cost_s);
    adli_store_run(store, stmt);
}

static void run_with(adli_store *store, adli_stmt which, const char *text)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, which);
    adli_store_text(stmt, 1, text);
    adli_store_run(store, stmt);
}

void adli_store_mark(adli_store *store, const char *uid, adli_asked asked)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_ASK);
    adli_store_text(stmt, 1, uid);
    if (stmt)
        sqlite3_bind_int(stmt, 2, (int)asked);
    adli_store_run(store, stmt);
}

void adli_store_pin(adli_store *store, const char *uid, int replicas)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_PIN);
    adli_store_text(stmt, 1, uid);
    if (stmt)
        sqlite3_bind_int(stmt, 2, replicas);
    adli_store_run(store, stmt);
}

void adli_store_remove_job(adli_store *store, const char *uid)
{
    run_with(store, STMT_REMOVE_JOB, uid);
}

void adli_store_drain(adli_store *store, const char *node, bool drained)
{
    run_with(store, drained ? STMT_DRAIN : STMT_UNDRAIN, node);
}

void adli_store_set(adli_store *store, const char *key, const char *value)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_SET);
    adli_store_text(stmt, 1, key);
    adli_store_text(stmt, 2, value);
    adli_store_run(store, stmt);
}

static adli_store_job read_job(sqlite3_stmt *stmt)
{
    int at = 0;
    adli_store_job job = {0};
    const char **texts[] = {&job.uid, &job.ns, &job.name, &job.spec, &job.token, &job.secret};
    for (int i = 0; i < 6; i++)
        *texts[i] = adli_store_column(stmt, at++);
    job.created_s = sqlite3_column_double(stmt, at++);
    job.phase = sqlite3_column_int(stmt, at++);
    job.group = sqlite3_column_int(stmt, at++);
    job.failures = sqlite3_column_int(stmt, at++);
    job.killed = sqlite3_column_int(stmt, at++);
    job.asked = (adli_asked)sqlite3_column_int(stmt, at++);
    job.group_started_s = sqlite3_column_double(stmt, at++);
    job.stop_since_s = sqlite3_column_double(stmt, at++);
    job.retry_at_s = sqlite3_column_double(stmt, at++);
    job.wanted = adli_store_column(stmt, at++);
    job.placed = adli_store_column(stmt, at++);
    job.started_s = sqlite3_column_double(stmt, at++);
    job.completed_s = sqlite3_column_double(stmt, at++);
    job.reason = adli_store_column(stmt, at++);
    job.message = adli_store_column(stmt, at++);
    adl_account *account = &job.account;
    double *numbers[] = {&account->last_change_s, &account->accounted_s, &account->attained_s,
                         &account->run_s,         &account->active_sum,  &account->active_weight};
    for (int i = 0; i < 6; i++)
        *numbers[i] = sqlite3_column_double(stmt, at++);
    job.hints = adli_store_column(stmt, at++);
    job.restart_cost_s = sqlite3_column_double(stmt, at++);
    job.reports_restart = sqlite3_column_int(stmt, at++);
    job.world = adli_store_column(stmt, at++);
    job.resized = adli_store_column(stmt, at++);
    job.resize_cost_s = sqlite3_column_double(stmt, at++);
    job.pin = sqlite3_column_int(stmt, at++);
    return job;
}

adl_status adli_store_jobs(adli_store *store,
                           adl_status (*each)(void *user, const adli_store_job *job), void *user)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt = adli_store_ask(
        store,
        "SELECT uid,ns,name,spec,token,secret,created_s,phase,grp,failures,killed,deleted,"
        "group_started_s,stop_since_s,retry_at_s,wanted,placed,started_s,completed_s,reason,"
        "message,last_change_s,accounted_s,attained_s,run_s,active_sum,active_weight,hints,"
        "restart_cost_s,reports_restart,world,resized,resize_cost_s,pin FROM jobs ORDER BY seq",
        &status);
    int code = SQLITE_DONE;
    while (status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        adli_store_job job = read_job(stmt);
        status = each(user, &job);
    }
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "jobs");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}

/* The first column of the one row that sql finds for key. ENOENT: none. */
static adl_status look_up(adli_store *store, const char *sql, const char *key, adli_buf *out)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt = adli_store_ask(store, sql, &status);
    adli_store_text(stmt, 1, key);
    int code = stmt ? sqlite3_step(stmt) : SQLITE_ERROR;
    if (code == SQLITE_ROW)
        adli_buf_puts(out, adli_store_column(stmt, 0));
    else if (status == ADL_OK && code == SQLITE_DONE)
        status = adli_fail(ADL_ENOENT, "no such entry: %s", key);
    else if (status == ADL_OK)
        status = adli_store_failed(store, store->reader, sql);
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_store_spec(adli_store *store, const char *uid, adli_buf *out)
{
    return look_up(store, "SELECT spec FROM jobs WHERE uid=?1", uid, out);
}

adl_status adli_store_get(adli_store *store, const char *key, char *value, size_t size)
{
    adli_buf buf;
    adli_buf_init(&buf, size - 1);
    adl_status status = look_up(store, "SELECT value FROM meta WHERE key=?1", key, &buf);
    snprintf(value, size, "%s", status == ADL_OK && buf.data ? buf.data : "");
    adli_buf_fini(&buf);
    return status == ADL_ENOENT ? ADL_OK : status;
}

adl_status adli_store_drained(adli_store *store, adl_status (*each)(void *user, const char *node),
                              void *user)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt = adli_store_ask(store, "SELECT node FROM drained", &status);
    int code = SQLITE_DONE;
    while (status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW)
        status = each(user, adli_store_column(stmt, 0));
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "drained nodes");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}
