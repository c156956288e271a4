/* Records of the local backend, and what is made of them: any bytes as a file, and any fields with the right sum as a plan
 * and as a result. What is read is within its bounds, and a plan that is written again is the same. */
#include "backend/local/claim.h"
#include "backend/local/plan.h"
#include "backend/local/record.h"
#include "base/dirs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[] = "/tmp/adl-fuzz-record-XXXXXX";

static void clear(void)
{
    adli_dirs_remove(AT_FDCWD, directory);
}

static void put(int dir, const char *name, const void *data, size_t size)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

static void read_plan(int dir)
{
    adli_start_plan *plan, *again;
    if (adli_start_plan_read(dir, "plan", &plan) != ADL_OK)
        return;
    for (int i = 0; i < plan->count; i++)
        if (plan->members[i] < 0 || (i > 0 && plan->members[i] <= plan->members[i - 1]) ||
            strlen(plan->nodes[i]) + strlen(plan->gpus[i]) > plan->text.length)
            abort();
    if (plan->count < 1 || plan->port < 0 || plan->port > 65535)
        abort();
    unlinkat(dir, "plan-0", 0);
    if (adli_start_plan_write(dir, "plan-0", plan) != ADL_OK ||
        adli_start_plan_read(dir, "plan-0", &again) != ADL_OK || again->count != plan->count ||
        again->port != plan->port || strcmp(again->nodes[0], plan->nodes[0]) != 0)
        abort();
    adli_start_plan_free(again);
    adli_start_plan_free(plan);
}

static void read_result(int dir)
{
    adli_result result;
    if (adli_result_read(dir, 0, &result) == ADL_OK &&
        (result.state < ADLI_MEMBER_SUCCEEDED || result.state > ADLI_MEMBER_FAILED ||
         !memchr(result.message, 0, sizeof result.message)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int dir = -1;
    char sum[21]; /* with its NUL */
    if (dir < 0) {
        if (!mkdtemp(directory) || (dir = open(directory, O_RDONLY | O_CLOEXEC)) < 0)
            abort();
        atexit(clear);
    }
    put(dir, "plan", data, size);
    put(dir, "0.result", data, size);
    read_plan(dir);
    read_result(dir);
    /* The same with the sum that makes a record of it; lines are fields. */
    char *fields = malloc(size + sizeof sum + 1);
    if (!fields)
        return 0;
    for (size_t i = 0; i < size; i++)
        fields[i] = data[i] == '\n' ? '\0' : (char)data[i];
    snprintf(sum, sizeof sum, "sum=%016llx", (unsigned long long)adli_record_sum(fields, size));
    memcpy(fields + size, sum, sizeof sum);
    put(dir, "plan", fields, size + sizeof sum);
    put(dir, "0.result", fields, size + sizeof sum);
    free(fields);
    read_plan(dir);
    read_result(dir);
    return 0;
}
