/* From measured step times to a decision: fit the step-time model, then ask for the best batch size
 * and the speedup at each replica count. Build: cc goodput.c -ladaptdl */
#include <adaptdl/fit.h>
#include <adaptdl/goodput.h>
#include <adaptdl/speedup.h>

#include <stdio.h>

int main(void)
{
    /* nodes, replicas, examples per replica, seconds to accumulate, seconds with the optimizer
     * step */
    const adl_profile_point measured[] = {
        {1, 1, 128, 0.108, 0.108, 0}, {1, 1, 256, 0.205, 0.205, 0}, {1, 2, 128, 0.109, 0.131, 0},
        {1, 4, 128, 0.108, 0.136, 0}, {2, 8, 128, 0.107, 0.172, 0}, {2, 8, 256, 0.206, 0.254, 0},
    };
    adl_fit_result fit;
    adl_speedup *speedup = NULL;
    if (adl_fit(measured, sizeof measured / sizeof measured[0], &fit) != ADL_OK)
        goto fail;

    const adl_goodput job = {
        .perf = fit.perf, .grad = {.sqr = 0.01, .var = 0.5}, .init_batch_size = 128};
    const adl_batch_limits limits = {.max_batch_size = 8192, .max_local_bsz = 512};
    if (adl_speedup_new(&job, &limits, measured, sizeof measured / sizeof measured[0], 16,
                        &speedup) != ADL_OK)
        goto fail;

    printf("replicas  batch  goodput/s  speedup\n");
    for (int replicas = 1; replicas <= 16; replicas *= 2) {
        int nodes = (replicas + 3) / 4; /* four devices in each */
        adl_batch_choice best = adl_speedup_choice(speedup, adl_shape_of(nodes, replicas));
        printf("%8d %6d %10.1f %8.2f\n", replicas,
               replicas * best.local_bsz * (best.accum_steps + 1), best.goodput,
               adl_speedup_get(speedup, adl_shape_of(nodes, replicas)));
    }
    adl_speedup_free(speedup);
    return 0;
fail:
    fprintf(stderr, "goodput: %s\n", adl_error());
    return 1;
}
