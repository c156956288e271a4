#include "backend/local/plan.h"

#include "backend/local/record.h"
#include "backend/backend.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members 0, 1, 2 ... are not named: so it was when a plan was for ranks. */
static bool counted(const adli_start_plan *plan)
{
    for (int i = 0; i < plan->count; i++)
        if (plan->members[i] != i)
            return false;
    return true;
}

adl_status adli_start_plan_write(int dir, const char *name, const adli_start_plan *plan)
{
    adli_buf buf;
    bool plain = counted(plan);
    adli_buf_init(&buf, ADLI_RECORD_MAX_BYTES);
    adli_record_put_int(&buf, "replicas", plan->count);
    adli_record_put_int(&buf, "port", plan->port);
    adli_record_put_int(&buf, "cgroup", plan->cgroups.kind);
    adli_record_put(&buf, "cgroup0", plan->cgroups.path[0]);
    adli_record_put(&buf, "cgroup1", plan->cgroups.path[1]);
    adli_record_put(&buf, "refused", plan->refused);
    adli_record_put(&buf, "message", plan->message);
    for (int i = 0; i < plan->count; i++) {
        if (!plain)
            adli_record_put_int(&buf, "member", plan->members[i]);
        adli_record_put(&buf, "node", plan->nodes[i]);
        adli_record_put(&buf, "gpus", plan->gpus[i]);
    }
    adl_status status = adli_record_write(dir, name, &buf, true);
    adli_buf_fini(&buf);
    return status;
}

static bool next_path(const adli_buf *buf, size_t *at, const char *name, char *out)
{
    const char *text = adli_record_next(buf, at, name);
    return text && snprintf(out, ADLI_CGROUP_PATH, "%s", text) < ADLI_CGROUP_PATH;
}

static adl_status decode_head(adli_start_plan *plan, size_t *at)
{
    int64_t replicas, port, kind;
    adl_status status = adli_record_next_int(&plan->text, at, "replicas", &replicas);
    if (status == ADL_OK)
        status = adli_record_next_int(&plan->text, at, "port", &port);
    if (status == ADL_OK)
        status = adli_record_next_int(&plan->text, at, "cgroup", &kind);
    if (status != ADL_OK)
        return status;
    if (replicas < 1 || replicas > ADLI_MEMBERS_MAX || port < 0 || port > 65535 || kind < 0 ||
        kind > ADLI_CGROUP_V2)
        return adli_fail(ADL_ECORRUPT, "a number is out of range");
    plan->count = (int)replicas;
    plan->port = (int)port;
    plan->cgroups.kind = (adli_cgroup_kind)kind;
    if (!next_path(&plan->text, at, "cgroup0", plan->cgroups.path[0]) ||
        !next_path(&plan->text, at, "cgroup1", plan->cgroups.path[1]) ||
        !(plan->refused = adli_record_next(&plan->text, at, "refused")) ||
        !(plan->message = adli_record_next(&plan->text, at, "message")))
        return adli_fail(ADL_ECORRUPT, "a field is missing");
    return ADL_OK;
}

static adl_status decode_member(adli_start_plan *plan, int i, size_t *at)
{
    int64_t member = i;
    size_t here = *at;
    if (adli_record_next(&plan->text, &here, "member") &&
        adli_record_next_int(&plan->text, at, "member", &member) != ADL_OK)
        return ADL_ECORRUPT;
    plan->nodes[i] = adli_record_next(&plan->text, at, "node");
    plan->gpus[i] = adli_record_next(&plan->text, at, "gpus");
    if (!plan->nodes[i] || !plan->gpus[i] || member > INT_MAX ||
        member < (i > 0 ? plan->members[i - 1] + 1 : 0))
        return adli_fail(ADL_ECORRUPT, "member %d is missing", i);
    plan->members[i] = (int)member;
    return ADL_OK;
}

static adl_status decode(adli_start_plan *plan)
{
    size_t at = 0;
    adl_status status = decode_head(plan, &at);
    if (status != ADL_OK)
        return status;
    plan->members = adli_calloc((size_t)plan->count, sizeof *plan->members);
    plan->nodes = adli_calloc((size_t)plan->count, sizeof *plan->nodes);
    plan->gpus = adli_calloc((size_t)plan->count, sizeof *plan->gpus);
    if (!plan->members || !plan->nodes || !plan->gpus)
        return adli_fail_memory("a plan");
    for (int i = 0; status == ADL_OK && i < plan->count; i++)
        status = decode_member(plan, i, &at);
    return status;
}

adl_status adli_start_plan_read(int dir, const char *name, adli_start_plan **out)
{
    adl_status status;
    adli_start_plan *plan = *out = adli_calloc(1, sizeof *plan);
    if (!plan)
        return adli_fail_memory("a plan");
    adli_buf_init(&plan->text, ADLI_RECORD_MAX_BYTES);
    status = adli_record_read(dir, name, &plan->text);
    if (status == ADL_OK && (status = decode(plan)) != ADL_OK)
        status = adli_wrap(status, "%s", name);
    if (status != ADL_OK) {
        adli_start_plan_free(plan);
        *out = NULL;
    }
    return status;
}

void adli_start_plan_free(adli_start_plan *plan)
{
    if (!plan)
        return;
    free(plan->members);
    free(plan->nodes);
    free(plan->gpus);
    adli_buf_fini(&plan->text);
    free(plan);
}
