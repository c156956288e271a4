/* What the files of the store share. */
#ifndef ADLI_STORE_IMPL_H
#define ADLI_STORE_IMPL_H

#include "store/store.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/stat.h>

typedef enum adli_stmt {
    STMT_ADD_JOB,
    STMT_SAVE_JOB,
    STMT_HINTS,
    STMT_ASK,
    STMT_PIN,
    STMT_REMOVE_JOB,
    STMT_DRAIN,
    STMT_UNDRAIN,
    STMT_SET,
    STMT_EVENT,
    STMT_ROUND,
    STMT_DECISION,
    STMT_SAMPLE,
    STMT_REPORT,
    STMT_REPORT_RESTART,
    STMT_REPORT_FROM,
    STMT_REPORT_THIN,
    STMT_PRUNE_EVENTS,
    STMT_PRUNE_ROUNDS,
    STMT_PRUNE_DECISIONS,
    STMT_PRUNE_SAMPLES,
    STMT_COUNT
} adli_stmt;

struct adli_store {
    char *path;
    dev_t device;
    ino_t inode;
    sqlite3 *writer, *reader;
    pthread_mutex_t write_lock; /* held from begin to commit */
    pthread_mutex_t read_lock;
    sqlite3_stmt *stmts[STMT_COUNT]; /* of the writer, made when first used */
    adl_status failed;               /* first failure of the transaction */
    char failure[256];
    int64_t new_event, new_round; /* of the transaction */
    pthread_mutex_t stats_lock;
    adli_store_stats stats;
};

/* The failure of a connection as a status, with a text that names the file. */
adl_status adli_store_failed(const adli_store *store, sqlite3 *db, const char *what);
/* Looks at the writer before anything is written: a file that is not ours, of a later version or damaged is
 * refused. *version: of its schema; 0: empty. */
adl_status adli_store_check_ours(adli_store *store, int64_t *version);
/* The writer's statement, ready for binding; NULL when the transaction has failed. */
sqlite3_stmt *adli_store_stmt(adli_store *store, adli_stmt which);
/* Runs it; a failure is remembered. */
void adli_store_run(adli_store *store, sqlite3_stmt *stmt);
/* A reader's statement, to be finalized; NULL with *status set on failure. The caller holds read_lock. */
sqlite3_stmt *adli_store_ask(adli_store *store, const char *sql, adl_status *status);

void adli_store_text(sqlite3_stmt *stmt, int at, const char *text);
const char *adli_store_column(sqlite3_stmt *stmt, int at);

/* fault.c: "adl-fault" once adli_store_fault was called, else NULL (the default). */
const char *adli_store_vfs(void);

extern const char *const adli_store_sql[STMT_COUNT];

#endif
