/* Files of jobs on a cluster: logs come from the kubelet through the server; everything else is on volumes
 * that only the job's own pods see. */
#include "backend/k8s/impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOG_MAX = 16 << 20 };

adl_status adli_k8s_put_source(void *self, const char *uid, const char *folder)
{
    (void)self;
    (void)folder;
    adl_status status = adli_member_check(uid, 1);
    return status == ADL_OK ? adli_fail(ADL_ESTATE, "on Kubernetes a job's files are in its image")
                            : status;
}

adl_status adli_k8s_open_file(void *self, const char *uid, const char *path, adli_opened *out)
{
    (void)self;
    *out = (adli_opened){.fd = -1};
    adl_status status = adli_member_check(uid, 1);
    return status == ADL_OK
               ? adli_fail(ADL_ESTATE, "%s is on a volume that only its pods see", path)
               : status;
}

static bool find_key(k8s *self, const char *uid, int number, int member, char key[ADLI_K8S_PATH])
{
    const adli_k8s_pod *pod;
    bool found = false;
    pthread_mutex_lock(&self->cache.lock);
    const adli_k8s_group *group = adli_k8s_cache_group(&self->cache, uid, number);
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            if (pod->view.member != member || pod->absent)
                continue;
            snprintf(key, ADLI_K8S_PATH, "%s", pod->key);
            found = true;
        }
    pthread_mutex_unlock(&self->cache.lock);
    return found;
}

/* What there is of the log now, in memory. */
adl_status adli_k8s_open_log(void *user, const char *uid, int number, int member, int *fd)
{
    k8s *self = user;
    char key[ADLI_K8S_PATH], path[ADLI_K8S_PATH];
    *fd = -1;
    adl_status status = adli_member_check(uid, number);
    if (status == ADL_OK && !find_key(self, uid, number, member, key))
        status = adli_fail(ADL_ENOENT, "no log of member %d of group %d", member, number);
    if (status != ADL_OK)
        return status;
    adli_k8s_pod_path(key, "/log?limitBytes=16777216", path);
    adli_kube_call call = {.method = "GET", .path = path, .max_bytes = LOG_MAX + 4096};
    adli_kube_do(self->kube, &call, 1);
    status = adli_kube_check(&call, "log");
    if (status == ADL_EINVAL)
        status = ADL_ENOENT; /* not running yet */
    int memory = status == ADL_OK ? memfd_create("log", MFD_CLOEXEC) : -1;
    size_t length = call.answer.length;
    if (status == ADL_OK &&
        (memory < 0 || (length && write(memory, call.answer.data, length) != (ssize_t)length)))
        status = adli_fail(ADL_EIO, "log: %s", strerror(errno));
    adli_kube_call_fini(&call);
    if (status == ADL_OK)
        *fd = memory;
    else if (memory >= 0)
        close(memory);
    return status;
}
