/* A network inside: the description (a list of nodes), its parameters, and the plans made for the
 * batch sizes it has met. Nested sequences only make names; a residual is a FORK node and a JOIN node,
 * so that a network is a straight list and running it is a loop. */
#ifndef ADLI_NN_NET_H
#define ADLI_NN_NET_H

#include "adaptdl/nn.h"
#include "base/status.h"

#include <oneapi/dnnl/dnnl.h>

typedef enum adli_node_kind {
    ADLI_CONV,
    ADLI_LINEAR,
    ADLI_NORM,
    ADLI_RELU,
    ADLI_POOL,
    ADLI_DROPOUT,
    ADLI_FLATTEN,
    ADLI_LOG_SOFTMAX,
    ADLI_FORK,
    ADLI_JOIN,
    ADLI_KINDS
} adli_node_kind;

typedef struct adli_node {
    adli_node_kind kind;
    char *label; /* "conv1" or "3": its place in the description, for messages */
    adl_nn_shape in, out;
    union {
        adl_conv2d conv;
        adl_linear linear;
        adl_batch_norm2d norm;
        struct {
            int kernel, stride;
        } pool;
        double p;    /* dropout */
        size_t fork; /* JOIN: index of its FORK node */
        size_t join; /* FORK: index of its JOIN node */
    };
    size_t param; /* its first parameter; weight, then bias */
    int param_count;
    size_t buffer; /* its first buffer */
} adli_node;

/* What adl_param does not say. */
typedef struct adli_param_info {
    int dims, size[4];
    double bound; /* initial values are uniform in +-bound; 0: all are `fill` */
    float fill;
} adli_param_info;

/* A list of parameters or buffers in one block of floats, each on a 64-byte boundary. */
typedef struct adli_params {
    adl_param *list;
    adli_param_info *info;
    size_t count, capacity, info_capacity;
    void *value_block, *grad_block; /* as allocated */
    float *values, *grads;          /* aligned; grads NULL for buffers */
    size_t floats;                  /* in each block */
} adli_params;

/* A sequence or residual that is still open while a network is described. */
typedef struct adli_scope {
    size_t prefix_length; /* of adl_net.prefix outside it */
    size_t fork;          /* node, or ADLI_NO_FORK */
    int ordinal;          /* of its next layer */
} adli_scope;
#define ADLI_NO_FORK ((size_t)-1)

enum { ADLI_SCOPES_MAX = 16, ADLI_NAME_MAX = 200, ADLI_SIZE_MAX = 1 << 20 };

struct adli_net_plan;

struct adl_net {
    adl_nn_shape input, shape; /* shape: of the last node's output so far */
    adli_node *nodes;
    size_t node_count, node_capacity;
    adli_params params, buffers;

    adli_scope scopes[ADLI_SCOPES_MAX]; /* [0] is the network itself */
    int depth;
    char prefix[ADLI_NAME_MAX]; /* of names in the innermost scope, "block1." */
    adl_status failed;          /* first mistake of the description */
    char *failure;              /* its text; NULL when there was no memory for it */
    bool built;

    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct adli_net_plan *plans[ADL_NET_PLANS]; /* most recently used first; NULL at the end */
    void *arena_block;                          /* what all plans compute in, one at a time */
    char *arena;
    size_t arena_bytes;
    uint64_t arena_version; /* of its address */
    bool can_backward;      /* plans[0] holds a training pass */
    uint64_t seed;          /* of that pass */

    adl_grad_hook hook;
    void *hook_context;
};

/* "Conv2d" etc. */
const char *adli_kind_name(adli_node_kind kind);
/* "[3, 32, 32]" into text. */
enum { ADLI_SHAPE_TEXT = 48 };
const char *adli_shape_text(adl_nn_shape shape, char text[ADLI_SHAPE_TEXT]);

/* One more entry of the given dimensions; its name is prefix + label + "." + what. */
adl_status adli_params_add(adli_params *params, const char *layer, const char *what,
                           const adli_param_info *info);
/* Allocates values (and gradients) and gives them their initial values. */
adl_status adli_params_build(adli_params *params, bool with_grads, uint64_t seed);
void adli_params_free(adli_params *params);

#endif
