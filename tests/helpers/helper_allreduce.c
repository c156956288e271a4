/* One replica for tests/cli/netns_allreduce.sh: helper_allreduce RANK REPLICAS ADDRESS PORT ROUNDS
 * auto|shm|tcp. Forms a group with a secret and a reducer, checks ROUNDS all-reduces against the true
 * sums (0: goes on until it fails), and leaves in order. Prints "running PID" after the first, then
 * "done TRANSPORT ROUNDS" or the one line of the failure. */
#include "adaptdl/allreduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what)
{
    printf("failed %s: %s\n", what, adl_error());
    fflush(stdout);
    return 1;
}

/* The values are small integers, so sums are exact. Returns 0, or 1 with a line printed. */
static int round_trip(adl_reducer *reducer, int rank, int replicas, int round)
{
    static const size_t sizes[] = {1, 1000, 100003, 700000};
    size_t n = sizes[round % 4];
    float *data = malloc(n * sizeof *data);
    double norm = rank;
    uint64_t ticket;
    for (size_t i = 0; i < n; i++)
        data[i] = (float)((int)(i % 17) * (rank + 1));
    adl_status status = adl_reducer_start(reducer, data, n, &norm, 1, &ticket);
    if (status == ADL_OK)
        status = adl_reducer_wait(reducer, ticket, -1);
    int bad = status == ADL_OK ? 0 : fail("allreduce");
    float factor = (float)(replicas * (replicas + 1) / 2);
    for (size_t i = 0; i < n && !bad; i++) {
        if (data[i] != (float)(int)(i % 17) * factor)
            bad = printf("failed: element %zu of round %d is %g\n", i, round, (double)data[i]);
    }
    if (!bad && norm != replicas * (replicas - 1) / 2)
        bad = printf("failed: the doubles' sum is %g\n", norm);
    free(data);
    return bad != 0;
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return 2;
    int rank = atoi(argv[1]), replicas = atoi(argv[2]), rounds = atoi(argv[5]), done = 0, bad = 0;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.rank = rank;
    options.replicas = replicas;
    options.master_addr = argv[3];
    options.master_port = atoi(argv[4]);
    options.connect_timeout_ms = 30000;
    options.peer_timeout_ms = 2000;
    options.secret = "between network namespaces";
    options.secret_length = 26;
    adl_reducer_options reducing = ADL_REDUCER_OPTIONS_INIT;
    reducing.transport = strcmp(argv[6], "tcp") == 0   ? ADL_TRANSPORT_TCP
                         : strcmp(argv[6], "shm") == 0 ? ADL_TRANSPORT_SHM
                                                       : ADL_TRANSPORT_AUTO;
    reducing.average = false;
    adl_group *group = NULL;
    adl_reducer *reducer = NULL;
    if (adl_group_new(&options, &group) != ADL_OK)
        return fail("group");
    if (adl_reducer_new(group, &reducing, &reducer) != ADL_OK)
        bad = fail("reducer");
    for (; !bad && (rounds == 0 || done < rounds); done++) {
        bad = round_trip(reducer, rank, replicas, done);
        if (done == 0 && !bad) {
            printf("running %d\n", (int)getpid());
            fflush(stdout);
        }
    }
    static const char *const names[] = {"auto", "shm", "tcp", "none", "tiers"};
    const char *name = reducer ? names[adl_reducer_transport(reducer)] : "";
    adl_reducer_free(reducer);
    if (!bad && adl_group_close(group, 30000) != ADL_OK)
        bad = fail("close");
    adl_group_free(group);
    if (!bad)
        printf("done %s %d\n", name, done);
    return bad;
}
