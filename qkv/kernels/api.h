// The structures and functions of the library as Python calls them (kernels/build.py, engine/native_step.py, the operations of kernels/).
#pragma once
#include "heads.h"
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

extern "C" {
int qkv_width();  // WIDTH of products.h
int qkv_check();  // 0: all functions give the numbers that plain loops give
void qkv_step(const Model *model, number *x, const number *turns, int64_t by_row, const Cells *cells, const Cells *memory, int rows, int beams,
              int threads, number *logits);
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
