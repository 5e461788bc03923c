// Self-check of the operations of training, on (batch, heads, length, width); see self_check.cpp.
#include "self_check.h"

namespace {
constexpr int BATCH = 2, N_HEADS = 3, LENGTH = 5, SIZE = 22, HALF = 9;  // 18 of 22 are rotated
constexpr int ELEMENTS = BATCH * N_HEADS * LENGTH * SIZE;
constexpr int64_t BATCH_STRIDE = N_HEADS * LENGTH * SIZE, HEAD_STRIDE = LENGTH * SIZE;
const HeadLayout LAYOUT = {BATCH,
                           N_HEADS,
                           LENGTH,
                           SIZE,
                           {BATCH_STRIDE, HEAD_STRIDE, SIZE},
                           {BATCH_STRIDE, HEAD_STRIDE, SIZE},
                           {BATCH_STRIDE, HEAD_STRIDE, SIZE}};
}  // namespace

bool check_rotary() {
    Random random = {13};
    std::vector<number> x = uniforms(random, ELEMENTS), cos = uniforms(random, LENGTH * HALF);
    std::vector<number> sin = uniforms(random, LENGTH * HALF), y(ELEMENTS);
    for (int direction : {1, -1}) {
        qkv_rotate(&LAYOUT, x.data(), cos.data(), sin.data(), 0, HALF, direction, THREADS,
                   y.data());
        for (int n = 0; n < ELEMENTS; n++) {
            int i = n % SIZE, angle = n / SIZE % LENGTH * HALF + i % HALF, first = n - i + i % HALF;
            double a = x[first], b = x[first + HALF], c = cos[angle], s = direction * sin[angle];
            double rotated = i < HALF ? a * c - b * s : b * c + a * s;
            if (!close(y[n], i < 2 * HALF ? rotated : x[n])) return false;
        }
    }
    return true;
}

// Forward: x * gain / sqrt(mean(x^2) + eps). Backward: by the derivative of each output with
// respect to each input.
bool check_rms_norm() {
    Random random = {17};
    std::vector<number> x = uniforms(random, ELEMENTS), gain = uniforms(random, SIZE);
    std::vector<number> grads = uniforms(random, ELEMENTS), y(ELEMENTS), dx(ELEMENTS);
    std::vector<number> scales(ELEMENTS / SIZE), gain_sums(BATCH * SIZE);
    qkv_rms_norm(&LAYOUT, x.data(), gain.data(), (number)1e-3, THREADS, y.data(), scales.data());
    qkv_rms_norm_backward(&LAYOUT, x.data(), gain.data(), scales.data(), grads.data(), THREADS,
                          dx.data(), gain_sums.data());
    Row expected_sums(BATCH * SIZE);
    for (int first = 0; first < ELEMENTS; first += SIZE) {
        double squares = 0;
        for (int i = 0; i < SIZE; i++) squares += (double)x[first + i] * x[first + i];
        double rms = std::sqrt(squares / SIZE + (double)(number)1e-3);
        for (int i = 0; i < SIZE; i++) {
            double grad = 0;
            for (int j = 0; j < SIZE; j++) {
                double derivative = (i == j) / rms - (double)x[first + i] * x[first + j] /
                                                         (SIZE * rms * rms * rms);
                grad += grads[first + j] * gain[j] * derivative;
            }
            expected_sums[first / BATCH_STRIDE * SIZE + i] +=
                grads[first + i] * x[first + i] / rms;
            if (!close(y[first + i], x[first + i] / rms * gain[i])) return false;
            if (!close(dx[first + i], grad)) return false;
        }
    }
    return std::equal(gain_sums.begin(), gain_sums.end(), expected_sums.begin(), close);
}

bool check_relu2() {
    Random random = {19};
    std::vector<number> x = uniforms(random, ELEMENTS), grads = uniforms(random, ELEMENTS);
    std::vector<number> y(ELEMENTS), dx(ELEMENTS);
    qkv_relu2(x.data(), ELEMENTS, THREADS, y.data());
    qkv_relu2_backward(x.data(), grads.data(), ELEMENTS, THREADS, dx.data());
    for (int i = 0; i < ELEMENTS; i++) {
        double positive = std::max((double)x[i], 0.0);
        if (!close(y[i], positive * positive)) return false;
        if (!close(dx[i], 2 * positive * grads[i])) return false;
    }
    return true;
}
