// The self-check of the native library as a program, for emulated CPUs (tests/emulated_cpus.py).
//
// Prints the panel width and whether the CPU has AVX-512; the exit code is that of qkv_check().
#include <cstdio>

extern "C" int qkv_width();
extern "C" int qkv_check();

int main() {
#if defined(__x86_64__)
    int avx512 = __builtin_cpu_supports("avx512f") != 0;
#else
    int avx512 = 0;
#endif
    std::printf("width %d, avx512 %d\n", qkv_width(), avx512);
    return qkv_check();
}
