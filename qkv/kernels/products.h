// Matrix products y = x W^T + b for one row up to thousands, blocked for registers and caches.
//
// Layout: W is stored in panels of PANEL_WIDTH outputs, (panels, inputs, PANEL_WIDTH). A decode
// step reads every weight once, so its time is the time to read W: in this layout a thread reads
// its panels sequentially, and prefetches the weights PREFETCH_INPUTS inputs ahead.
// Registers: `block` keeps the sums of ROWS rows times PANELS panels in registers and adds one
// input after the other: ROWS * PANELS * 2 vectors, at most MAX_BLOCK_ROWS * 2.
// Caches: more than MAX_BLOCK_ROWS rows are split into tiles of at most L2_TILE_BYTES, which stay
// in the second-level cache of a core while all panels are multiplied with them.
// The sum of an output runs over the inputs in order for any blocking, so results are
// batch-invariant, bit for bit.
#pragma once
#include "api.h"

constexpr int PANEL_WIDTH = 2 * LANES;     // outputs of a panel
constexpr int PREFETCH_INPUTS = 48;        // prefetch distance
constexpr int CACHE_LINE_BYTES = 64;
constexpr int L2_TILE_BYTES = 1 << 20;     // rows that stay in the second-level cache
constexpr int MAX_BLOCK_PANELS = 4;        // with few rows: independent sums hide the add latency

namespace {
#if defined(__AVX512F__) && !defined(IN_DOUBLE)  // compilers do not emit these two by themselves
inline Vector load(const int8_t *from) {
    return (Vector)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
#elif defined(__AVX2__) && !defined(IN_DOUBLE)
inline Vector load(const int8_t *from) {
    return (Vector)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
#else
inline Vector load(const int8_t *from) {
    Vector all;
    for (int i = 0; i < LANES; i++) all[i] = from[i];
    return all;
}
#endif

// Store, or add, the first `n` numbers of a vector, at most all of it.
inline void store(Vector y, number *to, int n, bool add) {
    if (n >= LANES) *(Vector *)to = add ? load(to) + y : y;
    else for (int i = 0; i < n; i++) to[i] = add ? to[i] + y[i] : y[i];
}

// Multiply with, or add, one value per output; unrolled, so that the sums stay in registers.
template <int ROWS, int PANELS, bool SCALE>
inline void scale_or_shift(Vector (&sums)[ROWS][PANELS][2], const number *values) {
#pragma GCC unroll 16
    for (int n = 0; n < 2 * PANELS; n++) {
        Vector value = load(values + n * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
            if (SCALE) sums[r][n / 2][n % 2] *= value;
            else sums[r][n / 2][n % 2] += value;
    }
}

template <int ROWS, int PANELS, bool ADD>
inline void store_all(Vector (&sums)[ROWS][PANELS][2], number *out, int64_t outputs) {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
        number *to = out + r * outputs;
#pragma GCC unroll 16
        for (int n = 0; n < 2 * PANELS; n++) {
            Vector y = sums[r][n / 2][n % 2];
            *(Vector *)(to + n * LANES) = ADD ? load(to + n * LANES) + y : y;
        }
    }
}

// `in` (inputs, ROWS) times PANELS panels, all sums in registers.
template <class Weight, int ROWS, int PANELS>
void block(const Matrix &m, int panel, const number *in, number *out, bool add) {
    const Weight *weights = (const Weight *)m.panels + (int64_t)panel * m.inputs * PANEL_WIDTH;
    Vector sums[ROWS][PANELS][2] = {};
    for (int k = 0; k < m.inputs; k++)
        for (int p = 0; p < PANELS; p++) {
            const Weight *w = weights + ((int64_t)p * m.inputs + k) * PANEL_WIDTH;
            const char *ahead = (const char *)(w + PREFETCH_INPUTS * PANEL_WIDTH);
            for (size_t line = 0; line < PANEL_WIDTH * sizeof(Weight); line += CACHE_LINE_BYTES)
                __builtin_prefetch(ahead + line);
            Vector left = load(w), right = load(w + LANES);
            for (int r = 0; r < ROWS; r++) {
                number x = in[(int64_t)k * ROWS + r];
                sums[r][p][0] += left * x;
                sums[r][p][1] += right * x;
            }
        }
    int first = panel * PANEL_WIDTH;
    if (m.scales) scale_or_shift<ROWS, PANELS, true>(sums, m.scales + first);
    if (m.bias) scale_or_shift<ROWS, PANELS, false>(sums, m.bias + first);
    out += first;
    if (m.outputs - first < PANELS * PANEL_WIDTH) {  // the last panel
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < 2 * PANELS; n++)
                store(sums[r][n / 2][n % 2], out + (int64_t)r * m.outputs + n * LANES,
                      m.outputs - first - n * LANES, add);
    } else if (add) store_all<ROWS, PANELS, true>(sums, out, m.outputs);
    else store_all<ROWS, PANELS, false>(sums, out, m.outputs);
}

// All panels from `begin` to `end`, for up to MAX_BLOCK_ROWS rows: `block` with ROWS = rows, and as
// many panels at once as there are registers for their sums.
template <class Weight, int ROWS>
void panel_range(int rows, const Matrix &m, int begin, int end, const number *in, number *out,
                 bool add) {
    if constexpr (ROWS > 0) {
        if (rows != ROWS)
            return panel_range<Weight, ROWS - 1>(rows, m, begin, end, in, out, add);
        constexpr int PANELS = std::max(1, std::min(MAX_BLOCK_PANELS, MAX_BLOCK_ROWS / ROWS));
        for (; begin + PANELS <= end; begin += PANELS)
            block<Weight, ROWS, PANELS>(m, begin, in, out, add);
        for (; begin < end; begin++) block<Weight, ROWS, 1>(m, begin, in, out, add);
    }
}

// Transpose four numbers of four rows, `width` apart, into columns, `n` apart.
inline void transpose_four(const number *from, int width, number *to, int n) {
#if defined(__AVX2__) && !defined(IN_DOUBLE)  // in registers: a third of the time
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + width);
    __m128 c = _mm_loadu_ps(from + 2 * width), d = _mm_loadu_ps(from + 3 * width);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a), _mm_storeu_ps(to + n, b);
    _mm_storeu_ps(to + 2 * n, c), _mm_storeu_ps(to + 3 * n, d);
#else
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 4; k++) to[k * n + r] = from[r * width + k];
#endif
}

// (rows, inputs) -> (inputs, rows) for each MAX_BLOCK_ROWS rows, so that `block` reads the inputs
// of all its rows sequentially.
const number *transposed(const number *in, int rows, int inputs) {
    if (rows == 1) return in;
    static thread_local std::vector<number> buffer;
    buffer.resize((int64_t)rows * inputs);
    for (int top = 0; top < rows; top += MAX_BLOCK_ROWS) {
        int n = std::min(MAX_BLOCK_ROWS, rows - top);
        number *to = buffer.data() + (int64_t)top * inputs;
        const number *from = in + (int64_t)top * inputs;
        int fours = n / 4 * 4, even = inputs / 4 * 4;
        for (int r = 0; r < fours; r += 4)
            for (int k = 0; k < even; k += 4)
                transpose_four(from + (int64_t)r * inputs + k, inputs, to + (int64_t)k * n + r, n);
        for (int r = 0; r < n; r++)
            for (int k = r < fours ? even : 0; k < inputs; k++)
                to[(int64_t)k * n + r] = from[(int64_t)r * inputs + k];
    }
    return buffer.data();
}

template <class Weight>
void product_of(const Matrix &m, const number *in, int rows, number *out, bool add,
                ThreadRange threads) {
    int begin, end;
    split_work((m.outputs + PANEL_WIDTH - 1) / PANEL_WIDTH, threads, begin, end);
    if (rows <= MAX_BLOCK_ROWS) {
        const number *columns = transposed(in, rows, m.inputs);
        return panel_range<Weight, MAX_BLOCK_ROWS>(rows, m, begin, end, columns, out, add);
    }
    // Tiles of equal size: a small last tile would read all panels for few rows.
    int row_bytes = (int)sizeof(number) * m.inputs;
    int max_tile = std::max(1, L2_TILE_BYTES / row_bytes / MAX_BLOCK_ROWS) * MAX_BLOCK_ROWS;
    int tiles = (rows + max_tile - 1) / max_tile;
    int tile = ((rows + tiles - 1) / tiles + MAX_BLOCK_ROWS - 1) / MAX_BLOCK_ROWS * MAX_BLOCK_ROWS;
    for (int top = 0; top < rows; top += tile) {
        int n = std::min(tile, rows - top);
        const number *columns = transposed(in + (int64_t)top * m.inputs, n, m.inputs);
        for (int panel = begin; panel < end; panel++)
            for (int row = 0; row < n; row += MAX_BLOCK_ROWS)
                panel_range<Weight, MAX_BLOCK_ROWS>(
                    std::min(MAX_BLOCK_ROWS, n - row), m, panel, panel + 1,
                    columns + (int64_t)row * m.inputs, out + (int64_t)(top + row) * m.outputs, add);
    }
}

// out = in W^T + b, or added to out: (rows, inputs) -> (rows, outputs). The panels are divided
// among the threads.
void product(const Matrix &m, const number *in, int rows, number *out, bool add,
             ThreadRange threads) {
    if (m.scales) product_of<int8_t>(m, in, rows, out, add, threads);
    else product_of<number>(m, in, rows, out, add, threads);
}
}  // namespace
