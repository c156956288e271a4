#include "comm/call.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const type_names[] = {"f64", "i64", "bytes"};
static const char *const reduce_names[] = {"sum", "min", "max", "or", "first"};

size_t adli_type_bytes(adl_type type)
{
    return type == ADL_TYPE_BYTES ? 1 : 8;
}

adl_status adli_call_check(adl_type type, adl_reduce reduce)
{
    if ((unsigned)type > ADL_TYPE_BYTES)
        return adli_fail(ADL_EINVAL, "allreduce: unknown type %d", (int)type);
    if ((unsigned)reduce > ADL_REDUCE_FIRST)
        return adli_fail(ADL_EINVAL, "allreduce: unknown reduction %d", (int)reduce);
    bool fine = reduce == ADL_REDUCE_FIRST ||
                (reduce == ADL_REDUCE_OR ? type != ADL_TYPE_F64 : type != ADL_TYPE_BYTES);
    return fine ? ADL_OK
                : adli_fail(ADL_EINVAL, "allreduce: %s of %s is not defined", reduce_names[reduce],
                            type_names[type]);
}

bool adli_call_same(const adli_call *a, const adli_call *b)
{
    return a->kind == b->kind && a->type == b->type && a->reduce == b->reduce &&
           a->count == b->count && strcmp(a->name, b->name) == 0;
}

void adli_call_text(const adli_call *call, char out[ADLI_CALL_TEXT])
{
    static const char *const kinds[] = {"?",         "allreduce", "reduce",
                                        "broadcast", "allgather", "barrier"};
    switch (call->kind) {
    case ADLI_CALL_ALLREDUCE:
        snprintf(out, ADLI_CALL_TEXT, "allreduce %s %s[%" PRIu64 "]", reduce_names[call->reduce],
                 type_names[call->type], call->count);
        break;
    case ADLI_CALL_REDUCE:
        snprintf(out, ADLI_CALL_TEXT, "reduce \"%s\"", call->name);
        break;
    default:
        snprintf(out, ADLI_CALL_TEXT, "%s", kinds[call->kind]);
    }
}

/* A NaN on either side stays. */
static double reduce_f64(adl_reduce reduce, double a, double b)
{
    switch (reduce) {
    case ADL_REDUCE_SUM:
        return a + b;
    case ADL_REDUCE_MIN:
        return isnan(a) || a < b ? a : b;
    case ADL_REDUCE_MAX:
        return isnan(a) || a > b ? a : b;
    default:
        return a;
    }
}

static int64_t reduce_i64(adl_reduce reduce, int64_t a, int64_t b)
{
    switch (reduce) {
    case ADL_REDUCE_SUM:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case ADL_REDUCE_MIN:
        return a < b ? a : b;
    case ADL_REDUCE_MAX:
        return a > b ? a : b;
    case ADL_REDUCE_OR:
        return a | b;
    default:
        return a;
    }
}

void adli_call_reduce(adl_type type, adl_reduce reduce, uint8_t *sum, const uint8_t *value,
                      size_t count)
{
    if (reduce == ADL_REDUCE_FIRST)
        return;
    for (size_t i = 0; i < count; i++) {
        if (type == ADL_TYPE_BYTES) {
            sum[i] |= value[i];
        } else if (type == ADL_TYPE_F64) {
            double a, b;
            memcpy(&a, sum + 8 * i, 8);
            memcpy(&b, value + 8 * i, 8);
            a = reduce_f64(reduce, a, b);
            memcpy(sum + 8 * i, &a, 8);
        } else {
            int64_t a, b;
            memcpy(&a, sum + 8 * i, 8);
            memcpy(&b, value + 8 * i, 8);
            a = reduce_i64(reduce, a, b);
            memcpy(sum + 8 * i, &a, 8);
        }
    }
}
