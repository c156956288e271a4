/* Writes the event file that tests/cli/tensorboard.sh reads back: helper_tensorboard LOGDIR. */
#include "adaptdl/tensorboard.h"

#include <math.h>
#include <stdio.h>

static adl_status write_sample(adl_tensorboard *writer)
{
    adl_status status = ADL_OK;
    for (int step = 0; step < 1000 && status == ADL_OK; step++)
        status = adl_tensorboard_scalar(writer, "Loss/train", 1.0 / (step + 1), step,
                                        1700000000.0 + 0.25 * step);
    double values[1001];
    for (int i = 0; i <= 1000; i++)
        values[i] = (i - 500) / 100.0;
    if (status == ADL_OK)
        status = adl_tensorboard_histogram(writer, "Weights", values, 1001, 5, 1700000001.0);
    if (status == ADL_OK)
        status = adl_tensorboard_scalar(writer, "not/finite", NAN, 1, 1700000002.0);
    if (status == ADL_OK)
        status =
            adl_tensorboard_text(writer, "Notes", "# h\xc3\xa9llo\n\n*world*", 3, 1700000003.0);
    return status;
}

int main(int argc, char **argv)
{
    adl_tensorboard *writer = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: helper_tensorboard LOGDIR\n");
        return 2;
    }
    adl_status status = adl_tensorboard_open(argv[1], 1700000000.0, NULL, &writer);
    if (status == ADL_OK)
        status = write_sample(writer);
    adl_status closed = adl_tensorboard_close(writer);
    if (status != ADL_OK || closed != ADL_OK) {
        fprintf(stderr, "helper_tensorboard: %s\n", adl_error());
        return 1;
    }
    return 0;
}
