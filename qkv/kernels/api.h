// The structures and functions of the library as Python calls them (kernels/build.py, engine/native_step.py, the operations of kernels/).
#pragma once
#include "heads.h"
#include "numbers.h"

// ── The same structures and codes are in engine/native_step.py, field by field ────────────────────────────────────
enum NormKind : int32_t { NO_NORM = 0, LAYER_NORM = 1, UNIT_NORM = 2 };
enum Activation : int32_t { RELU = 0, RELU2 = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

struct Matrix {
    const void *panels;     // (panels, inputs, WIDTH), number or int8
    const number *scales;   // of each output, for int8, filled up to whole panels; null: the panels hold numbers
    const number *bias;     // filled up to whole panels; null: none
    int32_t outputs, inputs;
};
struct Norm {               // layer: gain * (x - mean) / sqrt(variance + eps) + bias; unit: gain * x / sqrt(sum of x^2 + eps)
    const number *gain, *bias;
    number eps;
    int32_t kind;           // NormKind
};
struct Attention {
    Norm norm;
    Matrix in, out;         // in: q, k and v, or q alone in cross-attention; of a convolution only `out` is used
    Norm q_norm, k_norm;    // of each head
    int32_t heads, kv_heads, d_head;
};
struct Layer {
    Attention self, cross;
    int32_t has_cross, pre_norm;
    Norm norm;              // of the feed-forward
    Matrix up, down;        // up: gate and up, if gated
    int32_t gated, activation;
    int32_t taps;           // of a convolution in the place of attention; 0: attention
};
struct Model {
    const Layer *layers;
    int32_t n_layers, d_model, widest;  // widest: of all inputs and outputs of a layer's matrices
    const number *table;    // embeddings, (vocab, d_model), multiplied by `scale`
    int32_t vocab;
    number scale;
    Norm embed_norm, norm;
    Matrix head;
};
struct Positions {
    const number *added;    // to the embedding at each position, (positions, d_model); null: nothing
    const number *cos, *sin;  // of rotary position embedding, (positions, half); null: none
    int32_t half, interleaved;  // pairs of dimensions: (i, i + half), or interleaved (2 i, 2 i + 1)
};
struct Rows {               // the tokens of a step, n of each; rows of one sequence stand together
    const int64_t *ids;
    int32_t *sequence, *slot, *position;
    int32_t *end;           // without a mask a row attends to the slots before `end`, its own among them
    const int32_t *outputs; // the rows whose logits are wanted; null: the first n_outputs
    int32_t n, n_outputs;
    int32_t advance;        // slots to the row's next token: slot, end and position are moved on after the step; 0: they stay
};
struct KVCache {            // slots 0, 1, ... of each sequence
    number *keys, *values;  // (layers, sequences, kv_heads, capacity, d_head)
    number *conv_inputs;    // (sequences, taps - 1 + capacity, d_model), zeros before the first token; null: no convolution
    number *mask;           // beams of a sequence share its slots: (rows, capacity), 0 where a row attends; null: no mask
    const int32_t *lengths; // of an encoder's output: all rows of a sequence attend to so many slots; null: Rows.end
    int32_t sequences, capacity;
};

extern "C" {
int qkv_width();  // WIDTH of products.h
int qkv_check();  // 0: all functions give the numbers that plain loops give
int qkv_step(const Model *model, const Positions *positions, const Rows *rows, const KVCache *cache, const KVCache *memory, int threads,
              number *logits);
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out);
void qkv_topk(const number *scores, const number *shift, int sentences, int live, int vocab, int k, int threads, number *best, int64_t *indices);
void qkv_log_sum_exp(const number *scores, int rows, int vocab, int threads, number *sums);
void qkv_rotate(const HeadLayout *h, const number *in, const number *cos, const number *sin, int64_t angle_stride, int half, int direction, int threads,
                number *out);
void qkv_relu2(const number *x, int64_t n, int threads, number *out);
void qkv_relu2_backward(const number *x, const number *grad, int64_t n, int threads, number *out);
void qkv_rms_norm(const HeadLayout *h, const number *in, const number *gain, number eps, int threads, number *out, number *scales);
void qkv_rms_norm_backward(const HeadLayout *h, const number *in, const number *gain, const number *scales, const number *grads, int threads,
                           number *out, number *gain_sums);
}
