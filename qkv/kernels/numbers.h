// Shared by all native code: the number type, vectors of numbers, division of work among threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef IN_DOUBLE  // used by the tests, which compare results to ten digits and more
typedef double number;
#else
typedef float number;
#endif

// VECTOR_BYTES: size of a vector register. MAX_BLOCK_ROWS: rows of a matrix product whose sums fit
// into the vector registers.
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, MAX_BLOCK_ROWS = 12;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, MAX_BLOCK_ROWS = 6;
#else
constexpr int VECTOR_BYTES = 16, MAX_BLOCK_ROWS = 6;
#endif
constexpr int LANES = VECTOR_BYTES / sizeof(number);
typedef number Vector
    __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(number)), may_alias));

namespace {
inline Vector load(const number *from) { return *(const Vector *)from; }

struct ThreadRange { int thread, threads; };  // index of this thread, number of threads

// This thread's part of 0 .. n - 1.
inline void split_work(int n, ThreadRange range, int &begin, int &end) {
    begin = (int64_t)n * range.thread / range.threads;
    end = (int64_t)n * (range.thread + 1) / range.threads;
}

inline ThreadRange thread_range() {
#ifdef _OPENMP
    return {omp_get_thread_num(), omp_get_num_threads()};
#else
    return {0, 1};
#endif
}

#ifdef IN_DOUBLE
inline number fast_exp(number x) { return std::exp(x); }
#else
// e^x to one or two units in the last place, in operations that all have a vector form:
// 2^n * e^rest with |rest| <= log(2) / 2, and a polynomial for e^rest.
inline number fast_exp(number x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    number n = std::nearbyint(x * 1.44269504f), rest = x - n * 0.693359375f + n * 2.12194440e-4f;
    number sum = 1.98756915e-4f;
    for (number coefficient : {1.39819995e-3f, 8.33345190e-3f, 4.16657960e-2f, 1.66666655e-1f, 0.5f,
                               1.0f, 1.0f})
        sum = sum * rest + coefficient;
    int32_t bits = ((int32_t)n + 127) << 23;
    number scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}
#endif
}  // namespace
