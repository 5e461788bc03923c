// Rotary position embedding of (batch, heads, length, width), in one pass; called by
// kernels/rotary.py.
//
// The outer loops run over tokens, the inner one over heads: all heads of a token share one row of
// cos and sin, which stays in the first-level cache, and the output, in which the heads of a token
// are neighbors, is written from start to end.
#include "api.h"

extern "C" {
// Rotate the first 2 * half elements of each row in pairs (i, i + half):
// (a, b) -> (a cos - b sin, b cos + a sin); copy the others. direction 1 rotates by the angle, -1
// by its negative (the gradient). cos and sin are (batch or 1, length, half); angle_stride is their
// stride over the batch, 0 if all share the same angles.
void qkv_rotate(const HeadLayout *h, const number *in, const number *cos, const number *sin,
                int64_t angle_stride, int half, int direction, int threads, number *out) {
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int b = 0; b < h->batch; b++)
        for (int t = 0; t < h->length; t++) {
            const number *c = cos + b * angle_stride + (int64_t)t * half;
            const number *s = sin + b * angle_stride + (int64_t)t * half;
            for (int n = 0; n < h->heads; n++) {
                const number *x = in + row_offset(h->x, b, n, t);
                number *y = out + row_offset(h->out, b, n, t);
                for (int i = 0; i < half; i++) {
                    number first = x[i], second = x[i + half], sine = direction * s[i];
                    y[i] = first * c[i] - second * sine;
                    y[i + half] = second * c[i] + first * sine;
                }
                std::copy(x + 2 * half, x + h->width, y + 2 * half);
            }
        }
}
}
