/* Which processes use the GPUs of this machine, and how much: NVIDIA's management library, which comes with the driver,
 * is looked for when the program runs. Where it is not there, nothing is known. */
#ifndef ADLI_NVML_H
#define ADLI_NVML_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct adli_nvml adli_nvml;

/* What one process does on one device. */
typedef struct adli_nvml_process {
    pid_t id;
    double busy;          /* share of the time that it kept the device busy; NAN: not known */
    int64_t memory_bytes; /* of the device's memory; -1: not known */
} adli_nvml_process;

/* path: of the library; NULL: libnvidia-ml.so.1. ENOENT: there is none, or it does not work here; the text says
 * why. May take seconds. */
ADL_MUST adl_status adli_nvml_open(const char *path, adli_nvml **out);
void adli_nvml_free(adli_nvml *nvml);

/* *out: [*count] in no order, to be freed. One thread at a time. */
ADL_MUST adl_status adli_nvml_look(adli_nvml *nvml, adli_nvml_process **out, size_t *count);

#endif
