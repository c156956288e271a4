#include "proc/nvml.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The part of nvml.h that is used. Its structs are fixed by the versions in the functions' names. */
enum { SUCCESS = 0, NOT_FOUND = 6, PROCESSES_MAX = 1024, DEVICES_MAX = 256 };

typedef void *device;

typedef struct process_info { /* nvmlProcessInfo_v2_t */
    unsigned id;
    unsigned long long memory; /* ~0: not known */
    unsigned gpu_instance, compute_instance;
} process_info;

typedef struct process_sample { /* nvmlProcessUtilizationSample_t */
    unsigned id;
    unsigned long long time_us;
    unsigned busy, memory, encoder, decoder; /* percent */
} process_sample;

typedef struct utilization { /* nvmlUtilization_t */
    unsigned gpu, memory;    /* percent */
} utilization;

struct adli_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*device)(unsigned index, device *out);
    int (*processes)(device, unsigned *count, process_info *out);
    int (*samples)(device, process_sample *out, unsigned *count, unsigned long long since_us);
    int (*rates)(device, utilization *out);
    unsigned long long seen_us[DEVICES_MAX]; /* the newest sample of each device */
    process_info infos[PROCESSES_MAX];
    process_sample newest[PROCESSES_MAX];
};

/* A pointer to a function by way of an object: POSIX wants it so. */
static bool find(const adli_nvml *nvml, const char *name, void *out)
{
    void *symbol = dlsym(nvml->library, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(adli_nvml *nvml)
{
    find(nvml, "nvmlDeviceGetProcessUtilization", &nvml->samples);
    find(nvml, "nvmlDeviceGetUtilizationRates", &nvml->rates);
    return find(nvml, "nvmlInit_v2", &nvml->init) && find(nvml, "nvmlShutdown", &nvml->shutdown) &&
           find(nvml, "nvmlDeviceGetCount_v2", &nvml->count) &&
           find(nvml, "nvmlDeviceGetHandleByIndex_v2", &nvml->device) &&
           (find(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->processes) ||
            find(nvml, "nvmlDeviceGetComputeRunningProcesses_v2", &nvml->processes));
}

adl_status adli_nvml_open(const char *path, adli_nvml **out)
{
    adl_status status = ADL_OK;
    *out = NULL;
    adli_nvml *nvml = adli_calloc(1, sizeof *nvml);
    if (!nvml)
        return adli_fail_memory("NVML");
    nvml->library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int code = SUCCESS;
    if (!nvml->library)
        status = adli_fail(ADL_ENOENT, "%.200s", dlerror());
    else if (!find_all(nvml))
        status = adli_fail(ADL_ENOENT, "NVML: a function is missing; the driver is too old");
    else if ((code = nvml->init()) != SUCCESS) {
        nvml->shutdown = NULL;
        status = adli_fail(ADL_ENOENT, "NVML: nvmlInit failed with %d", code);
    }
    if (status != ADL_OK) {
        if (nvml->library)
            dlclose(nvml->library);
        free(nvml);
        return status;
    }
    *out = nvml;
    return ADL_OK;
}

void adli_nvml_free(adli_nvml *nvml)
{
    if (!nvml)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    free(nvml);
}

/* How busy each process kept the device since the last look; *count of nvml->newest. false: not to be had. A process
 * without a sample did nothing. */
static bool read_samples(adli_nvml *nvml, device which, unsigned long long *seen_us,
                         unsigned *count)
{
    unsigned long long since_us = *seen_us;
    *count = PROCESSES_MAX;
    int code = nvml->samples ? nvml->samples(which, nvml->newest, count, since_us) : -1;
    if (code == NOT_FOUND)
        *count = 0;
    if ((code != SUCCESS && code != NOT_FOUND) || *count > PROCESSES_MAX)
        return false;
    for (unsigned i = 0; i < *count; i++)
        if (nvml->newest[i].time_us > *seen_us)
            *seen_us = nvml->newest[i].time_us;
    return true;
}

static double busy_of(const adli_nvml *nvml, unsigned count, unsigned id)
{
    const process_sample *best = NULL;
    for (unsigned i = 0; i < count; i++)
        if (nvml->newest[i].id == id && (!best || nvml->newest[i].time_us >= best->time_us))
            best = &nvml->newest[i];
    return best ? fmin(best->busy, 100) / 100 : 0;
}

static adl_status look_at_device(adli_nvml *nvml, unsigned index, adli_nvml_process **out,
                                 size_t *count, size_t *capacity)
{
    unsigned infos = PROCESSES_MAX, samples = 0;
    device which;
    utilization rates;
    if (nvml->device(index, &which) != SUCCESS ||
        nvml->processes(which, &infos, nvml->infos) != SUCCESS || infos > PROCESSES_MAX)
        return ADL_OK; /* not ours to see */
    bool sampled = read_samples(nvml, which, &nvml->seen_us[index], &samples);
    double alone = NAN; /* without samples: the device's, if it serves one process only */
    if (!sampled && infos == 1 && nvml->rates && nvml->rates(which, &rates) == SUCCESS)
        alone = fmin(rates.gpu, 100) / 100;
    for (unsigned i = 0; i < infos; i++) {
        const process_info *info = &nvml->infos[i];
        if (adli_grow(out, capacity, *count + 1, sizeof **out) != 0)
            return adli_fail_memory("processes");
        (*out)[(*count)++] = (adli_nvml_process){
            .id = (pid_t)info->id,
            .busy = sampled ? busy_of(nvml, samples, info->id) : alone,
            .memory_bytes = info->memory > INT64_MAX ? -1 : (int64_t)info->memory};
    }
    return ADL_OK;
}

adl_status adli_nvml_look(adli_nvml *nvml, adli_nvml_process **out, size_t *count)
{
    unsigned devices = 0;
    size_t capacity = 0;
    adl_status status = ADL_OK;
    *out = NULL;
    *count = 0;
    if (nvml->count(&devices) != SUCCESS)
        return adli_fail(ADL_EIO, "NVML: the GPUs cannot be counted");
    for (unsigned i = 0; status == ADL_OK && i < devices && i < DEVICES_MAX; i++)
        status = look_at_device(nvml, i, out, count, &capacity);
    if (status != ADL_OK) {
        free(*out);
        *out = NULL;
        *count = 0;
    }
    return status;
}
