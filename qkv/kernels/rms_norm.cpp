// RMSNorm of the rows of (batch, heads, length, width), and its gradient; called by
// kernels/rms_norm.py.
//
// Each row is read from memory once: the first loop over it computes the sum, the second one reads
// the row from the first-level cache. As separate operations, each would be a pass over the whole
// tensor.
#include "api.h"

extern "C" {
// gain * x * scale with scale = 1 / sqrt(mean(x^2) + eps); the scales, (batch, heads, length), are
// kept for the gradient.
void qkv_rms_norm(const HeadLayout *h, const number *in, const number *gain, number eps,
                  int threads, number *out, number *scales) {
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int b = 0; b < h->batch; b++)
        for (int t = 0; t < h->length; t++)
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + row_offset(h->x, b, n, t);
                number *y = out + row_offset(h->out, b, n, t), sum = 0;
                for (int i = 0; i < h->width; i++) sum += x[i] * x[i];
                number scale = 1 / std::sqrt(sum / h->width + eps);
                for (int i = 0; i < h->width; i++) y[i] = x[i] * scale * gain[i];
                scales[((int64_t)b * h->heads + n) * h->length + t] = scale;
            }
}

// With n = x * scale and the gradient g of the output: dx = (gain g - n mean(gain g n)) * scale,
// and dgain = sum of g n. A thread takes whole batch indices, each with its own gain sums, (batch,
// width), initially zero, which the caller adds: the order of all sums, and so the result, does not
// depend on the number of threads.
void qkv_rms_norm_backward(const HeadLayout *h, const number *in, const number *gain,
                           const number *scales, const number *grads, int threads, number *out,
                           number *gain_sums) {
#pragma omp parallel for num_threads(threads)
    for (int b = 0; b < h->batch; b++) {
        number *sums = gain_sums + (int64_t)b * h->width;
        for (int t = 0; t < h->length; t++)
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + row_offset(h->x, b, n, t);
                const number *g = grads + row_offset(h->grad, b, n, t);
                number *dx = out + row_offset(h->out, b, n, t);
                number scale = scales[((int64_t)b * h->heads + n) * h->length + t], mean = 0;
                for (int i = 0; i < h->width; i++) {
                    number gain_grad = g[i] * x[i] * scale;
                    sums[i] += gain_grad;
                    mean += gain_grad * gain[i];
                }
                mean = mean * scale * scale / h->width;
                for (int i = 0; i < h->width; i++) dx[i] = g[i] * gain[i] * scale - x[i] * mean;
            }
    }
}
}
