#include "httpd/limit.h"

#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { SETS = 1024, WAYS = 8 };

typedef struct bucket {
    uint64_t key; /* 0: free */
    double tokens, at_s;
} bucket;

struct adli_limit {
    pthread_mutex_t lock;
    double rate, burst;
    bucket buckets[SETS][WAYS];
};

adl_status adli_limit_new(double rate, double burst, adli_limit **out)
{
    *out = NULL;
    if (!(rate > 0) || !(burst >= 1))
        return adli_fail(ADL_EINVAL, "rate limit: needs a rate above 0 and a burst of at least 1");
    adli_limit *limit = adli_calloc(1, sizeof *limit);
    if (!limit)
        return adli_fail_memory("rate limit");
    pthread_mutex_init(&limit->lock, NULL);
    limit->rate = rate;
    limit->burst = burst;
    *out = limit;
    return ADL_OK;
}

void adli_limit_free(adli_limit *limit)
{
    if (!limit)
        return;
    pthread_mutex_destroy(&limit->lock);
    free(limit);
}

static bucket *find(adli_limit *limit, uint64_t key, double now_s)
{
    bucket *set = limit->buckets[(key * 0x9e3779b97f4a7c15u) >> 54], *oldest = set;
    for (int i = 0; i < WAYS; i++) {
        if (set[i].key == key)
            return &set[i];
        if (set[i].key == 0 || (oldest->key != 0 && set[i].at_s < oldest->at_s))
            oldest = &set[i];
    }
    *oldest = (bucket){key, limit->burst, now_s};
    return oldest;
}

bool adli_limit_take(adli_limit *limit, uint64_t key, double now_s, double *retry_s)
{
    pthread_mutex_lock(&limit->lock);
    bucket *b = find(limit, key ? key : 1, now_s);
    b->tokens = fmin(limit->burst, b->tokens + fmax(now_s - b->at_s, 0) * limit->rate);
    b->at_s = now_s;
    bool ok = b->tokens >= 1;
    *retry_s = ok ? 0 : (1 - b->tokens) / limit->rate;
    b->tokens -= ok;
    pthread_mutex_unlock(&limit->lock);
    return ok;
}
