#include "backend/plan.h"

#include "backend/record.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const plan_file = "plan";

adl_status adli_plan_write(int dir, const adli_plan *plan)
{
    adli_buf buf;
    adli_buf_init(&buf, ADLI_RECORD_MAX_BYTES);
    adli_record_put_int(&buf, "replicas", plan->replicas);
    adli_record_put_int(&buf, "port", plan->port);
    adli_record_put_int(&buf, "cgroup", plan->cgroups.kind);
    adli_record_put(&buf, "cgroup0", plan->cgroups.path[0]);
    adli_record_put(&buf, "cgroup1", plan->cgroups.path[1]);
    adli_record_put(&buf, "refused", plan->refused);
    adli_record_put(&buf, "message", plan->message);
    for (int rank = 0; rank < plan->replicas; rank++) {
        adli_record_put(&buf, "node", plan->nodes[rank]);
        adli_record_put(&buf, "gpus", plan->gpus[rank]);
    }
    adl_status status = adli_record_write(dir, plan_file, &buf, true);
    adli_buf_fini(&buf);
    return status;
}

static bool next_path(const adli_buf *buf, size_t *at, const char *name, char *out)
{
    const char *text = adli_record_next(buf, at, name);
    return text && snprintf(out, ADLI_CGROUP_PATH, "%s", text) < ADLI_CGROUP_PATH;
}

static adl_status decode_head(adli_plan *plan, size_t *at)
{
    int64_t replicas, port, kind;
    adl_status status = adli_record_next_int(&plan->text, at, "replicas", &replicas);
    if (status == ADL_OK)
        status = adli_record_next_int(&plan->text, at, "port", &port);
    if (status == ADL_OK)
        status = adli_record_next_int(&plan->text, at, "cgroup", &kind);
    if (status != ADL_OK)
        return status;
    if (replicas < 1 || replicas > ADLI_REPLICAS_MAX || port < 0 || port > 65535 || kind < 0 ||
        kind > ADLI_CGROUP_V2)
        return adli_fail(ADL_ECORRUPT, "a number is out of range");
    plan->replicas = (int)replicas;
    plan->port = (int)port;
    plan->cgroups.kind = (adli_cgroup_kind)kind;
    if (!next_path(&plan->text, at, "cgroup0", plan->cgroups.path[0]) ||
        !next_path(&plan->text, at, "cgroup1", plan->cgroups.path[1]) ||
        !(plan->refused = adli_record_next(&plan->text, at, "refused")) ||
        !(plan->message = adli_record_next(&plan->text, at, "message")))
        return adli_fail(ADL_ECORRUPT, "a field is missing");
    return ADL_OK;
}

static adl_status decode(adli_plan *plan)
{
    size_t at = 0;
    adl_status status = decode_head(plan, &at);
    if (status != ADL_OK)
        return status;
    plan->nodes = adli_calloc((size_t)plan->replicas, sizeof *plan->nodes);
    plan->gpus = adli_calloc((size_t)plan->replicas, sizeof *plan->gpus);
    if (!plan->nodes || !plan->gpus)
        return adli_fail_memory("a plan");
    for (int rank = 0; rank < plan->replicas; rank++) {
        plan->nodes[rank] = adli_record_next(&plan->text, &at, "node");
        plan->gpus[rank] = adli_record_next(&plan->text, &at, "gpus");
        if (!plan->nodes[rank] || !plan->gpus[rank])
            return adli_fail(ADL_ECORRUPT, "rank %d is missing", rank);
    }
    return ADL_OK;
}

adl_status adli_plan_read(int dir, adli_plan **out)
{
    adl_status status;
    adli_plan *plan = *out = adli_calloc(1, sizeof *plan);
    if (!plan)
        return adli_fail_memory("a plan");
    adli_buf_init(&plan->text, ADLI_RECORD_MAX_BYTES);
    status = adli_record_read(dir, plan_file, &plan->text);
    if (status == ADL_OK && (status = decode(plan)) != ADL_OK)
        status = adli_wrap(status, "%s", plan_file);
    if (status != ADL_OK) {
        adli_plan_free(plan);
        *out = NULL;
    }
    return status;
}

void adli_plan_free(adli_plan *plan)
{
    if (!plan)
        return;
    free(plan->nodes);
    free(plan->gpus);
    adli_buf_fini(&plan->text);
    free(plan);
}
