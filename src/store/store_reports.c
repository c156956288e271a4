/* What jobs measure: one row for each value of a metric at a step. */
#include "store/store_impl.h"

#include <math.h>

void adli_store_report(adli_store *store, const char *uid, const char *name,
                       const adli_store_value *value)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_REPORT);
    if (!stmt)
        return;
    adli_store_text(stmt, 1, uid);
    adli_store_text(stmt, 2, name);
    sqlite3_bind_int64(stmt, 3, value->step);
    sqlite3_bind_double(stmt, 4, value->time_s);
    if (isfinite(value->value))
        sqlite3_bind_double(stmt, 5, value->value);
    adli_store_run(store, stmt);
}

void adli_store_report_restart(adli_store *store, const char *uid, int restart)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_REPORT_RESTART);
    adli_store_text(stmt, 1, uid);
    if (stmt)
        sqlite3_bind_int(stmt, 2, restart);
    adli_store_run(store, stmt);
}

void adli_store_report_from(adli_store *store, const char *uid, const char *name, int64_t step)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_REPORT_FROM);
    adli_store_text(stmt, 1, uid);
    adli_store_text(stmt, 2, name);
    if (stmt)
        sqlite3_bind_int64(stmt, 3, step);
    adli_store_run(store, stmt);
}

void adli_store_report_thin(adli_store *store, const char *uid, const char *name)
{
    sqlite3_stmt *stmt = adli_store_stmt(store, STMT_REPORT_THIN);
    adli_store_text(stmt, 1, uid);
    adli_store_text(stmt, 2, name);
    adli_store_run(store, stmt);
}

static adl_status read_rows(adli_store *store, const char *sql, const char *uid,
                            adli_store_each_value *each, void *user)
{
    adl_status status;
    pthread_mutex_lock(&store->read_lock);
    sqlite3_stmt *stmt = adli_store_ask(store, sql, &status);
    adli_store_text(stmt, 1, uid);
    int code = SQLITE_DONE;
    while (status == ADL_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        bool known = sqlite3_column_type(stmt, 4) != SQLITE_NULL;
        adli_store_value value = {.step = sqlite3_column_int64(stmt, 2),
                                  .time_s = sqlite3_column_double(stmt, 3),
                                  .value = known ? sqlite3_column_double(stmt, 4) : NAN,
                                  .count = sqlite3_column_int(stmt, 5)};
        status = each(user, adli_store_column(stmt, 0), adli_store_column(stmt, 1), &value);
    }
    if (status == ADL_OK && code != SQLITE_DONE)
        status = adli_store_failed(store, store->reader, "metrics");
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}

adl_status adli_store_reports(adli_store *store, const char *uid, adli_store_each_value *each,
                              void *user)
{
    return read_rows(store,
                     "SELECT uid,name,step,time_s,value,1 FROM reports WHERE uid=?1 "
                     "ORDER BY name,step",
                     uid, each, user);
}

/* SQLite takes the columns beside max() from the row that has it. */
adl_status adli_store_report_ends(adli_store *store, const char *uid, adli_store_each_value *each,
                                  void *user)
{
    return read_rows(store,
                     uid ? "SELECT uid,name,max(step),time_s,value,count(*) FROM reports "
                           "WHERE uid=?1 GROUP BY name ORDER BY name"
                         : "SELECT uid,name,max(step),time_s,value,count(*) FROM reports "
                           "WHERE ?1='' GROUP BY uid,name ORDER BY uid,name",
                     uid, each, user);
}
