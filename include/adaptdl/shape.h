/* The shape of an allocation: all that a model needs to know about where a job's replicas are. Which
 * nodes they are on makes no difference, only how many there are, how many replicas they hold together,
 * and what kind of device those have. */
#ifndef ADAPTDL_SHAPE_H
#define ADAPTDL_SHAPE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of devices that one cluster can have. */
enum { ADL_MAX_TYPES = 16 };

typedef struct adl_shape {
    int nodes;    /* N */
    int replicas; /* R >= N */
    int type;     /* device type, an index that the caller chose; 0 where there is one type */
} adl_shape;

/* On the first, or only, device type. */
static inline adl_shape adl_shape_of(int nodes, int replicas)
{
    adl_shape shape = {nodes, replicas, 0};
    return shape;
}

#ifdef __cplusplus
}
#endif
#endif
