/* A stand-in for NVIDIA's library with two devices. What runs on them is in the file $FAKE_NVML, a line each:
 * "DEVICE PID PERCENT MEMORY"; a percentage of -1: that device has no samples of processes, only a rate of its own
 * (MEMORY is the percentage then). */
#include <stdio.h>
#include <stdlib.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    DEVICES = 2
};

struct info {
    unsigned id;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
struct sample {
    unsigned id;
    unsigned long long time_us;
    unsigned busy, memory, encoder, decoder;
};
struct rates {
    unsigned gpu, memory;
};
struct line {
    int device, id, percent;
    unsigned long long memory;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct info *out);
int nvmlDeviceGetProcessUtilization(void *device, struct sample *out, unsigned *count,
                                    unsigned long long since_us);
int nvmlDeviceGetUtilizationRates(void *device, struct rates *out);

#define API __attribute__((visibility("default")))

static int open_count, devices[DEVICES] = {0, 1};
static unsigned long long now_us = 1000;

static int next_line(FILE *file, const void *device, struct line *out)
{
    while (file &&
           fscanf(file, "%d %d %d %llu", &out->device, &out->id, &out->percent, &out->memory) == 4)
        if (out->device == *(const int *)device)
            return 1;
    if (file)
        fclose(file);
    return 0;
}

static FILE *open_lines(void)
{
    const char *path = getenv("FAKE_NVML");
    return path ? fopen(path, "re") : NULL;
}

API int nvmlInit_v2(void)
{
    return open_count++ == 0 ? SUCCESS : UNINITIALIZED;
}

API int nvmlShutdown(void)
{
    return --open_count == 0 ? SUCCESS : UNINITIALIZED;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = DEVICES;
    return open_count == 1 ? SUCCESS : UNINITIALIZED;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    *out = index < DEVICES ? &devices[index] : NULL;
    return *out ? SUCCESS : NOT_FOUND;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct info *out)
{
    unsigned room = *count;
    FILE *file = open_lines();
    *count = 0;
    for (struct line line; next_line(file, device, &line); ++*count)
        if (*count < room && line.percent < 0)
            out[*count] = (struct info){(unsigned)line.id, ~0ull, 0, 0};
        else if (*count < room)
            out[*count] = (struct info){(unsigned)line.id, line.memory, 0, 0};
    return *count <= room ? SUCCESS : TOO_SMALL;
}

/* An old sample of each, and the newest; idle ones have none. */
API int nvmlDeviceGetProcessUtilization(void *device, struct sample *out, unsigned *count,
                                        unsigned long long since_us)
{
    unsigned room = *count, used = 0, alone = 0;
    FILE *file = open_lines();
    if (since_us > now_us)
        now_us = since_us;
    now_us += 1000;
    for (struct line line; next_line(file, device, &line);) {
        alone |= line.percent < 0;
        if (line.percent <= 0 || used + 2 > room)
            continue;
        out[used++] = (struct sample){
            .id = (unsigned)line.id, .time_us = now_us, .busy = (unsigned)line.percent};
        out[used++] = (struct sample){.id = (unsigned)line.id, .time_us = now_us - 500, .busy = 99};
    }
    *count = used;
    return alone ? NOT_SUPPORTED : used ? SUCCESS : NOT_FOUND;
}

API int nvmlDeviceGetUtilizationRates(void *device, struct rates *out)
{
    struct line line;
    FILE *file = open_lines();
    *out = (struct rates){0, 0};
    while (next_line(file, device, &line))
        out->gpu = (unsigned)line.memory;
    return SUCCESS;
}
