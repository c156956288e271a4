/* A plan is a network prepared for one batch size, thread count and kind of pass: two tapes of actions
 * (forward, backward) over tensors in one arena. Layers write the tapes (layer_*.c); running a pass is
 * a loop over a tape.
 *
 * Time, for the lifetimes of tensors: forward of node i happens at i, backward of node i at 2n - i,
 * n = number of nodes. value[i] is the input of node i, value[i + 1] its output; grad[i] is
 * d loss / d value[i] in the same layout. */
#ifndef ADLI_NN_PLAN_H
#define ADLI_NN_PLAN_H

#include "nn/net.h"

/* Places outside the arena: the caller's arrays, set before each run, and parameters. */
enum { ADLI_AT_X = -1, ADLI_AT_DOUT = -2, ADLI_AT_DX = -3, ADLI_AT_PARAM = -4 };
enum { ADLI_ARGS_MAX = 12, ADLI_TENSORS_MAX = 5 };

/* A piece of the arena that is needed from one time to another. */
typedef struct adli_slot {
    size_t bytes, offset;
    int from, to;
    bool shared; /* read again later (residual): not to be overwritten in place */
} adli_slot;

typedef struct adli_tensor {
    dnnl_memory_desc_t md;
    dnnl_memory_t memory; /* owned by the plan */
    int slot;             /* or ADLI_AT_... */
} adli_tensor;

typedef struct adli_run {
    adl_net *net;
    uint64_t seed;
    adl_grad_mode mode;
} adli_run;

/* One thing to do: a oneDNN primitive with its arguments, or a function of ours. */
typedef struct adli_action adli_action;
struct adli_action {
    adl_status (*run)(const adli_action *action, const adli_run *run);
    const adli_node *node;
    int batch;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ADLI_ARGS_MAX];
    int arg_count;
    adli_tensor tensor[ADLI_TENSORS_MAX]; /* what they are is said where the action is made */
    size_t count;                         /* floats, or a parameter's index */
    float scale;
    bool flag;
};

typedef struct adli_tape {
    adli_action *actions;
    size_t count, capacity;
} adli_tape;

/* What a layer remembers between writing its forward and its backward. */
typedef struct adli_step {
    bool folded;                /* ReLU: done by the layer before */
    bool back_folded;           /* ReLU: its backward too */
    dnnl_primitive_desc_t hint; /* of the forward primitive */
    dnnl_alg_kind_t alg;        /* convolution */
    adli_tensor src, weights;   /* as the forward primitive had them */
    adli_tensor mean, var, workspace;
} adli_step;

typedef struct adli_binding {
    dnnl_memory_t memory;
    int slot;
} adli_binding;

typedef struct adli_net_plan {
    adl_net *net;
    int batch, threads;
    bool train, input_grad;

    adli_tensor *value, *grad; /* [n + 1] */
    adli_tensor output;        /* value[n], row-major */
    adli_tensor dout, dx;      /* the caller's */
    adli_step *steps;          /* [n] */
    adli_tape forward, backward;

    int now; /* while tapes are written */
    adli_slot *slots;
    size_t slot_count, slot_capacity;
    adli_binding *bindings;
    size_t binding_count, binding_capacity;
    dnnl_primitive_t *primitives;
    size_t primitive_count, primitive_capacity;
    dnnl_primitive_desc_t *descs; /* until the tapes are written */
    size_t desc_count, desc_capacity;
    dnnl_primitive_attr_t attr; /* scratchpads are ours */
    size_t arena_bytes;
    uint64_t arena_version; /* that the tensors point to */
} adli_net_plan;

/* How each kind of layer writes its part of the tapes. backward is called only when a gradient is
 * needed at or below the node; it leaves grad[i] unset when none is needed below. */
typedef struct adli_op {
    adl_status (*forward)(adli_net_plan *plan, size_t node);
    adl_status (*backward)(adli_net_plan *plan, size_t node);
} adli_op;

adl_status adli_conv_forward(adli_net_plan *plan, size_t node);
adl_status adli_conv_backward(adli_net_plan *plan, size_t node);
adl_status adli_linear_forward(adli_net_plan *plan, size_t node);
adl_status adli_linear_backward(adli_net_plan *plan, size_t node);
adl_status adli_norm_forward(adli_net_plan *plan, size_t node);
adl_status adli_norm_backward(adli_net_plan *plan, size_t node);
adl_status adli_pool_forward(adli_net_plan *plan, size_t node);
adl_status adli_pool_backward(adli_net_plan *plan, size_t node);
adl_status adli_relu_forward(adli_net_plan *plan, size_t node);
adl_status adli_relu_backward(adli_net_plan *plan, size_t node);
adl_status adli_dropout_forward(adli_net_plan *plan, size_t node);
adl_status adli_dropout_backward(adli_net_plan *plan, size_t node);
adl_status adli_flatten_forward(adli_net_plan *plan, size_t node);
adl_status adli_flatten_backward(adli_net_plan *plan, size_t node);
adl_status adli_softmax_forward(adli_net_plan *plan, size_t node);
adl_status adli_softmax_backward(adli_net_plan *plan, size_t node);
adl_status adli_fork_forward(adli_net_plan *plan, size_t node);
adl_status adli_fork_backward(adli_net_plan *plan, size_t node);
adl_status adli_join_forward(adli_net_plan *plan, size_t node);
adl_status adli_join_backward(adli_net_plan *plan, size_t node);

/* ---- for the layers -------------------------------------------------------------------------- */

/* Whether d loss / d value[node] is needed: somebody below has parameters, or dx is wanted. */
bool adli_needs_grad(const adli_net_plan *plan, size_t node);
/* Whether the node after this one is a ReLU (which this one may do itself). */
bool adli_relu_follows(const adli_net_plan *plan, size_t node);
/* max(x, 0) commutes with max pooling, and a dropped element needs no gradient either: when a pooling
 * or dropout follows, the ReLU's "gradient only where the output is positive" is left to it, where it
 * is cheaper. True when this node has to do it for a ReLU before it. */
bool adli_gates(const adli_net_plan *plan, size_t node);
/* True when it may pass that duty on to the node after it. */
bool adli_gate_passed_on(const adli_net_plan *plan, size_t node);

/* *out = (y <= 0 ? 0 : scale * in), on the backward tape; in place where that is allowed. */
adl_status adli_gate(adli_net_plan *plan, size_t node, const adli_tensor *y, float scale,
                     const adli_tensor *in, adli_tensor *out);

/* Row-major descriptor of a batch of this shape. */
dnnl_memory_desc_t adli_plain_md(const adli_net_plan *plan, adl_nn_shape shape);
/* Row-major descriptor with these dimensions. */
dnnl_memory_desc_t adli_dims_md(int dims, const int *size);
/* The same dimensions, layout left to oneDNN. */
dnnl_memory_desc_t adli_any_md(const dnnl_memory_desc_t *md);
static inline size_t adli_floats(const adli_tensor *tensor)
{
    return dnnl_memory_desc_get_size(&tensor->md) / sizeof(float); /* padding included */
}
float *adli_data(const adli_tensor *tensor);

/* A tensor of its own in the arena, alive now (extended by adli_use). */
adl_status adli_tensor_new(adli_net_plan *plan, const dnnl_memory_desc_t *md, adli_tensor *out);
/* The same bytes seen through another descriptor. */
adl_status adli_tensor_alias(adli_net_plan *plan, const dnnl_memory_desc_t *md,
                             const adli_tensor *of, adli_tensor *out);
/* The caller's array at one of ADLI_AT_X, _DOUT, _DX. */
adl_status adli_tensor_at(adli_net_plan *plan, const dnnl_memory_desc_t *md, int place,
                          adli_tensor *out);
/* Points all tensors at that place to data. */
void adli_point(adli_net_plan *plan, int place, const void *data);
/* An array that never moves: a parameter or a buffer. */
adl_status adli_array_tensor(adli_net_plan *plan, const dnnl_memory_desc_t *md, float *data,
                             adli_tensor *out);
/* The tensor is still needed now. */
void adli_use(adli_net_plan *plan, const adli_tensor *tensor);
/* Parameter k (0 = weight, 1 = bias) of a node, its value or its gradient. */
adl_status adli_param_tensor(adli_net_plan *plan, const adli_node *node, int k, bool grad,
                             adli_tensor *out);

/* A new action at the end of the tape that runs `run`. *out is valid until the next one. */
adl_status adli_act(adli_net_plan *plan, adli_tape *tape, size_t node,
                    adl_status (*run)(const adli_action *, const adli_run *), adli_action **out);
/* One that executes a primitive made from pd. */
adl_status adli_act_primitive(adli_net_plan *plan, adli_tape *tape, size_t node,
                              dnnl_primitive_desc_t pd, adli_action **out);
void adli_arg(adli_net_plan *plan, adli_action *action, int arg, const adli_tensor *tensor);
/* Makes a primitive descriptor (freed with the plan's writing); hint and attr may be NULL. */
adl_status adli_desc(adli_net_plan *plan, size_t node, const_dnnl_op_desc_t desc,
                     const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                     dnnl_primitive_desc_t *out);
/* Copies `from` to `to`, changing the layout. */
adl_status adli_reorder(adli_net_plan *plan, adli_tape *tape, size_t node, const adli_tensor *from,
                        const adli_tensor *to);
/* *out = have in the layout `want`: itself, or a reordered copy. */
adl_status adli_adapt(adli_net_plan *plan, adli_tape *tape, size_t node, const adli_tensor *have,
                      const dnnl_memory_desc_t *want, adli_tensor *out);
/* Adds or copies (by the mode of the run) a fresh gradient to parameter k of the node. */
adl_status adli_deliver(adli_net_plan *plan, size_t node, int k, const adli_tensor *from);
/* Tells the hook that the node's gradients are final. */
adl_status adli_announce(adli_net_plan *plan, size_t node);
/* ADL_OK, or oneDNN's failure in words, naming node and input shape. */
adl_status adli_dnn(const adli_net_plan *plan, size_t node, dnnl_status_t status, const char *what);

/* ---- for the rest of the network ------------------------------------------------------------- */

adl_status adli_engine_open(adl_net *net);
/* The plan for this pass, made if need be, and moved to net->plans[0] with its arena ready. */
adl_status adli_net_plan_get(adl_net *net, int batch, const adl_pass *pass, adli_net_plan **out);
void adli_net_plans_free(adl_net *net);

#endif
