// Shared by the checks of self_check.cpp and self_check_training.cpp: inputs and comparison.
#pragma once
#include "api.h"

bool check_rotary();
bool check_rms_norm();
bool check_relu2();

namespace {
typedef std::vector<double> Row;
constexpr int THREADS = 2;

// Pseudo-random inputs, the same on every machine.
struct Random {
    uint32_t state;
    uint32_t next() { return (state = state * 1664525u + 1013904223u) >> 8; }
    double uniform() { return next() / 8388608.0 - 1; }  // [-1, 1)
};

std::vector<number> uniforms(Random &random, size_t n) {
    std::vector<number> all(n);
    for (number &x : all) x = (number)random.uniform();
    return all;
}

bool close(double got, double expected) {
    double tolerance = sizeof(number) == 8 ? 1e-12 : 1e-5;
    return std::abs(got - expected) <= tolerance * (1 + std::abs(expected));  // false for NaN
}
}  // namespace
