/* Norms of gradients that lie in this process's memory, in one pass over it. Tensors come as DLPack
 * capsules, which say what they are: a wrong one is an exception, never a wild pointer. (Tensors on
 * devices are measured by PyTorch's own kernels.)
 *
 * A bucket of gradients is one block; segments (offset, count, group) say whose gradient lies where.
 * train/sample.h says which values of a large one are looked at. */
#include "torch.h"

#include "adaptdl/meter.h"
#include "train/norms.h"
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    size_t turn;
    const float **moments;    /* [segments] second moments of Adam, or NULL */
    double *correction, *eps; /* [groups]: divide by sqrt(v / correction) + eps */
} job;

/* Adam's preconditioner of one segment, as a divisor. */
typedef struct divided {
    const job *work;
    size_t segment;
} divided;

static void divisor(void *user, size_t first, size_t n, float *pre)
{
    const divided *by = user;
    const job *work = by->work;
    const float *v = work->moments[by->segment] + first;
    size_t group = (size_t)work->segments[by->segment].group;
    float inverse = (float)(1 / work->correction[group]), eps = (float)work->eps[group];
    for (size_t i = 0; i < n; i++)
        pre[i] = sqrtf(v[i] * inverse) + eps;
}

/* sums[group] += |g|^2. */
static void add_norms(const job *work, double *sums)
{
    for (size_t s = 0; s < work->segment_count; s++) {
        const segment *at = &work->segments[s];
        divided by = {work, s};
        sums[at->group] += adli_sample_sqr(work->block + at->offset, (size_t)at->count, work->turn,
                                           work->moments ? divisor : NULL, &by);
    }
}

/* The block times factor; with norms != NULL, norms[0] += |block|^2 on the way. */
static void scale_block(const job *work, float factor, double *norms)
{
    enum { CHUNK = ADLI_SAMPLE_CHUNK };
    for (size_t i = 0; i < work->length; i += CHUNK) {
        size_t n = work->length - i < CHUNK ? work->length - i : CHUNK;
        if (norms)
            norms[0] += adli_norm_sqr(work->block + i, NULL, n);
        adli_scale(work->block + i, factor, n);
    }
}

/* Keeps what is looked at (sums NULL), or adds |g|^2, |h|^2, |g - h|^2 to sums[group][3]. */
static void see_pair(const job *work, double *sums)
{
    for (size_t s = 0; s < work->segment_count; s++) {
        const segment *at = &work->segments[s];
        divided by = {work, s};
        const float *g = work->block + at->offset;
        float *h = work->before + at->offset;
        if (sums)
            adli_sample_pair(g, h, (size_t)at->count, work->turn, work->moments ? divisor : NULL,
                             &by, sums + 3 * at->group, NULL);
        else
            adli_sample_keep(h, g, (size_t)at->count, work->turn, NULL);
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

/* turn < 0: all values are looked at. */
static bool read_groups(job *work, Py_ssize_t groups, Py_ssize_t turn)
{
    if (groups < 1 || groups > ADL_METER_GROUPS_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd groups", groups);
        return false;
    }
    work->groups = (size_t)groups;
    work->turn = turn < 0 ? ADLI_SAMPLE_ALL : (size_t)turn;
    return true;
}

static PyObject *bucket_norms(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *block, *moments = Py_None, *result = NULL;
    const char *segments;
    Py_ssize_t segments_length, groups, turn = -1;
    double factor = 1;
    job work = {0};
    if (!PyArg_ParseTuple(args, "Oy#n|dnO", &block, &segments, &segments_length, &groups, &factor,
                          &turn, &moments) ||
        !read_groups(&work, groups, turn) || !(work.block = floats_of(block, &work.length)))
        return NULL;
    double *sums = calloc(work.groups, sizeof *sums);
    if (!sums)
        return PyErr_NoMemory();
    if (read_segments(&work, segments, segments_length) && read_moments(&work, moments)) {
        Py_BEGIN_ALLOW_THREADS
            /* One group, all of it, and scaled: a single pass does both. */
            bool together = factor != 1 && work.groups == 1 && turn < 0 && !work.moments;
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
    Py_ssize_t segments_length, groups, turn;
    int keep;
    size_t before_length;
    job work = {0};
    if (!PyArg_ParseTuple(args, "OOy#nnp|O", &block, &before, &segments, &segments_length, &groups,
                          &turn, &keep, &moments) ||
        !read_groups(&work, groups, turn) || !(work.block = floats_of(block, &work.length)) ||
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
     "bucket_norms(block, segments, groups, factor=1, turn=-1, moments=None, /)\n--\n\n"
     "|g|^2 of each group, before the block is multiplied by factor."},
    {"bucket_pair", bucket_pair, METH_VARARGS,
     "bucket_pair(block, before, segments, groups, turn, keep, moments=None, /)\n--\n\n"
     "Keeps a gradient, or compares it with the kept one."},
    {NULL, NULL, 0, NULL},
};

int adlpy_kernels_setup(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {{"SAMPLE_EVERY", ADLI_SAMPLE_EVERY},
                     {"SAMPLE_FROM", ADLI_SAMPLE_FROM},
                     {"PRECONDITION_AFTER", ADLI_PRECONDITION_AFTER}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0)
            return -1;
    return adlpy_add_functions(module, functions);
}
