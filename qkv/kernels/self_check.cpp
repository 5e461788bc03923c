// The self-check of the library: each function against plain loops in double precision, in a few milliseconds.
//
// The compiler is the user's and the flags are aggressive: build.py keeps a library only if qkv_check() returns 0 in a process of its own.
// tests/emulated_cpus.py runs the same check on CPUs that are not here. Whole numbers are compared exactly: their sums have no rounding.
#include "api.h"

namespace {
typedef std::vector<double> Row;
constexpr int THREADS = 2;

// ── Inputs that are the same on every machine ────────────────────────────────────────────────────────────────────
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

// ── Matrices: (outputs, inputs) and the panels that the library reads ────────────────────────────────────────────
template <class Weight>
std::vector<Weight> in_panels(const std::vector<Weight> &weights, int outputs, int inputs) {
    int width = qkv_width(), panels = (outputs + width - 1) / width;
    std::vector<Weight> all((size_t)panels * inputs * width);
    for (int o = 0; o < outputs; o++)
        for (int k = 0; k < inputs; k++) all[((size_t)(o / width) * inputs + k) * width + o % width] = weights[(size_t)o * inputs + k];
    return all;
}

struct Linear {
    int outputs, inputs;
    std::vector<number> weights, panels;
    Linear(Random &random, int outputs, int inputs)
        : outputs(outputs), inputs(inputs), weights(uniforms(random, (size_t)outputs * inputs)), panels(in_panels(weights, outputs, inputs)) {}
    Matrix matrix() const { return {panels.data(), nullptr, nullptr, outputs, inputs}; }
    Row times(const Row &x) const {
        Row y(outputs);
        for (int o = 0; o < outputs; o++)
            for (int k = 0; k < inputs; k++) y[o] += weights[(size_t)o * inputs + k] * x[k];
        return y;
    }
};

// Weights and inputs of +-127: pairs of such products overflow 16 bits, which int8 kernels of other libraries saturate.
// mixed 0: all signs alike, the largest sums; 1: any signs.
template <class Weight>
bool check_product(int rows, int mixed) {
    int outputs = 2 * qkv_width() + 3, inputs = 37;
    Random random = {7};
    auto extreme = [&] { return mixed && random.next() % 2 ? -127 : 127; };
    std::vector<Weight> weights((size_t)outputs * inputs);
    std::vector<number> in((size_t)rows * inputs), out((size_t)rows * outputs), scales(3 * qkv_width(), 1), bias(3 * qkv_width());
    for (Weight &w : weights) w = (Weight)extreme();
    for (number &x : in) x = (number)extreme();
    for (size_t o = 0; o < bias.size(); o++) bias[o] = (number)o;
    std::vector<Weight> panels = in_panels(weights, outputs, inputs);
    Matrix m = {panels.data(), sizeof(Weight) == 1 ? scales.data() : nullptr, bias.data(), outputs, inputs};
    qkv_product(&m, in.data(), rows, THREADS, out.data());
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            int64_t sum = o;
            for (int k = 0; k < inputs; k++) sum += (int64_t)weights[(size_t)o * inputs + k] * (int64_t)in[(size_t)r * inputs + k];
            if (out[(size_t)r * outputs + o] != (number)sum) return false;
        }
    return true;
}

template <class Weight>
bool check_products() {
    for (int rows : {1, 3, MOST_ROWS, MOST_ROWS + 2, 4 * MOST_ROWS + 1})
        for (int mixed : {0, 1})
            if (!check_product<Weight>(rows, mixed)) return false;
    return true;
}

// ── One step of a decoder: embedding, grouped-query attention with norms and rotary positions, a gated feed-forward ─
constexpr int D_MODEL = 24, HEADS = 4, KV_HEADS = 2, D_HEAD = 20, ROTARY_PAIRS = 8, D_FF = 36, VOCAB = 67;
constexpr int SENTENCES = 2, BEAMS = 2, ROWS = SENTENCES * BEAMS, PAST = 5, CAPACITY = PAST + BEAMS + 1, POSITIONS = 4;

Row normalize(const Norm &norm, const Row &x) {
    double mean = 0, sum = 0;
    if (norm.kind == 1)
        for (double value : x) mean += value / x.size();
    for (double value : x) sum += (value - mean) * (value - mean) / (norm.kind == 1 ? x.size() : 1);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = (x[i] - mean) / std::sqrt(sum + norm.eps) * norm.gain[i] + (norm.bias ? norm.bias[i] : 0);
    return y;
}

Row rotate(const Row &x, const number *cos, const number *sin) {
    Row y = x;
    for (int i = 0; i < ROTARY_PAIRS; i++) {
        y[i] = x[i] * cos[i] - x[i + ROTARY_PAIRS] * sin[i];
        y[i + ROTARY_PAIRS] = x[i + ROTARY_PAIRS] * cos[i] + x[i] * sin[i];
    }
    return y;
}

Row part(const Row &x, int first, int n) { return Row(x.begin() + first, x.begin() + first + n); }

struct Decoder {
    Random random = {3};
    Linear in{random, (HEADS + 2 * KV_HEADS) * D_HEAD, D_MODEL}, out{random, D_MODEL, HEADS * D_HEAD};
    Linear up{random, 2 * D_FF, D_MODEL}, down{random, D_MODEL, D_FF}, head{random, VOCAB, D_MODEL};
    std::vector<number> gain = uniforms(random, D_MODEL), bias = uniforms(random, D_MODEL), head_gain = uniforms(random, D_HEAD);
    std::vector<number> table = uniforms(random, VOCAB * D_MODEL), added = uniforms(random, POSITIONS * D_MODEL);
    std::vector<number> cos = uniforms(random, POSITIONS * ROTARY_PAIRS), sin = uniforms(random, POSITIONS * ROTARY_PAIRS);
    std::vector<number> keys = uniforms(random, SENTENCES * KV_HEADS * CAPACITY * D_HEAD), values = uniforms(random, keys.size());
    std::vector<number> mask = std::vector<number>(ROWS * CAPACITY, 1);
    std::vector<int64_t> ids = {3, 66, 0, 21};
    std::vector<int32_t> sequence = {0, 0, 1, 1}, slot = {PAST, PAST + 1, PAST, PAST + 1}, position = {3, 1, 0, 2}, end = std::vector<int32_t>(ROWS, PAST + BEAMS);
    std::vector<int32_t> outputs = {3, 0, 1};
    Norm rms = {gain.data(), nullptr, (number)1e-3, 2}, layer_norm = {gain.data(), bias.data(), (number)1e-3, 1};
    Norm head_norm = {head_gain.data(), nullptr, (number)1e-3, 2};

    bool visible(int row, int at) const { return at < PAST ? (row + at) % 3 != 0 : at == slot[row]; }
    size_t at(int row, int kv, int slot) const { return (((size_t)sequence[row] * KV_HEADS + kv) * CAPACITY + slot) * D_HEAD; }
    Row rotated(int row, const Row &x) const {
        return rotate(normalize(head_norm, x), cos.data() + position[row] * ROTARY_PAIRS, sin.data() + position[row] * ROTARY_PAIRS);
    }

    Row attend(int row, int n, const Row &made) const {
        int kv = n / (HEADS / KV_HEADS);
        Row q = rotated(row, part(made, n * D_HEAD, D_HEAD)), new_key = rotated(row, part(made, (HEADS + kv) * D_HEAD, D_HEAD)), mixed(D_HEAD);
        double total = 0;
        for (int slot = 0; slot < PAST + BEAMS; slot++) {
            if (!visible(row, slot)) continue;
            double score = 0;
            for (int i = 0; i < D_HEAD; i++) score += q[i] * (slot < PAST ? keys[at(row, kv, slot) + i] : new_key[i]);
            total += score = std::exp(score);
            for (int i = 0; i < D_HEAD; i++) mixed[i] += score * (slot < PAST ? values[at(row, kv, slot) + i] : made[(HEADS + KV_HEADS + kv) * D_HEAD + i]);
        }
        for (double &value : mixed) value /= total;
        return mixed;
    }

    Row logits(int row) const {
        Row stream(D_MODEL);
        for (int i = 0; i < D_MODEL; i++) stream[i] = added[position[row] * D_MODEL + i] + 1.5 * table[ids[row] * D_MODEL + i];
        Row made = in.times(normalize(rms, stream)), mixed;
        for (int n = 0; n < HEADS; n++)
            for (double value : attend(row, n, made)) mixed.push_back(value);
        Row more = out.times(mixed);
        for (int i = 0; i < D_MODEL; i++) stream[i] += more[i];
        Row wide = up.times(normalize(rms, stream)), narrow(D_FF);
        for (int i = 0; i < D_FF; i++) narrow[i] = wide[i] / (1 + std::exp(-wide[i])) * wide[D_FF + i];
        more = down.times(narrow);
        for (int i = 0; i < D_MODEL; i++) stream[i] += more[i];
        return head.times(normalize(layer_norm, stream));
    }

    std::vector<number> step() {
        for (int row = 0; row < ROWS; row++)
            for (int slot = 0; slot < PAST; slot++) mask[row * CAPACITY + slot] = !visible(row, slot);
        Layer layer = {};
        layer.self = {rms, in.matrix(), out.matrix(), head_norm, head_norm, HEADS, KV_HEADS, D_HEAD};
        layer.norm = rms, layer.up = up.matrix(), layer.down = down.matrix(), layer.pre_norm = layer.gated = 1, layer.activation = SILU;
        Model model = {&layer, 1, D_MODEL, (HEADS + 2 * KV_HEADS) * D_HEAD, table.data(), VOCAB, (number)1.5, {}, layer_norm, head.matrix()};
        Positions positions = {added.data(), cos.data(), sin.data(), ROTARY_PAIRS, 0};
        Rows rows = {ids.data(), sequence.data(), slot.data(), position.data(), end.data(), outputs.data(), ROWS, (int32_t)outputs.size(), 0};
        KVCache cache = {keys.data(), values.data(), nullptr, mask.data(), nullptr, SENTENCES, CAPACITY};
        std::vector<number> logits(outputs.size() * VOCAB);
        qkv_step(&model, &positions, &rows, &cache, nullptr, THREADS, logits.data());
        return logits;
    }
};

bool check_step() {
    Decoder decoder;
    Row expected;
    for (int row : decoder.outputs)
        for (double value : decoder.logits(row)) expected.push_back(value);
    std::vector<number> got = decoder.step();
    return std::equal(got.begin(), got.end(), expected.begin(), close);
}

// ── The best tokens, and the log of the sum ──────────────────────────────────────────────────────────────────────
bool check_topk() {
    constexpr int LIVE = 3, N = 8, TOKENS = 16 * LANES + 5;
    Random random = {5};
    std::vector<number> scores(SENTENCES * LIVE * TOKENS), shift(SENTENCES * LIVE), best(SENTENCES * N);
    for (number &score : scores) score = (number)(random.next() % 19);  // many are equal: the earlier wins
    for (number &one : shift) one = (number)(random.next() % 5);
    std::vector<int64_t> place(SENTENCES * N);
    qkv_topk(scores.data(), shift.data(), SENTENCES, LIVE, TOKENS, N, THREADS, best.data(), place.data());
    for (int sentence = 0; sentence < SENTENCES; sentence++) {
        auto sum = [&](int64_t i) { return scores[(size_t)sentence * LIVE * TOKENS + i] + shift[sentence * LIVE + i / TOKENS]; };
        std::vector<int64_t> order(LIVE * TOKENS);
        for (size_t i = 0; i < order.size(); i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return sum(a) > sum(b); });
        for (int i = 0; i < N; i++)
            if (place[sentence * N + i] != order[i] || best[sentence * N + i] != sum(order[i])) return false;
    }
    return true;
}

bool check_log_sums() {
    constexpr int ROWS = 3, TOKENS = 16 * LANES + 5;
    Random random = {11};
    std::vector<number> scores(ROWS * TOKENS), sums(ROWS);
    for (number &score : scores) score = (number)(20 * random.uniform());
    qkv_log_sum_exp(scores.data(), ROWS, TOKENS, THREADS, sums.data());
    for (int row = 0; row < ROWS; row++) {
        double total = 0;
        for (int i = 0; i < TOKENS; i++) total += std::exp((double)scores[row * TOKENS + i]);
        if (!close(sums[row], std::log(total))) return false;
    }
    return true;
}

// ── Operations of training, on (batch, heads, length, width) ─────────────────────────────────────────────────────
constexpr int64_t BY_BATCH = 3 * 5 * 22, BY_HEAD = 5 * 22, BY_TIME = 22;
const HeadLayout SHAPE = {2, 3, 5, 22, {BY_BATCH, BY_HEAD, BY_TIME}, {BY_BATCH, BY_HEAD, BY_TIME}, {BY_BATCH, BY_HEAD, BY_TIME}};
constexpr int ELEMENTS = 2 * 3 * 5 * 22, HALF = 9;  // the last 22 - 18 of a vector are not rotated

bool check_rotary() {
    Random random = {13};
    std::vector<number> x = uniforms(random, ELEMENTS), cos = uniforms(random, 5 * HALF), sin = uniforms(random, 5 * HALF), y(ELEMENTS);
    for (int way : {1, -1}) {
        qkv_rotate(&SHAPE, x.data(), cos.data(), sin.data(), 0, HALF, way, THREADS, y.data());
        for (int n = 0; n < ELEMENTS; n++) {
            int i = n % 22, angle = n / 22 % 5 * HALF + i % HALF, first = n - i + i % HALF;
            double a = x[first], b = x[first + HALF], c = cos[angle], s = way * sin[angle];
            if (!close(y[n], i < HALF ? a * c - b * s : i < 2 * HALF ? b * c + a * s : x[n])) return false;
        }
    }
    return true;
}

// Forward: x * gain / root of mean(x^2) + eps. Backward, written as the derivative of each output by each input.
bool check_rms() {
    Random random = {17};
    std::vector<number> x = uniforms(random, ELEMENTS), gain = uniforms(random, 22), grads = uniforms(random, ELEMENTS);
    std::vector<number> y(ELEMENTS), dx(ELEMENTS), shrinks(ELEMENTS / 22), gain_sums(2 * 22);
    qkv_rms_norm(&SHAPE, x.data(), gain.data(), (number)1e-3, THREADS, y.data(), shrinks.data());
    qkv_rms_norm_backward(&SHAPE, x.data(), gain.data(), shrinks.data(), grads.data(), THREADS, dx.data(), gain_sums.data());
    Row expected_sums(2 * 22);
    for (int first = 0; first < ELEMENTS; first += 22) {
        double squares = 0;
        for (int i = 0; i < 22; i++) squares += (double)x[first + i] * x[first + i];
        double root = std::sqrt(squares / 22 + (double)(number)1e-3);
        for (int i = 0; i < 22; i++) {
            double back = 0;
            for (int j = 0; j < 22; j++) back += grads[first + j] * gain[j] * ((i == j) / root - (double)x[first + i] * x[first + j] / (22 * root * root * root));
            expected_sums[first / (ELEMENTS / 2) * 22 + i] += grads[first + i] * x[first + i] / root;
            if (!close(y[first + i], x[first + i] / root * gain[i]) || !close(dx[first + i], back)) return false;
        }
    }
    return std::equal(gain_sums.begin(), gain_sums.end(), expected_sums.begin(), close);
}

bool check_relu_squared() {
    Random random = {19};
    std::vector<number> x = uniforms(random, ELEMENTS), grads = uniforms(random, ELEMENTS), y(ELEMENTS), dx(ELEMENTS);
    qkv_relu2(x.data(), ELEMENTS, THREADS, y.data());
    qkv_relu2_backward(x.data(), grads.data(), ELEMENTS, THREADS, dx.data());
    for (int i = 0; i < ELEMENTS; i++) {
        double positive = std::max((double)x[i], 0.0);
        if (!close(y[i], positive * positive) || !close(dx[i], 2 * positive * grads[i])) return false;
    }
    return true;
}
}  // namespace

// 0: all right; else the number of the first check that failed, from 1.
extern "C" int qkv_check() {
    bool (*const checks[])() = {check_products<number>, check_products<int8_t>, check_step, check_topk, check_log_sums, check_rotary, check_rms, check_relu_squared};
    int n = 0;
    for (auto check : checks) {
        n++;
        if (!check()) return n;
    }
    return 0;
}
