// Matrix products y = x W^T + b for a few rows up to thousands, blocked for registers and caches.
//
// Layout: W is stored in panels of WIDTH outputs, (panels, inputs, WIDTH). A step of decoding reads every weight once, so its
// time is the time to read W: in this layout a thread reads its panels from start to end, and asks for the weights of
// PREFETCH_INPUTS inputs ahead. Registers: `block` keeps the sums of ROWS rows times PANELS panels in registers and adds
// one input after the other, ROWS * PANELS * 2 vectors at most MOST_ROWS * 2. Caches: with more than MOST_ROWS rows the rows are cut
// into tiles of at most L2_BYTES, which stay in a core's second-level cache while all panels pass over them.
// The sum of an output runs over the inputs in their order, whatever the blocking: batch-invariant, bit for bit.
#pragma once
#include "api.h"

constexpr int WIDTH = 2 * LANES;             // outputs of a panel
constexpr int PREFETCH_INPUTS = 48;          // weights are prefetched so many inputs ahead
constexpr int LINE_BYTES = 64;               // of a cache line
constexpr int L2_BYTES = 1 << 20;            // of rows that stay in the second-level cache
constexpr int MOST_PANELS = 4;               // panels at once for few rows: independent sums hide the latency of an addition

namespace {
#if defined(__AVX512F__) && !defined(IN_DOUBLE)  // compilers do not find these two instructions by themselves
inline Vector load(const int8_t *from) { return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from))); }
#elif defined(__AVX2__) && !defined(IN_DOUBLE)
inline Vector load(const int8_t *from) { return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from))); }
#else
inline Vector load(const int8_t *from) {
    Vector all;
    for (int i = 0; i < LANES; i++) all[i] = from[i];
    return all;
}
#endif

// `left` numbers of a vector, or all of it.
inline void store(Vector y, number *to, int left, bool add) {
    if (left >= LANES) *(Vector *)to = add ? load(to) + y : y;
    else for (int i = 0; i < left; i++) to[i] = add ? to[i] + y[i] : y[i];
}

// `in` (inputs, ROWS) times PANELS panels, all sums in registers.
template <class Weight, int ROWS, int PANELS>
void block(const Matrix &m, int panel, const number *in, number *out, bool add) {
    const Weight *weights = (const Weight *)m.panels + (int64_t)panel * m.inputs * WIDTH;
    Vector sums[ROWS][PANELS][2] = {};
    for (int k = 0; k < m.inputs; k++)
        for (int p = 0; p < PANELS; p++) {
            const Weight *w = weights + ((int64_t)p * m.inputs + k) * WIDTH;
            for (size_t line = 0; line < WIDTH * sizeof(Weight); line += LINE_BYTES) __builtin_prefetch((const char *)(w + PREFETCH_INPUTS * WIDTH) + line);
            Vector left = load(w), right = load(w + LANES);
            for (int r = 0; r < ROWS; r++) {
                number x = in[(int64_t)k * ROWS + r];
                sums[r][p][0] += left * x;
                sums[r][p][1] += right * x;
            }
        }
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < 2 * PANELS; n++) {
            int first = panel * WIDTH + n * LANES;
            Vector y = sums[r][n / 2][n % 2];
            if (m.scales) y *= load(m.scales + first);
            if (m.bias) y += load(m.bias + first);
            store(y, out + (int64_t)r * m.outputs + first, m.outputs - first, add);
        }
}

// All panels from `begin` to `end`, for up to MOST_ROWS rows.
template <class Weight, int ROWS>
void panels_of(int rows, const Matrix &m, int begin, int end, const number *in, number *out, bool add) {
    if constexpr (ROWS > 0) {
        if (rows != ROWS) return panels_of<Weight, ROWS - 1>(rows, m, begin, end, in, out, add);
        constexpr int PANELS = std::max(1, std::min(MOST_PANELS, MOST_ROWS / ROWS));  // as many sums as there are registers
        for (; begin + PANELS <= end; begin += PANELS) block<Weight, ROWS, PANELS>(m, begin, in, out, add);
        for (; begin < end; begin++) block<Weight, ROWS, 1>(m, begin, in, out, add);
    }
}

// Transpose four numbers of four rows, `width` apart, into columns, `n` apart.
inline void transpose_four(const number *from, int width, number *to, int n) {
#if defined(__AVX2__) && !defined(IN_DOUBLE)  // in registers: a third of the time
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + width), c = _mm_loadu_ps(from + 2 * width), d = _mm_loadu_ps(from + 3 * width);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a), _mm_storeu_ps(to + n, b), _mm_storeu_ps(to + 2 * n, c), _mm_storeu_ps(to + 3 * n, d);
#else
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 4; k++) to[k * n + r] = from[r * width + k];
#endif
}

// (rows, inputs) -> for every MOST_ROWS rows (inputs, rows), so that a block reads its rows' numbers from one place.
const number *transposed(const number *in, int rows, int inputs) {
    if (rows == 1) return in;
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)rows * inputs);
    for (int top = 0; top < rows; top += MOST_ROWS) {
        int n = std::min(MOST_ROWS, rows - top);
        number *to = kept.data() + (int64_t)top * inputs;
        const number *from = in + (int64_t)top * inputs;
        int fours = n / 4 * 4, even = inputs / 4 * 4;
        for (int r = 0; r < fours; r += 4)
            for (int k = 0; k < even; k += 4) transpose_four(from + (int64_t)r * inputs + k, inputs, to + (int64_t)k * n + r, n);
        for (int r = 0; r < n; r++)
            for (int k = r < fours ? even : 0; k < inputs; k++) to[(int64_t)k * n + r] = from[(int64_t)r * inputs + k];
    }
    return kept.data();
}

template <class Weight>
void product_of(const Matrix &m, const number *in, int rows, number *out, bool add, ThreadRange threads) {
    int begin, end;
    share((m.outputs + WIDTH - 1) / WIDTH, threads, begin, end);
    if (rows <= MOST_ROWS)
        return panels_of<Weight, MOST_ROWS>(rows, m, begin, end, transposed(in, rows, m.inputs), out, add);
    int most = std::max(1, L2_BYTES / ((int)sizeof(number) * m.inputs) / MOST_ROWS) * MOST_ROWS, tiles = (rows + most - 1) / most;
    int tile = ((rows + tiles - 1) / tiles + MOST_ROWS - 1) / MOST_ROWS * MOST_ROWS;  // tiles of one size: a small last one would read all panels for few rows
    for (int top = 0; top < rows; top += tile) {
        int n = std::min(tile, rows - top);
        const number *tile_rows = transposed(in + (int64_t)top * m.inputs, n, m.inputs);
        for (int panel = begin; panel < end; panel++)
            for (int row = 0; row < n; row += MOST_ROWS)
                panels_of<Weight, MOST_ROWS>(std::min(MOST_ROWS, n - row), m, panel, panel + 1, tile_rows + (int64_t)row * m.inputs,
                                             out + (int64_t)(top + row) * m.outputs, add);
    }
}

// out = in W^T + b, or that added to out: (rows, inputs) -> (rows, outputs); the panels are divided among the threads.
void product(const Matrix &m, const number *in, int rows, number *out, bool add, ThreadRange threads) {
    if (m.scales) product_of<int8_t>(m, in, rows, out, add, threads);
    else product_of<number>(m, in, rows, out, add, threads);
}
}  // namespace
