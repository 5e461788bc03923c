// Shared by all native code: the number type, vectors of numbers, the division of work among threads.
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

#ifdef IN_DOUBLE  // for the tests: equal to ten digits and more
typedef double number;
#else
typedef float number;
#endif

#if defined(__AVX512F__)
constexpr int BYTES = 64, MOST_ROWS = 12;  // bytes of a vector register; rows whose sums fit into the registers
#elif defined(__AVX__)
constexpr int BYTES = 32, MOST_ROWS = 6;
#else
constexpr int BYTES = 16, MOST_ROWS = 6;
#endif
constexpr int LANES = BYTES / sizeof(number);
typedef number Vector __attribute__((vector_size(BYTES), aligned(sizeof(number)), may_alias));

namespace {
inline Vector load(const number *from) { return *(const Vector *)from; }

struct ThreadRange { int thread, threads; };  // this thread, of so many

// This thread's part of 0 .. n - 1.
inline void share(int n, ThreadRange range, int &begin, int &end) {
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
// e^x to the last digit or two, in operations that all have a vector form: 2^n * e^rest, rest within half a log(2).
inline number fast_exp(number x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    number n = std::nearbyint(x * 1.44269504f), rest = x - n * 0.693359375f + n * 2.12194440e-4f;
    number sum = 1.98756915e-4f;
    for (number next : {1.39819995e-3f, 8.33345190e-3f, 4.16657960e-2f, 1.66666655e-1f, 0.5f, 1.0f, 1.0f}) sum = sum * rest + next;
    int32_t bits = ((int32_t)n + 127) << 23;
    number scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}
#endif
}  // namespace
