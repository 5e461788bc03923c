// Squared ReLU and its gradient, each in one pass over n elements; called by kernels/relu2.py.
//
// The conditions compile to vector masks. Each thread takes one contiguous part of the elements.
#include "api.h"

extern "C" {
// max(x, 0)^2
void qkv_relu2(const number *x, int64_t n, int threads, number *out) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

// 2 max(x, 0) grad
void qkv_relu2_backward(const number *x, const number *grad, int64_t n, int threads, number *out) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? 2 * x[i] * grad[i] : 0;
}
}
