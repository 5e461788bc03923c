// Matrix products for few rows and many: W stands in panels, (panels, inputs, WIDTH), so that it is read from start to end.
#pragma once
#include "api.h"

constexpr int WIDTH = 2 * LANES;  // outputs of a panel: matrices are kept as (panels, inputs, WIDTH)
constexpr int FAR = 48, LINE = 64; // inputs whose weights are asked for ahead of their turn; bytes that memory gives at once
constexpr int NEAR = 1 << 20;     // bytes of rows that stay in a core's second cache while all panels pass
constexpr int AT_ONCE = 4;        // panels at most for few rows: sums that do not wait for each other, memory read in several places

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

// `in` (inputs, ROWS) times PANELS panels. Each sum runs over the inputs in their order, whatever stands beside it:
// a row gets the same digits alone and in company.
template <class Weight, int ROWS, int PANELS>
void block(const Matrix &m, int panel, const number *in, number *out, bool add) {
    const Weight *weights = (const Weight *)m.panels + (int64_t)panel * m.inputs * WIDTH;
    Vector sums[ROWS][PANELS][2] = {};
    for (int k = 0; k < m.inputs; k++)
        for (int p = 0; p < PANELS; p++) {
            const Weight *w = weights + ((int64_t)p * m.inputs + k) * WIDTH;
            for (size_t line = 0; line < WIDTH * sizeof(Weight); line += LINE) __builtin_prefetch((const char *)(w + FAR * WIDTH) + line);
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
        constexpr int TOGETHER = std::max(1, std::min(AT_ONCE, MOST_ROWS / ROWS));  // as many sums as there are registers
        for (; begin + TOGETHER <= end; begin += TOGETHER) block<Weight, ROWS, TOGETHER>(m, begin, in, out, add);
        for (; begin < end; begin++) block<Weight, ROWS, 1>(m, begin, in, out, add);
    }
}

// Four numbers of each of four rows, `wide` apart, become columns, `n` apart.
inline void turn_four(const number *from, int wide, number *to, int n) {
#if defined(__AVX2__) && !defined(IN_DOUBLE)  // in registers: a third of the time
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + wide), c = _mm_loadu_ps(from + 2 * wide), d = _mm_loadu_ps(from + 3 * wide);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a), _mm_storeu_ps(to + n, b), _mm_storeu_ps(to + 2 * n, c), _mm_storeu_ps(to + 3 * n, d);
#else
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 4; k++) to[k * n + r] = from[r * wide + k];
#endif
}

// (rows, inputs) -> for every MOST_ROWS rows (inputs, rows): what a block reads stands together, however wide a row is.
const number *side_by_side(const number *in, int rows, int inputs) {
    if (rows == 1) return in;
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)rows * inputs);
    for (int top = 0; top < rows; top += MOST_ROWS) {
        int n = std::min(MOST_ROWS, rows - top);
        number *to = kept.data() + (int64_t)top * inputs;
        const number *from = in + (int64_t)top * inputs;
        int fours = n / 4 * 4, even = inputs / 4 * 4;
        for (int r = 0; r < fours; r += 4)
            for (int k = 0; k < even; k += 4) turn_four(from + (int64_t)r * inputs + k, inputs, to + (int64_t)k * n + r, n);
        for (int r = 0; r < n; r++)
            for (int k = r < fours ? even : 0; k < inputs; k++) to[(int64_t)k * n + r] = from[(int64_t)r * inputs + k];
    }
    return kept.data();
}

template <class Weight>
void product_of(const Matrix &m, const number *in, int rows, number *out, bool add, Team team) {
    int begin, end;
    share((m.outputs + WIDTH - 1) / WIDTH, team, begin, end);
    if (rows <= MOST_ROWS)
        return panels_of<Weight, MOST_ROWS>(rows, m, begin, end, side_by_side(in, rows, m.inputs), out, add);
    int most = std::max(1, NEAR / ((int)sizeof(number) * m.inputs) / MOST_ROWS) * MOST_ROWS, tiles = (rows + most - 1) / most;
    int tile = ((rows + tiles - 1) / tiles + MOST_ROWS - 1) / MOST_ROWS * MOST_ROWS;  // alike: a last one of few rows would read all panels for them
    for (int top = 0; top < rows; top += tile) {
        int n = std::min(tile, rows - top);
        const number *near = side_by_side(in + (int64_t)top * m.inputs, n, m.inputs);
        for (int panel = begin; panel < end; panel++)
            for (int row = 0; row < n; row += MOST_ROWS)
                panels_of<Weight, MOST_ROWS>(std::min(MOST_ROWS, n - row), m, panel, panel + 1, near + (int64_t)row * m.inputs,
                                             out + (int64_t)(top + row) * m.outputs, add);
    }
}

// out = in W^T + b, or that added to it: (rows, inputs) -> (rows, outputs), each thread its share of the outputs.
void product(const Matrix &m, const number *in, int rows, number *out, bool add, Team team) {
    if (m.scales) product_of<int8_t>(m, in, rows, out, add, team);
    else product_of<number>(m, in, rows, out, add, team);
}
}  // namespace
