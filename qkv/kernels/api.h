// Structures and functions of the native library, as Python calls them (kernels/build.py,
// engine/native_step.py, and the operations of kernels/).
#pragma once
#include "heads.h"
#include "numbers.h"

// ── The same structures and codes are in engine/native_structs.py, field by field ───────────────
enum NormKind : int32_t { NO_NORM = 0, LAYER_NORM = 1, UNIT_NORM = 2 };
enum Activation : int32_t { RELU = 0, RELU2 = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

struct Matrix {
    const void *panels;        // (panels, inputs, PANEL_WIDTH), number or int8
    const number *scales;      // int8: scale of each output, padded to whole panels; null: not int8
    const number *bias;        // padded to whole panels; null: none
    int32_t outputs, inputs;
};
// layer: gain * (x - mean) / sqrt(variance + eps) + bias; unit: gain * x / sqrt(sum of x^2 + eps)
struct Norm {
    const number *gain, *bias;
    number eps;
    int32_t kind;              // NormKind
};
struct Attention {
    Norm norm;
    Matrix in, out;            // in: q, k and v; cross-attention: q. Convolution: only `out`
    Norm q_norm, k_norm;       // of each head
    int32_t heads, kv_heads, d_head;
};
struct Layer {
    Attention self, cross;
    int32_t has_cross, pre_norm;
    Norm norm;                 // of the feed-forward
    Matrix up, down;           // up: gate and up, if gated
    int32_t gated, activation;
    int32_t kernel_size;       // of a convolution that replaces attention; 0: attention
};
struct Model {
    const Layer *layers;
    int32_t n_layers, d_model;
    int32_t max_width;         // maximum inputs or outputs of a layer's matrices
    const number *table;       // embeddings, (vocab, d_model), multiplied by `scale`
    int32_t vocab;
    number scale;
    Norm embed_norm, norm;
    Matrix head;
};
struct Positions {
    const number *added;       // position embeddings, (positions, d_model); null: none
    const number *cos, *sin;   // of rotary position embedding, (positions, half); null: none
    int32_t half, interleaved; // pairs of dimensions: (i, i + half), or interleaved (2 i, 2 i + 1)
};
struct Rows {                  // the n tokens of a step; rows of one sequence are adjacent
    const int64_t *ids;
    int32_t *sequence, *slot, *position;
    int32_t *end;              // without a mask a row attends to the slots before `end`
    const int32_t *outputs;    // rows whose logits are computed; null: the first n_outputs
    int32_t n, n_outputs;
    int32_t advance;           // after the step: slot, end += advance, position += 1; 0: no change
};
struct KVCache {               // slots 0, 1, ... of each sequence
    number *keys, *values;     // (layers, sequences, kv_heads, capacity, d_head)
    number *conv_inputs;       // (sequences, kernel_size - 1 + capacity, d_model), zeros before the
                               // first token; null: no convolution
    number *mask;              // beams of a sequence share its slots: (rows, capacity), 0 where a
                               // row attends; null: no mask
    const int32_t *lengths;    // of an encoder's output: slots that all rows of a sequence attend
                               // to; null: Rows.end
    int32_t sequences, capacity;
};

extern "C" {
int qkv_width();  // PANEL_WIDTH of products.h
int qkv_check();  // 0: all functions agree with plain loops
int qkv_step(const Model *model, const Positions *positions, const Rows *rows, const KVCache *cache,
             const KVCache *memory, int threads, number *logits);
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out);
void qkv_topk(const number *scores, const number *shift, int sentences, int live, int vocab, int k,
              int threads, number *best, int64_t *indices);
void qkv_log_sum_exp(const number *scores, int rows, int vocab, int threads, number *sums);
void qkv_rotate(const HeadLayout *h, const number *in, const number *cos, const number *sin,
                int64_t angle_stride, int half, int direction, int threads, number *out);
void qkv_relu2(const number *x, int64_t n, int threads, number *out);
void qkv_relu2_backward(const number *x, const number *grad, int64_t n, int threads, number *out);
void qkv_rms_norm(const HeadLayout *h, const number *in, const number *gain, number eps,
                  int threads, number *out, number *scales);
void qkv_rms_norm_backward(const HeadLayout *h, const number *in, const number *gain,
                           const number *scales, const number *grads, int threads, number *out,
                           number *gain_sums);
}
