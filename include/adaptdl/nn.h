/* Networks on the CPU (oneDNN). A network is described layer by layer, built once, then run forward
 * and backward on batches of any size.
 *
 *   adl_net *net;
 *   adl_net_new(ADL_SHAPE(1, 28, 28), &net);
 *   adl_net_conv2d(net, "conv1", &(adl_conv2d){.out = 32, .kernel = 3});
 *   adl_net_relu(net);
 *   adl_net_flatten(net);
 *   adl_net_linear(net, "fc", &(adl_linear){.out = 10});
 *   adl_net_log_softmax(net);
 *   status = adl_net_build(net, seed);       // any mistake above is reported here
 *
 *   adl_net_forward(net, x, batch, &(adl_pass){.train = true, .seed = step}, &out);
 *   adl_loss_nll(out, labels, batch, 10, ADL_MEAN, &loss, dout);
 *   adl_net_backward(net, dout, NULL, ADL_GRAD_SET);
 *
 * Tensors are float, dense and row-major: images [batch][channels][height][width], vectors
 * [batch][features]. Inside, layers exchange whatever layout oneDNN prefers.
 * Threads: a network belongs to one thread at a time; different networks are independent. No
 * function here waits for anything but its own computation. */
#ifndef ADAPTDL_NN_H
#define ADAPTDL_NN_H

#include "adaptdl/param.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- threads --------------------------------------------------------------------------------- */

/* How many threads networks and optimizers called from the calling thread use; 0 = one per
 * processor. EINVAL below 0 or above 1024. This is OpenMP's own setting for the calling thread
 * (OMP_NUM_THREADS is its default), not a variable of this library. */
ADL_API ADL_MUST adl_status adl_nn_set_threads(int threads);
ADL_API int adl_nn_threads(void);

/* ---- describing a network -------------------------------------------------------------------- */

typedef struct adl_net adl_net;

/* The shape of one example, without the batch: an image {3, {C, H, W}} or a vector {1, {F}}. */
typedef struct adl_nn_shape {
    int dims; /* 1 or 3 */
    int size[3];
} adl_nn_shape;
#define ADL_SHAPE(channels, height, width) ((adl_nn_shape){3, {(channels), (height), (width)}})
#define ADL_SHAPE_FLAT(features)           ((adl_nn_shape){1, {(features), 1, 1}})

/* An empty network that takes examples of this shape. *out is freed with adl_net_free. */
ADL_API ADL_MUST adl_status adl_net_new(adl_nn_shape input, adl_net **out);
ADL_API void adl_net_free(adl_net *net);

/* The functions below append one layer. They do not fail on the spot: the first mistake (a kernel
 * larger than its image, two layers of one name, no memory) is kept and returned by adl_net_build,
 * naming the layer and its input shape. Input sizes follow from the layer before. `name` becomes part
 * of the parameters' names ("conv1.weight"); it is copied; NULL stands for the layer's ordinal within
 * its sequence, as in PyTorch's Sequential. Zero in an option means the default that is stated.
 *
 * Initial values are PyTorch's: weight and bias uniform in +-1/sqrt(fan_in), batch normalisation
 * weight 1, bias 0, running mean 0, running variance 1. */

typedef struct adl_conv2d {
    int out;     /* output channels */
    int kernel;  /* height and width */
    int stride;  /* default 1 */
    int padding; /* zeros on each side, default 0 */
    bool no_bias;
    bool direct; /* never Winograd's algorithm (3x3, stride 1), faster but rounding a little more */
} adl_conv2d;
/* [B][C][H][W] -> [B][out][(H + 2 padding - kernel) / stride + 1][...W]. Parameters:
 * weight [out][C][kernel][kernel], bias [out]. */
ADL_API void adl_net_conv2d(adl_net *net, const char *name, const adl_conv2d *options);

typedef struct adl_linear {
    int out; /* output features */
    bool no_bias;
} adl_linear;
/* [B][F] -> [B][out], y = x W^T + b. Parameters: weight [out][F], bias [out]. */
ADL_API void adl_net_linear(adl_net *net, const char *name, const adl_linear *options);

typedef struct adl_batch_norm2d {
    double eps;      /* default 1e-5 */
    double momentum; /* of the running statistics, default 0.1 */
} adl_batch_norm2d;
/* [B][C][H][W] -> same, normalised per channel by the batch (training) or the running statistics
 * (evaluation). Parameters: weight [C], bias [C]. Buffers: running_mean [C], running_var [C] (the
 * unbiased variance), num_batches [1] (batches seen, a float). options may be NULL. */
ADL_API void adl_net_batch_norm2d(adl_net *net, const char *name, const adl_batch_norm2d *options);

/* max(x, 0). */
ADL_API void adl_net_relu(adl_net *net);
/* [B][C][H][W] -> [B][C][(H - kernel) / stride + 1][...W]; stride 0 = kernel. */
ADL_API void adl_net_max_pool2d(adl_net *net, int kernel, int stride);
/* Training: each element is kept with probability 1 - p and divided by it. Which ones is a pure
 * function of (adl_pass.seed, the layer's ordinal, the element's place in the layer's row-major
 * output): the same for any number of threads. Evaluation: nothing. 0 <= p < 1. */
ADL_API void adl_net_dropout(adl_net *net, double p);
/* [B][C][H][W] -> [B][C * H * W]. */
ADL_API void adl_net_flatten(adl_net *net);
/* [B][F] -> [B][F], x - log(sum(exp(x))) over F. */
ADL_API void adl_net_log_softmax(adl_net *net);

/* A nested sequence: the names of the layers up to _end get "name." before them. */
ADL_API void adl_net_sequence(adl_net *net, const char *name);
/* x + f(x), where f is the layers up to _end; its shapes must be equal. */
ADL_API void adl_net_residual(adl_net *net, const char *name);
/* Closes the innermost sequence or residual. */
ADL_API void adl_net_end(adl_net *net);

/* sequence(name): conv 3x3 padding 1 to `out` channels, batch norm, relu, max pool 2 when `pool`. */
ADL_API void adl_net_conv_block(adl_net *net, const char *name, int out, bool pool);
/* ResNet9 for images: conv blocks size, 2 size (pool), residual of two, 4 size (pool), 8 size (pool),
 * residual of two, max pool 4, flatten, dropout 0.2, linear to classes. Size 0 = 16. For 32x32. */
ADL_API void adl_net_resnet9(adl_net *net, int classes, int size);

/* Checks the description, allocates parameters and gives them their initial values: a pure function
 * of the description and the seed. To be called once, before anything below. EINVAL says which layer
 * is wrong and why. */
ADL_API ADL_MUST adl_status adl_net_build(adl_net *net, uint64_t seed);

/* ---- running it ------------------------------------------------------------------------------ */

typedef struct adl_pass {
    bool train;      /* keep what backward needs; dropout on; batch statistics */
    bool input_grad; /* backward will be asked for dx */
    uint64_t seed;   /* of this pass's dropout; give another one each step (and replica) */
} adl_pass;

/* x: [batch][input shape]. pass: NULL = evaluation. *out: [batch][output shape], owned by the network,
 * valid until its next forward or adl_net_free. After a training pass, x and the parameters must stay
 * as they are until backward is done. The first call with a new batch size, thread count or kind of
 * pass prepares primitives for it (tens of milliseconds); the last ADL_NET_PLANS of them are kept. Results
 * depend on the number of threads in the last bits only, and not on earlier calls. EINVAL for
 * batch < 1; ENOMEM; ESTATE before adl_net_build. */
ADL_API ADL_MUST adl_status adl_net_forward(adl_net *net, const float *x, int batch,
                                            const adl_pass *pass, const float **out);
#define ADL_NET_PLANS 8

typedef enum adl_grad_mode {
    ADL_GRAD_SET, /* grad = this batch's gradient: no zero_grad needed, and fastest */
    ADL_GRAD_ADD, /* grad += this batch's gradient */
} adl_grad_mode;

/* Backward through the last forward, which must have been a training pass (ESTATE otherwise, and when
 * backward was done already). dout: d loss / d out, [batch][output shape]. dx: filled with
 * d loss / d x, [batch][input shape], when the pass said input_grad, else NULL (ESTATE when the two do
 * not agree). After a failure the gradients are undefined. */
ADL_API ADL_MUST adl_status adl_net_backward(adl_net *net, const float *dout, float *dx,
                                             adl_grad_mode mode);

/* Called by backward, on its thread, once for each parameter as soon as its gradient is final (so
 * that an all-reduce can start while backward goes on): last layer first. `param` is the index into
 * adl_net_params. The hook may read and write that gradient and must not call the network. A status
 * other than ADL_OK makes backward return it at once. NULL removes the hook. */
typedef adl_status (*adl_grad_hook)(void *context, size_t param);
ADL_API void adl_net_set_hook(adl_net *net, adl_grad_hook hook, void *context);

/* ---- parameters and buffers ------------------------------------------------------------------ */

/* Every parameter, in the order of the description. The array, the names and the values live as long
 * as the network and never move. The gradients of successive parameters lie one after another in one
 * block (adl_net_flat), as do the values. */
ADL_API const adl_param *adl_net_params(const adl_net *net, size_t *count);
/* Shape of parameter i: fills size[4] and returns the number of dimensions (1, 2 or 4). */
ADL_API int adl_net_param_shape(const adl_net *net, size_t param, int size[4]);
/* The whole blocks: *count floats each, every parameter starting on a 64-byte boundary, the gaps
 * always zero. Either pointer may be NULL. */
ADL_API void adl_net_flat(const adl_net *net, float **values, float **grads, size_t *count);
/* What a checkpoint needs besides parameters (running statistics); grad is NULL in these. */
ADL_API const adl_param *adl_net_buffers(const adl_net *net, size_t *count);
ADL_API void adl_net_zero_grad(adl_net *net);
ADL_API adl_nn_shape adl_net_input_shape(const adl_net *net);
ADL_API adl_nn_shape adl_net_output_shape(const adl_net *net);
/* Floats per example of a shape. */
ADL_API size_t adl_nn_shape_count(adl_nn_shape shape);

/* Parameters and buffers as bytes (names, sizes, little-endian floats). save fills
 * adl_net_save_size(net) bytes. load checks everything before it changes anything: ECORRUPT names
 * the entry that does not fit this network. */
ADL_API size_t adl_net_save_size(const adl_net *net);
ADL_API void adl_net_save(const adl_net *net, void *out);
ADL_API ADL_MUST adl_status adl_net_load(adl_net *net, const void *data, size_t length);

/* ---- losses ---------------------------------------------------------------------------------- */

typedef enum adl_reduction {
    ADL_MEAN, /* over the batch (MSE: over all elements) */
    ADL_SUM,
} adl_reduction;

/* Each fills *loss and, unless dout is NULL, dout = d loss / d out in the shape of out (dout may be
 * out itself). EINVAL: a label outside 0 .. classes-1 (named), batch or classes < 1. Pure. */

/* -logp[b][label[b]]; logp: [batch][classes] log-probabilities; label: [batch]. */
ADL_API ADL_MUST adl_status adl_loss_nll(const float *logp, const int32_t *label, int batch,
                                         int classes, adl_reduction reduction, double *loss,
                                         float *dout);
/* log_softmax and NLL in one; logits: [batch][classes]. */
ADL_API ADL_MUST adl_status adl_loss_cross_entropy(const float *logits, const int32_t *label,
                                                   int batch, int classes, adl_reduction reduction,
                                                   double *loss, float *dout);
/* (out - target)^2; both [batch][features]. */
ADL_API ADL_MUST adl_status adl_loss_mse(const float *out, const float *target, int batch,
                                         int features, adl_reduction reduction, double *loss,
                                         float *dout);
/* How many rows have their largest value at the label (the first one counts among equals). */
ADL_API int adl_count_correct(const float *out, const int32_t *label, int batch, int classes);

#ifdef __cplusplus
}
#endif
#endif
