/* Norms of gradients that lie in this process's memory, in one pass over it. Tensors come as DLPack
 * capsules, which say what they are: a wrong one is an exception, never a wild pointer. (Tensors on
 * devices are measured by PyTorch's own kernels.)
 *
 * A bucket of gradients is one block; segments (offset, count, group) say whose gradient lies where.
 * Large gradients may be sampled: every eighth chunk, another eighth each time (turn), counted for the
 * whole. */
#include "torch.h"

#include "train/norms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, SAMPLE_FROM = 16 * CHUNK, GROUPS_MAX = 1024 };

/* The beginning of DLManagedTensor, the same in every version of DLPack before 1.0's "versioned". */
typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
enum { DL_CPU = 1, DL_FLOAT = 2 };

/* The floats of a contiguous float32 tensor in memory; NULL with TypeError. */
static float *floats_of(PyObject *capsule, size_t *count)
{
    const dl_tensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
    if (!tensor) {
        PyErr_SetString(PyExc_TypeError, "not a DLPack capsule of a tensor");
        return NULL;
    }
    int64_t total = 1;
    bool contiguous = tensor->ndim >= 0;
    for (int i = tensor->ndim - 1; contiguous && i >= 0; i--) {
        contiguous = !tensor->strides || tensor->shape[i] <= 1 || tensor->strides[i] == total;
        if (tensor->shape[i] < 0 || (tensor->shape[i] > 0 && total > INT64_MAX / tensor->shape[i]))
            contiguous = false;
        else
            total *= tensor->shape[i];
    }
    if (!contiguous || tensor->device_type != DL_CPU || tensor->code != DL_FLOAT ||
        tensor->bits != 32 || tensor->lanes != 1 || (total > 0 && !tensor->data)) {
        PyErr_SetString(PyExc_TypeError, "not a contiguous float32 tensor in memory");
        return NULL;
    }
    *count = (size_t)total;
    static float nothing;
    return total ? (float *)((char *)tensor->data + tensor->byte_offset) : &nothing;
}

typedef struct segment {
    int64_t offset, count, group;
} segment;

/* What one call works on. */
typedef struct job {
    float *block, *before; /* before: of pairs */
    size_t length;
    const segment *segments;
    size_t segment_count, groups;
    size_t every, turn;
    const float **moments;    /* [segments] second moments of Adam, or NULL */
    double *correction, *eps; /* [groups]: divide by sqrt(v / correction) + eps */
} job;

/* Squared norm of one chunk, divided by the preconditioner if there is one. */
static void precondition(const job *work, size_t s, size_t first, size_t n, float *pre)
{
    const float *v = work->moments[s] + first;
    size_t group = (size_t)work->segments[s].group;
    float inverse = (float)(1 / work->correction[group]), eps = (float)work->eps[group];
    for (size_t i = 0; i < n; i++)
        pre[i] = sqrtf(v[i] * inverse) + eps;
}

static size_t stride_of(const job *work, size_t s)
{
    return work->segments[s].count >= SAMPLE_FROM ? work->every : 1;
}

/* sums[group] += |g|^2. */
static void add_norms(const job *work, double *sums)
{
    float pre[CHUNK];
    for (size_t s = 0; s < work->segment_count; s++) {
        const segment *at = &work->segments[s];
        size_t count = (size_t)at->count, every = stride_of(work, s), seen = 0;
        const float *g = work->block + at->offset;
        double sum = 0;
        if (every == 1 && !work->moments) {
            sums[at->group] += adli_norm_sqr(g, NULL, count);
            continue;
        }
        for (size_t i = work->turn % every * CHUNK; i < count; i += every * CHUNK) {
            size_t n = count - i < CHUNK ? count - i : CHUNK;
            if (work->moments)
                precondition(work, s, i, n, pre);
            sum += adli_norm_sqr(g + i, work->moments ? pre : NULL, n);
            seen += n;
        }
        if (seen > 0)
            sums[at->group] += sum * (double)count / (double)seen;
    }
}

/* The block times factor; with norms != NULL, norms[0] += |block|^2 on the way. */
static void scale_block(const job *work, float factor, double *norms)
{
    for (size_t i = 0; i < work->length; i += CHUNK) {
        size_t n = work->length - i < CHUNK ? work->length - i : CHUNK;
        if (norms)
            norms[0] += adli_norm_sqr(work->block + i, NULL, n);
        adli_scale(work->block + i, factor, n);
    }
}

/* Keeps the sampled chunks (sums NULL), or adds |g|^2, |h|^2, |g - h|^2 to sums[group][3]. */
static void see_pair(const job *work, double *sums)
{
    float pre[CHUNK];
    for (size_t s = 0; s < work->segment_count; s++) {
        const segment *at = &work->segments[s];
        size_t count = (size_t)at->count, every = stride_of(work, s), seen = 0;
        double sqr[3] = {0, 0, 0};
        for (size_t i = work->turn % every * CHUNK; i < count; i += every * CHUNK) {
            size_t n = count - i < CHUNK ? count - i : CHUNK;
            float *g = work->block + at->offset + i, *h = work->before + at->offset + i;
            seen += n;
            if (!sums) {
                memcpy(h, g, n * sizeof *g);
                continue;
            }
            if (work->moments)
                precondition(work, s, i, n, pre);
            adli_norm_pair(g, h, work->moments ? pre : NULL, n, sqr);
        }
        for (int k = 0; sums && k < 3 && seen > 0; k++)
            sums[3 * at->group + k] += sqr[k] * (double)count / (double)seen;
    }
}

/* ---- arguments ----------------------------------------------------------------------------------- */

static bool read_segments(job *work, const char *bytes, Py_ssize_t length)
{
    work->segments = (const segment *)(const void *)bytes;
    work->segment_count = (size_t)length / sizeof(segment);
    bool fine =
        length % (Py_ssize_t)sizeof(segment) == 0 && (uintptr_t)bytes % sizeof(int64_t) == 0;
    for (size_t s = 0; fine && s < work->segment_count; s++) {
        const segment *at = &work->segments[s];
        fine = at->offset >= 0 && at->count >= 0 && (uint64_t)at->offset <= work->length &&
               (uint64_t)at->count <= work->length - (uint64_t)at->offset && at->group >= 0 &&
               (uint64_t)at->group < work->groups;
    }
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "segments do not fit the block, or the groups");
    return fine;
}

/* moments: None, or (capsules, corrections, eps). */
static bool read_moments(job *work, PyObject *moments)
{
    PyObject *capsules, *corrections, *eps;
    if (moments == Py_None)
        return true;
    if (!PyTuple_Check(moments) ||
        !PyArg_ParseTuple(moments, "OOO", &capsules, &corrections, &eps)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "moments are a tuple (capsules, corrections, eps)");
        return false;
    }
    work->correction = adlpy_read_doubles(corrections, work->groups, "corrections");
    work->eps = work->correction ? adlpy_read_doubles(eps, work->groups, "eps") : NULL;
    if (!work->eps)
        return false;
    Py_ssize_t count = PySequence_Size(capsules);
    if (count != (Py_ssize_t)work->segment_count) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "moments: one for each segment");
        return false;
    }
    work->moments = calloc(work->segment_count + 1, sizeof *work->moments);
    if (!work->moments)
        PyErr_NoMemory();
    for (size_t s = 0; work->moments && s < work->segment_count; s++) {
        size_t length;
        PyObject *capsule = PySequence_GetItem(capsules, (Py_ssize_t)s);
        work->moments[s] = capsule ? floats_of(capsule, &length) : NULL;
        Py_XDECREF(capsule); /* the sequence keeps it */
        if (!work->moments[s])
            return false;
        if (length != (size_t)work->segments[s].count) {
            PyErr_SetString(PyExc_ValueError, "moments: another size than the gradient");
            return false;
        }
    }
    return work->moments != NULL;
}

static void free_job(job *work)
{
    free(work->moments);
    free(work->correction);
    free(work->eps);
}

static bool read_groups(job *work, Py_ssize_t groups, Py_ssize_t every, Py_ssize_t turn)
{
    if (groups < 1 || groups > GROUPS_MAX || every < 1 || every > CHUNK || turn < 0) {
        PyErr_SetString(PyExc_ValueError, "groups, every or turn is out of range");
        return false;
    }
    work->groups = (size_t)groups;
    work->every = (size_t)every;
    work->turn = (size_t)turn;
    return true;
}

static PyObject *bucket_norms(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *block, *moments = Py_None, *result = NULL;
    const char *segments;
    Py_ssize_t segments_length, groups, every = 1, turn = 0;
    double factor = 1;
    job work = {0};
    if (!PyArg_ParseTuple(args, "Oy#n|dnnO", &block, &segments, &segments_length, &groups, &factor,
                          &every, &turn, &moments) ||
        !read_groups(&work, groups, every, turn) || !(work.block = floats_of(block, &work.length)))
        return NULL;
    double *sums = calloc(work.groups, sizeof *sums);
    if (!sums)
        return PyErr_NoMemory();
    if (read_segments(&work, segments, segments_length) && read_moments(&work, moments)) {
        Py_BEGIN_ALLOW_THREADS
            /* One group, all of it, and scaled: a single pass does both. */
            bool together = factor != 1 && work.groups == 1 && work.every == 1 && !work.moments;
        if (!together)
            add_norms(&work, sums);
        if (factor != 1)
            scale_block(&work, (float)factor, together ? sums : NULL);
        Py_END_ALLOW_THREADS result = adlpy_doubles(sums, work.groups, 1);
    }
    free(sums);
    free_job(&work);
    return result;
}

static PyObject *bucket_pair(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *block, *before, *moments = Py_None, *result = NULL;
    const char *segments;
    Py_ssize_t segments_length, groups, every, turn;
    int keep;
    size_t before_length;
    job work = {0};
    if (!PyArg_ParseTuple(args, "OOy#nnnp|O", &block, &before, &segments, &segments_length, &groups,
                          &every, &turn, &keep, &moments) ||
        !read_groups(&work, groups, every, turn) ||
        !(work.block = floats_of(block, &work.length)) ||
        !(work.before = floats_of(before, &before_length)))
        return NULL;
    if (before_length != work.length)
        return PyErr_Format(PyExc_ValueError, "%zu values before, %zu now", before_length,
                            work.length);
    double *sums = calloc(3 * work.groups, sizeof *sums);
    if (!sums)
        return PyErr_NoMemory();
    if (read_segments(&work, segments, segments_length) && read_moments(&work, moments)) {
        ADLPY_UNLOCKED(see_pair(&work, keep ? NULL : sums));
        result = keep ? adlpy_ref(Py_None) : adlpy_doubles(sums, 3 * work.groups, 1);
    }
    free(sums);
    free_job(&work);
    return result;
}

static PyMethodDef functions[] = {
    {"bucket_norms", bucket_norms, METH_VARARGS,
     "bucket_norms(block, segments, groups, factor=1, every=1, turn=0, moments=None, /)\n--\n\n"
     "|g|^2 of each group, before the block is multiplied by factor."},
    {"bucket_pair", bucket_pair, METH_VARARGS,
     "bucket_pair(block, before, segments, groups, every, turn, keep, moments=None, /)\n--\n\n"
     "Keeps a gradient, or compares it with the kept one."},
    {NULL, NULL, 0, NULL},
};

int adlpy_kernels_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
