// Three small operations of training, each in one pass over memory, forward and back; kernels/gradients.py calls them.
//
// In: tensors of torch as pointers and strides, their last dimension without gaps. Out: what gradients.py says there in torch's
// own operations (tests/kernels/test_gradients.py). Told in docs/performance.md, "The native library".
#include "api.h"

static inline int64_t at(const int64_t *strides, int b, int n, int t) { return b * strides[0] + n * strides[1] + t * strides[2]; }

extern "C" {
// The two halves of the first 2 * half numbers, (a, b) -> (a cos - b sin, b cos + a sin); way -1 turns back. cos and sin are
// (batch or 1, length, half); by_batch is their stride, 0 if one serves all.
void qkv_turn(const Heads *h, const number *in, const number *cos, const number *sin, int64_t by_batch, int half, int way, int threads, number *out) {
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int b = 0; b < h->batch; b++)
        for (int t = 0; t < h->length; t++) {
            const number *c = cos + b * by_batch + (int64_t)t * half, *s = sin + b * by_batch + (int64_t)t * half;
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + at(h->x, b, n, t);
                number *y = out + at(h->out, b, n, t);
                for (int i = 0; i < half; i++) {
                    number first = x[i], second = x[i + half], turn = way * s[i];
                    y[i] = first * c[i] - second * turn;
                    y[i + half] = second * c[i] + first * turn;
                }
                std::copy(x + 2 * half, x + h->width, y + 2 * half);
            }
        }
}

// max(x, 0)^2
void qkv_relu_squared(const number *x, int64_t n, int threads, number *out) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

// 2 max(x, 0) times the gradient
void qkv_relu_squared_back(const number *x, const number *grad, int64_t n, int threads, number *out) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? 2 * x[i] * grad[i] : 0;
}

// gain * x / sqrt(mean(x^2) + eps), and 1 / that root for the way back, (batch, heads, length).
void qkv_rms(const Heads *h, const number *in, const number *gain, number eps, int threads, number *out, number *shrinks) {
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int b = 0; b < h->batch; b++)
        for (int t = 0; t < h->length; t++)
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + at(h->x, b, n, t);
                number *y = out + at(h->out, b, n, t), sum = 0;
                for (int i = 0; i < h->width; i++) sum += x[i] * x[i];
                number shrink = 1 / std::sqrt(sum / h->width + eps);
                for (int i = 0; i < h->width; i++) y[i] = x[i] * shrink * gain[i];
                shrinks[((int64_t)b * h->heads + n) * h->length + t] = shrink;
            }
}

// With u = x * shrink: dx = (gain g - u mean(gain g u)) * shrink, dgain = sum of g u. The sums of
// each batch are kept apart, (batch, width), zeros at first: their order does not depend on the threads.
void qkv_rms_back(const Heads *h, const number *in, const number *gain, const number *shrinks, const number *grads, int threads, number *out, number *gain_sums) {
#pragma omp parallel for num_threads(threads)
    for (int b = 0; b < h->batch; b++) {
        number *sums = gain_sums + (int64_t)b * h->width;
        for (int t = 0; t < h->length; t++)
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + at(h->x, b, n, t);
                const number *g = grads + at(h->grad, b, n, t);
                number *dx = out + at(h->out, b, n, t), shrink = shrinks[((int64_t)b * h->heads + n) * h->length + t], mean = 0;
                for (int i = 0; i < h->width; i++) {
                    number both = g[i] * x[i] * shrink;
                    sums[i] += both;
                    mean += both * gain[i];
                }
                mean = mean * shrink * shrink / h->width;
                for (int i = 0; i < h->width; i++) dx[i] = g[i] * gain[i] * shrink - x[i] * mean;
            }
    }
}
}
