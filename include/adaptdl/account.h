/* What a job has had: the part of its record that policies weigh, which its scheduler keeps over restarts. */
#ifndef ADAPTDL_ACCOUNT_H
#define ADAPTDL_ACCOUNT_H

/* Times are on the clock of whoever schedules. */
typedef struct adl_account {
    double last_change_s; /* when its allocation last changed */
    double accounted_s;   /* device time is counted up to here */
    double attained_s;    /* device-seconds it has had */
    double run_s;         /* seconds during which it had replicas */
    double active_sum,
        active_weight; /* their quotient: mean number of unfinished jobs in its life */
} adl_account;

#endif
