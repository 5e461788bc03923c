// One step of a decoder, for machines whose compiler is at hand: the same sums as fast_layer.py, without a dispatch for each.
//
// In: the stream of the newest token of each row, and the cache. Out: logits; the cache has one more cell for each beam.
// Called by generate/native.py; equal to the model's own (tests/generate/test_native.py). Told in docs/performance.md, "The native library".
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
constexpr int BYTES = 64, MOST_ROWS = 12;  // of a vector register; rows whose sums stay in registers
#elif defined(__AVX__)
constexpr int BYTES = 32, MOST_ROWS = 6;
#else
constexpr int BYTES = 16, MOST_ROWS = 6;
#endif
constexpr int LANES = BYTES / sizeof(number);
constexpr int WIDTH = 2 * LANES;  // outputs of a panel: matrices are kept as (panels, inputs, WIDTH)
constexpr int NEAR = 1 << 18;     // bytes of rows that stay in a core's second cache while all panels pass
constexpr int AT_ONCE = 4;        // panels for a single row: sums that do not wait for each other
typedef number Vector __attribute__((vector_size(BYTES), aligned(sizeof(number)), may_alias));

// ── What generate/native.py hands over; the same structures stand there, field by field ──────────────────────────────────
struct Matrix {
    const void *panels;     // (panels, inputs, WIDTH), float32 or int8
    const number *scales;   // of each output, for int8; null: the panels hold numbers. Filled up to whole panels, as
    const number *bias;     // this is; null: none
    int32_t outputs, inputs;
};
struct Norm {               // gain * (x - mean) / sqrt(variance + small) + bias, or without a mean: gain * x / sqrt(sum + small)
    const number *gain, *bias;
    number small;
    int32_t kind;           // 0: nothing is done; 1: layer; 2: root of the sum of squares
};
struct Attention {
    Norm norm;
    Matrix in, out;         // in: q, k and v, or q alone where the keys are the encoder's
    Norm q_norm, k_norm;    // of each head
    int32_t heads, kv_heads, d_head;
};
struct Layer {
    Attention self, cross;
    int32_t has_cross, pre_norm;
    Norm norm;              // of the feed-forward
    Matrix up, down;        // up: gate and up, if gated
    int32_t gated, activation;
};
struct Cells {              // (layers, sentences, kv_heads, room, d_head)
    number *keys, *values;
    const number *hidden;   // 0 where a beam may look
    int64_t by_sentence, by_beam;  // strides of hidden; 0: the same for all
    int32_t room, end;      // cells there are; cells in use, those of this step among them
};
struct Model {
    const Layer *layers;
    int32_t n_layers, d_model, widest;  // widest: of all that a part makes of a row
    Norm norm;
    Matrix head;
};

namespace {  // nothing but the last functions is seen from outside
// ── Products ─────────────────────────────────────────────────────────────────────────────────────────────────────
inline Vector load(const number *from) { return *(const Vector *)from; }
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

template <class Weight, int ROWS>
void rows_left(int rows, const Matrix &m, int panel, const number *in, number *out, bool add) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) block<Weight, ROWS, 1>(m, panel, in, out, add);
        else rows_left<Weight, ROWS - 1>(rows, m, panel, in, out, add);
    }
}

struct Team { int thread, threads; };  // who of how many

inline void share(int n, Team team, int &begin, int &end) {
    begin = (int64_t)n * team.thread / team.threads;
    end = (int64_t)n * (team.thread + 1) / team.threads;
}

// (rows, inputs) -> for every MOST_ROWS rows (inputs, rows): what a block reads stands together, however wide a row is.
const number *side_by_side(const number *in, int rows, int inputs) {
    if (rows == 1) return in;
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)rows * inputs);
    for (int top = 0; top < rows; top += MOST_ROWS) {
        int n = std::min(MOST_ROWS, rows - top);
        number *to = kept.data() + (int64_t)top * inputs;
        for (int r = 0; r < n; r++)
            for (int k = 0; k < inputs; k++) to[(int64_t)k * n + r] = in[(int64_t)(top + r) * inputs + k];
    }
    return kept.data();
}

template <class Weight>
void product_of(const Matrix &m, const number *in, int rows, number *out, bool add, Team team) {
    int begin, end;
    share((m.outputs + WIDTH - 1) / WIDTH, team, begin, end);
    int panel = begin;
    if (rows == 1)
        for (; panel + AT_ONCE <= end; panel += AT_ONCE) block<Weight, 1, AT_ONCE>(m, panel, in, out, add);
    int tile = std::max(1, NEAR / ((int)sizeof(number) * m.inputs) / MOST_ROWS) * MOST_ROWS;
    for (int top = 0, first = panel; top < rows; top += tile) {
        int n = std::min(tile, rows - top);
        const number *near = side_by_side(in + (int64_t)top * m.inputs, n, m.inputs);
        for (panel = first; panel < end; panel++)
            for (int row = 0; row < n; row += MOST_ROWS)
                rows_left<Weight, MOST_ROWS>(std::min(MOST_ROWS, n - row), m, panel, near + (int64_t)row * m.inputs, out + (int64_t)(top + row) * m.outputs, add);
    }
}

// out = in W^T + b, or that added to it: (rows, inputs) -> (rows, outputs), each thread its share of the outputs.
void product(const Matrix &m, const number *in, int rows, number *out, bool add, Team team) {
    if (m.scales) product_of<int8_t>(m, in, rows, out, add, team);
    else product_of<number>(m, in, rows, out, add, team);
}

// ── Norms, activations ───────────────────────────────────────────────────────────────────────────────────────────
void normed(const Norm &norm, const number *in, number *out, int width) {
    number mean = 0, sum = 0;
    if (norm.kind == 1) {
        for (int i = 0; i < width; i++) mean += in[i];
        mean /= width;
    }
    for (int i = 0; i < width; i++) sum += (in[i] - mean) * (in[i] - mean);
    number by = norm.kind ? 1 / std::sqrt((norm.kind == 1 ? sum / width : sum) + norm.small) : 1;
    for (int i = 0; i < width; i++) {
        number x = (in[i] - mean) * by;
        if (norm.gain) x *= norm.gain[i];
        out[i] = norm.bias ? x + norm.bias[i] : x;
    }
}

void norm_rows(const Norm &norm, const number *in, number *out, int rows, int width, Team team) {
    int begin, end;
    share(rows, team, begin, end);
    for (int row = begin; row < end; row++) normed(norm, in + (int64_t)row * width, out + (int64_t)row * width, width);
}

#ifdef IN_DOUBLE
inline number power(number x) { return std::exp(x); }
#else
// e^x to the last digit or two, in operations that all have a vector form: 2^n * e^rest, rest within half a log(2).
inline number power(number x) {
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

inline number activated(number x, int kind) {
    switch (kind) {
        case 0: return std::max(x, (number)0);
        case 1: return x > 0 ? x * x : 0;
        case 2: return x * (number)0.5 * (1 + std::erf(x * (number)0.70710678118654752));
        case 3: return x * (number)0.5 * (1 + std::tanh((number)0.79788456080286536 * (x + (number)0.044715 * x * x * x)));
        default: return x / (1 + power(-x));
    }
}

// (rows, d_ff), or of gate and up (rows, 2 d_ff): what goes down, (rows, d_ff).
void activate(const Layer &layer, const number *in, number *out, int rows, Team team) {
    int d_ff = layer.down.inputs, wide = layer.up.outputs, begin, end;
    share(d_ff, team, begin, end);
    for (int row = 0; row < rows; row++)
        for (int i = begin; i < end; i++) {
            const number *from = in + (int64_t)row * wide + i;
            number x = activated(*from, layer.activation);
            out[(int64_t)row * d_ff + i] = layer.gated ? x * from[d_ff] : x;
        }
}

// ── Attention ────────────────────────────────────────────────────────────────────────────────────────────────────
typedef std::vector<std::vector<int>> Sight;  // the cells that each row sees

Sight sight_of(const Cells &cells, int rows, int beams) {
    Sight sight(rows);
    for (int row = 0; row < rows; row++) {
        const number *hidden = cells.hidden + row / beams * cells.by_sentence + row % beams * cells.by_beam;
        for (int cell = 0; cell < cells.end; cell++)
            if (hidden[cell] == 0) sight[row].push_back(cell);
    }
    return sight;
}

// A query or key: its norm, then its turn by a matrix (d_head, d_head), null: no turn.
void placed(const Norm &norm, const number *turn, const number *in, number *out, int width) {
    std::vector<number> made(width);
    normed(norm, in, turn ? made.data() : out, width);
    if (!turn) return;
    std::fill(out, out + width, 0);
    for (int i = 0; i < width; i++)
        for (int j = 0; j < width; j++) out[j] += made[i] * turn[(int64_t)i * width + j];
}

// softmax(q k^T) v over the cells in sight.
void look(const number *q, const number *keys, const number *values, const std::vector<int> &sight, number *out, int width) {
    std::vector<number> scores(sight.size());
    number best = -INFINITY, total = 0;
    for (size_t n = 0; n < sight.size(); n++) {
        const number *key = keys + (int64_t)sight[n] * width;
        number score = 0;
        for (int i = 0; i < width; i++) score += q[i] * key[i];
        scores[n] = score;
        best = std::max(best, score);
    }
    for (number &score : scores) total += score = power(score - best);
    std::fill(out, out + width, 0);
    for (size_t n = 0; n < sight.size(); n++) {
        const number *value = values + (int64_t)sight[n] * width, weight = scores[n] / total;
        for (int i = 0; i < width; i++) out[i] += weight * value[i];
    }
}

struct Scene { const Cells &cells; const Sight &sight; const number *turn; int layer, rows, beams; };

// Each key/value head of each row: its new cell (not of the encoder's memory), then the queries of its group.
void attend(const Attention &a, const Scene &s, const number *made, number *mixed, bool is_cross, Team team) {
    int d = a.d_head, group = a.heads / a.kv_heads, wide = a.in.outputs, sentences = s.rows / s.beams, begin, end;
    share(s.rows * a.kv_heads, team, begin, end);
    std::vector<number> q(d);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads, sentence = row / s.beams;
        int64_t store = (((int64_t)s.layer * sentences + sentence) * a.kv_heads + kv) * s.cells.room * d;
        number *keys = s.cells.keys + store, *values = s.cells.values + store;
        const number *mine = made + (int64_t)row * wide;
        if (!is_cross) {
            int64_t cell = (int64_t)(s.cells.end - s.beams + row % s.beams) * d;
            placed(a.k_norm, s.turn, mine + (a.heads + kv) * d, keys + cell, d);
            std::copy_n(mine + (a.heads + a.kv_heads + kv) * d, d, values + cell);
        }
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            placed(a.q_norm, is_cross ? nullptr : s.turn, mine + head * d, q.data(), d);
            look(q.data(), keys, values, s.sight[row], mixed + ((int64_t)row * a.heads + head) * d, d);
        }
    }
}

// ── The step ─────────────────────────────────────────────────────────────────────────────────────────────────────
struct Room { number *x, *h, *made, *mixed; };  // (rows, d_model) twice, (rows, widest) twice

inline void together() {
#pragma omp barrier
}

// x + branch(norm(x)), or norm(x + branch(x)); `branch` reads its first argument and adds to x.
template <class Branch>
void residual(const Model &model, const Norm &norm, bool pre_norm, Room room, int rows, Team team, Branch branch) {
    if (pre_norm) {
        norm_rows(norm, room.x, room.h, rows, model.d_model, team);
        together();
    }
    branch(pre_norm ? room.h : room.x);
    together();
    if (!pre_norm) {
        norm_rows(norm, room.x, room.x, rows, model.d_model, team);
        together();
    }
}

void go_through(const Model &model, const Layer &layer, const Scene &self, const Scene &cross, Room room, Team team) {
    int rows = self.rows;
    auto attention = [&](const Attention &a, const Scene &scene, bool is_cross) {
        residual(model, a.norm, layer.pre_norm, room, rows, team, [&](const number *in) {
            product(a.in, in, rows, room.made, false, team);
            together();
            attend(a, scene, room.made, room.mixed, is_cross, team);
            together();
            product(a.out, room.mixed, rows, room.x, true, team);
        });
    };
    attention(layer.self, self, false);
    if (layer.has_cross) attention(layer.cross, cross, true);
    residual(model, layer.norm, layer.pre_norm, room, rows, team, [&](const number *in) {
        product(layer.up, in, rows, room.made, false, team);
        together();
        activate(layer, room.made, room.mixed, rows, team);
        together();
        product(layer.down, room.mixed, rows, room.x, true, team);
    });
}

// ── The choice ───────────────────────────────────────────────────────────────────────────────────────────────────
constexpr int BLOCK = 8 * LANES;  // scores whose largest is looked at before any of them

number largest(const number *of, int n) {
    number most = of[0];
    int i = 0;
    if (n >= LANES) {
        Vector lanes = load(of);
        for (i = LANES; i + LANES <= n; i += LANES) {
            Vector next = load(of + i);
            lanes = next > lanes ? next : lanes;
        }
        for (int lane = 0; lane < LANES; lane++) most = std::max(most, lanes[lane]);
    }
    for (; i < n; i++) most = std::max(most, of[i]);
    return most;
}

// The n best of one row's scores + shift, put among those of the rows before: best first, of equals the earlier. A place
// that is still free is -1: even -infinity may take it.
void gather_best(const number *scores, int vocab, number shift, int64_t first, int n, number *best, int64_t *place) {
    auto beats = [&](number sum, int at) { return sum > best[at] || place[at] < 0; };
    for (int begin = 0; begin < vocab; begin += BLOCK) {
        int end = std::min(vocab, begin + BLOCK);
        if (!beats(largest(scores + begin, end - begin) + shift, n - 1)) continue;
        for (int i = begin; i < end; i++) {
            number sum = scores[i] + shift;
            if (!beats(sum, n - 1)) continue;
            int at = n - 1;
            for (; at > 0 && beats(sum, at - 1); at--) best[at] = best[at - 1], place[at] = place[at - 1];
            best[at] = sum, place[at] = first + i;
        }
    }
}

number log_sum(const number *scores, int n) {
    number most = largest(scores, n), total = 0;
    for (int i = 0; i < n; i++) total += power(scores[i] - most);
    return most + std::log(total);
}

inline Team my_team() {
#ifdef _OPENMP
    return {omp_get_thread_num(), omp_get_num_threads()};
#else
    return {0, 1};
#endif
}
}  // namespace

extern "C" {
// x (rows, d_model), which is overwritten, to logits (rows, vocab); `turn` and `memory` may be null.
void qkv_step(const Model *model, number *x, const number *turn, const Cells *cells, const Cells *memory, int rows, int beams, int threads, number *logits) {
    Sight past = sight_of(*cells, rows, beams), source = memory ? sight_of(*memory, rows, beams) : Sight();
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)rows * (model->d_model + 2 * model->widest));
    number *made = kept.data() + (int64_t)rows * model->d_model;
    Room room = {x, kept.data(), made, made + (int64_t)rows * model->widest};
#pragma omp parallel num_threads(threads)
    {
        Team team = my_team();
        for (int n = 0; n < model->n_layers; n++)
            go_through(*model, model->layers[n], {*cells, past, turn, n, rows, beams}, {memory ? *memory : *cells, source, nullptr, n, rows, beams}, room, team);
        norm_rows(model->norm, x, room.h, rows, model->d_model, team);
        together();
        product(model->head, room.h, rows, logits, false, team);
    }
}

// out (rows, outputs) = in (rows, inputs) W^T + b.
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out) {
#pragma omp parallel num_threads(threads)
    {
        Team team = my_team();
        product(*matrix, in, rows, out, false, team);
    }
}

// The n best sums of each sentence, the scores (sentences, live, vocab) shifted by `shift` (sentences, live): (sentences, n)
// sums, best first, and their places live row * vocab + token.
void qkv_best(const number *scores, const number *shift, int sentences, int live, int vocab, int n, int threads, number *best, int64_t *place) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        share(sentences, my_team(), begin, end);
        std::fill(place + (int64_t)begin * n, place + (int64_t)end * n, -1);
        for (int row = begin * live; row < end * live; row++) {
            int64_t to = (int64_t)(row / live) * n;
            gather_best(scores + (int64_t)row * vocab, vocab, shift[row], (int64_t)(row % live) * vocab, n, best + to, place + to);
        }
    }
}

// log(sum(exp(scores))) of each row, (rows, vocab) -> (rows,).
void qkv_log_sums(const number *scores, int rows, int vocab, int threads, number *sums) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        share(rows, my_team(), begin, end);
        for (int row = begin; row < end; row++) sums[row] = log_sum(scores + (int64_t)row * vocab, vocab);
    }
}

int qkv_width() { return WIDTH; }

// 0: the instructions that the compiler chose are there, and count right.
int qkv_check() {
    std::vector<number> weights(2 * WIDTH, 3), in(2 * MOST_ROWS, 5), out(WIDTH * MOST_ROWS);
    std::vector<int8_t> small(2 * WIDTH, 3);
    std::vector<number> scales(WIDTH, 1);
    Matrix plain = {weights.data(), nullptr, nullptr, WIDTH, 2}, eight = {small.data(), scales.data(), nullptr, WIDTH, 2};
    for (const Matrix &m : {plain, eight}) {
        product(m, in.data(), MOST_ROWS, out.data(), false, {0, 1});
        if (std::count(out.begin(), out.end(), (number)30) != WIDTH * MOST_ROWS) return 1;
    }
    return 0;
}
}
