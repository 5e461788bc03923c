// The structures and functions of the library as Python calls them (kernels/build.py, engine/native_step.py, kernels/native_ops.py).
#pragma once
#include "numbers.h"

// ── The same structures stand in engine/native_step.py, field by field ──────────────────────────────────────────────────────
struct Matrix {
    const void *panels;     // (panels, inputs, WIDTH), float32 or int8
    const number *scales;   // of each output, for int8; null: the panels hold numbers. Filled up to whole panels, as
    const number *bias;     // this is; null: none
    int32_t outputs, inputs;
};
struct Norm {               // gain * (x - mean) / sqrt(variance + small) + bias, or without a mean: gain * x / sqrt(sum + small)
    const number *gain, *bias;
    number small;
    int32_t kind;           // 0: nothing is done; 1: layer; 2: root of the sum of squares
};
struct Attention {
    Norm norm;
    Matrix in, out;         // in: q, k and v, or q alone where the keys are the encoder's
    Norm q_norm, k_norm;    // of each head
    int32_t heads, kv_heads, d_head;
};
struct Layer {
    Attention self, cross;
    int32_t has_cross, pre_norm;
    Norm norm;              // of the feed-forward
    Matrix up, down;        // up: gate and up, if gated
    int32_t gated, activation;
};
struct Cells {              // (layers, sentences, kv_heads, room, d_head)
    number *keys, *values;
    number *hidden;         // 0 where a beam may look
    int64_t by_sentence, by_beam;  // strides of hidden; 0: the same for all
    int32_t room, end;      // cells there are; cells in use, those of this step among them
};
struct Model {
    const Layer *layers;
    int32_t n_layers, d_model, widest;  // widest: of all that a part makes of a row
    Norm norm;
    Matrix head;
};

// ── The same structure stands in kernels/native_ops.py ──────────────────────────────────────────────────────────────────────
struct Heads {  // (batch, heads, length, width), in any order of memory
    int32_t batch, heads, length, width;
    int64_t x[3], grad[3], out[3];  // strides of batch, heads and length: of what came in, of its gradient, of what goes out
};

extern "C" {
int qkv_width();  // WIDTH of products.h
int qkv_check();  // 0: all functions give the numbers that plain loops give
void qkv_step(const Model *model, number *x, const number *turns, int64_t by_row, const Cells *cells, const Cells *memory, int rows, int beams,
              int threads, number *logits);
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out);
void qkv_best(const number *scores, const number *shift, int sentences, int live, int vocab, int n, int threads, number *best, int64_t *place);
void qkv_log_sums(const number *scores, int rows, int vocab, int threads, number *sums);
void qkv_turn(const Heads *h, const number *in, const number *cos, const number *sin, int64_t by_batch, int half, int way, int threads, number *out);
void qkv_relu_squared(const number *x, int64_t n, int threads, number *out);
void qkv_relu_squared_back(const number *x, const number *grad, int64_t n, int threads, number *out);
void qkv_rms(const Heads *h, const number *in, const number *gain, number eps, int threads, number *out, number *shrinks);
void qkv_rms_back(const Heads *h, const number *in, const number *gain, const number *shrinks, const number *grads, int threads, number *out,
                  number *gain_sums);
}
