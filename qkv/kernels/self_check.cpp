// Self-check of the library: each function against plain loops in double precision, in a few
// milliseconds.
//
// The compiler is the user's and the flags are aggressive: build.py keeps a library only if
// qkv_check() returns 0 in a separate process. tests/emulated_cpus.py runs the same check on
// emulated CPUs. Results of integer inputs are compared exactly: their sums have no rounding.
#include "self_check.h"

namespace {
// ── Matrices: (outputs, inputs), and packed in panels ────────────────────────────────────────────
template <class Weight>
std::vector<Weight> in_panels(const std::vector<Weight> &weights, int outputs, int inputs) {
    int width = qkv_width(), panels = (outputs + width - 1) / width;
    std::vector<Weight> all((size_t)panels * inputs * width);
    for (int o = 0; o < outputs; o++)
        for (int k = 0; k < inputs; k++)
            all[((size_t)(o / width) * inputs + k) * width + o % width] =
                weights[(size_t)o * inputs + k];
    return all;
}

struct Linear {
    int outputs, inputs;
    std::vector<number> weights, panels;
    Linear(Random &random, int outputs, int inputs)
        : outputs(outputs), inputs(inputs), weights(uniforms(random, (size_t)outputs * inputs)),
          panels(in_panels(weights, outputs, inputs)) {}
    Matrix matrix() const { return {panels.data(), nullptr, nullptr, outputs, inputs}; }
    Row times(const Row &x) const {
        Row y(outputs);
        for (int o = 0; o < outputs; o++)
            for (int k = 0; k < inputs; k++) y[o] += weights[(size_t)o * inputs + k] * x[k];
        return y;
    }
};

// Weights and inputs of +-127: the sum of two such products overflows 16 bits, where int8 kernels
// of other libraries saturate. mixed_signs 0: all positive, the largest sums; 1: random signs.
template <class Weight>
bool check_product(int rows, int mixed_signs) {
    int outputs = 2 * qkv_width() + 3, inputs = 37;
    Random random = {7};
    auto extreme = [&] { return mixed_signs && random.next() % 2 ? -127 : 127; };
    std::vector<Weight> weights((size_t)outputs * inputs);
    std::vector<number> in((size_t)rows * inputs), out((size_t)rows * outputs);
    std::vector<number> scales(3 * qkv_width(), 1), bias(3 * qkv_width());
    for (Weight &w : weights) w = (Weight)extreme();
    for (number &x : in) x = (number)extreme();
    for (size_t o = 0; o < bias.size(); o++) bias[o] = (number)o;
    std::vector<Weight> panels = in_panels(weights, outputs, inputs);
    const number *int8_scales = sizeof(Weight) == 1 ? scales.data() : nullptr;
    Matrix m = {panels.data(), int8_scales, bias.data(), outputs, inputs};
    qkv_product(&m, in.data(), rows, THREADS, out.data());
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            int64_t sum = o;
            for (int k = 0; k < inputs; k++)
                sum += (int64_t)weights[(size_t)o * inputs + k] *
                       (int64_t)in[(size_t)r * inputs + k];
            if (out[(size_t)r * outputs + o] != (number)sum) return false;
        }
    return true;
}

template <class Weight>
bool check_products() {
    for (int rows : {1, 3, MAX_BLOCK_ROWS, MAX_BLOCK_ROWS + 2, 4 * MAX_BLOCK_ROWS + 1})
        for (int mixed_signs : {0, 1})
            if (!check_product<Weight>(rows, mixed_signs)) return false;
    return true;
}

// ── One decode step: grouped-query attention with norms and rotary positions, gated feed-forward ─
constexpr int D_MODEL = 24, HEADS = 4, KV_HEADS = 2, D_HEAD = 20, ROTARY_PAIRS = 8, D_FF = 36;
constexpr int VOCAB = 67, SENTENCES = 2, BEAMS = 2, ROWS = SENTENCES * BEAMS, POSITIONS = 4;
constexpr int PAST = 5, CAPACITY = PAST + BEAMS + 1;  // slots filled before the step, all slots

Row normalize(const Norm &norm, const Row &x) {
    double mean = 0, sum = 0;
    if (norm.kind == LAYER_NORM)
        for (double value : x) mean += value / x.size();
    for (double value : x)
        sum += (value - mean) * (value - mean) / (norm.kind == LAYER_NORM ? x.size() : 1);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        y[i] = (x[i] - mean) / std::sqrt(sum + norm.eps) * norm.gain[i];
        if (norm.bias) y[i] += norm.bias[i];
    }
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

Row slice(const Row &x, int first, int n) { return Row(x.begin() + first, x.begin() + first + n); }

struct Decoder {
    Random random = {3};
    Linear in{random, (HEADS + 2 * KV_HEADS) * D_HEAD, D_MODEL};
    Linear out{random, D_MODEL, HEADS * D_HEAD};
    Linear up{random, 2 * D_FF, D_MODEL}, down{random, D_MODEL, D_FF};
    Linear head{random, VOCAB, D_MODEL};
    std::vector<number> gain = uniforms(random, D_MODEL), bias = uniforms(random, D_MODEL);
    std::vector<number> head_gain = uniforms(random, D_HEAD);
    std::vector<number> table = uniforms(random, VOCAB * D_MODEL);
    std::vector<number> added = uniforms(random, POSITIONS * D_MODEL);
    std::vector<number> cos = uniforms(random, POSITIONS * ROTARY_PAIRS);
    std::vector<number> sin = uniforms(random, POSITIONS * ROTARY_PAIRS);
    std::vector<number> keys = uniforms(random, SENTENCES * KV_HEADS * CAPACITY * D_HEAD);
    std::vector<number> values = uniforms(random, keys.size());
    std::vector<number> mask = std::vector<number>(ROWS * CAPACITY, 1);
    std::vector<int64_t> ids = {3, 66, 0, 21};
    std::vector<int32_t> sequence = {0, 0, 1, 1}, slot = {PAST, PAST + 1, PAST, PAST + 1};
    std::vector<int32_t> position = {3, 1, 0, 2};
    std::vector<int32_t> end = std::vector<int32_t>(ROWS, PAST + BEAMS);
    std::vector<int32_t> outputs = {3, 0, 1};
    Norm rms = {gain.data(), nullptr, (number)1e-3, UNIT_NORM};
    Norm layer_norm = {gain.data(), bias.data(), (number)1e-3, LAYER_NORM};
    Norm head_norm = {head_gain.data(), nullptr, (number)1e-3, UNIT_NORM};

    bool attends(int row, int at) const {
        return at < PAST ? (row + at) % 3 != 0 : at == slot[row];
    }
    size_t offset(int row, int kv, int slot) const {
        return (((size_t)sequence[row] * KV_HEADS + kv) * CAPACITY + slot) * D_HEAD;
    }
    Row rotated(int row, const Row &x) const {
        int first = position[row] * ROTARY_PAIRS;
        return rotate(normalize(head_norm, x), cos.data() + first, sin.data() + first);
    }

    Row attend(int row, int n, const Row &qkv) const {
        int kv = n / (HEADS / KV_HEADS);
        Row q = rotated(row, slice(qkv, n * D_HEAD, D_HEAD)), mixed(D_HEAD);
        Row new_key = rotated(row, slice(qkv, (HEADS + kv) * D_HEAD, D_HEAD));
        Row new_value = slice(qkv, (HEADS + KV_HEADS + kv) * D_HEAD, D_HEAD);
        double total = 0;
        for (int slot = 0; slot < PAST + BEAMS; slot++) {
            if (!attends(row, slot)) continue;
            size_t first = offset(row, kv, slot);
            double score = 0;
            for (int i = 0; i < D_HEAD; i++)
                score += q[i] * (slot < PAST ? keys[first + i] : new_key[i]);
            total += score = std::exp(score);
            for (int i = 0; i < D_HEAD; i++)
                mixed[i] += score * (slot < PAST ? values[first + i] : new_value[i]);
        }
        for (double &value : mixed) value /= total;
        return mixed;
    }

    Row logits(int row) const {
        Row stream(D_MODEL);
        for (int i = 0; i < D_MODEL; i++)
            stream[i] = added[position[row] * D_MODEL + i] + 1.5 * table[ids[row] * D_MODEL + i];
        Row qkv = in.times(normalize(rms, stream)), mixed;
        for (int n = 0; n < HEADS; n++)
            for (double value : attend(row, n, qkv)) mixed.push_back(value);
        Row branch = out.times(mixed);
        for (int i = 0; i < D_MODEL; i++) stream[i] += branch[i];
        Row wide = up.times(normalize(rms, stream)), gated(D_FF);
        for (int i = 0; i < D_FF; i++)
            gated[i] = wide[i] / (1 + std::exp(-wide[i])) * wide[D_FF + i];
        branch = down.times(gated);
        for (int i = 0; i < D_MODEL; i++) stream[i] += branch[i];
        return head.times(normalize(layer_norm, stream));
    }

    std::vector<number> step() {
        for (int row = 0; row < ROWS; row++)
            for (int slot = 0; slot < PAST; slot++)
                mask[row * CAPACITY + slot] = !attends(row, slot);
        Layer layer = {};
        layer.self = {rms,       in.matrix(), out.matrix(), head_norm,
                      head_norm, HEADS,       KV_HEADS,     D_HEAD};
        layer.norm = rms, layer.up = up.matrix(), layer.down = down.matrix();
        layer.pre_norm = layer.gated = 1, layer.activation = SILU;
        int max_width = (HEADS + 2 * KV_HEADS) * D_HEAD;
        Model model = {&layer, 1,           D_MODEL, max_width,  table.data(),
                       VOCAB,  (number)1.5, {},      layer_norm, head.matrix()};
        Positions positions = {added.data(), cos.data(), sin.data(), ROTARY_PAIRS, 0};
        Rows rows = {ids.data(), sequence.data(), slot.data(),
                     position.data(), end.data(), outputs.data(),
                     ROWS, (int32_t)outputs.size(), 0};
        KVCache cache = {keys.data(), values.data(), nullptr,  mask.data(),
                         nullptr,     SENTENCES,     CAPACITY};
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

// ── Top-k and log-sum-exp ────────────────────────────────────────────────────────────────────────
bool check_topk() {
    constexpr int LIVE = 3, K = 8, TOKENS = 16 * LANES + 5;
    Random random = {5};
    std::vector<number> scores(SENTENCES * LIVE * TOKENS), shift(SENTENCES * LIVE);
    for (number &score : scores) score = (number)(random.next() % 19);  // many are equal
    for (number &value : shift) value = (number)(random.next() % 5);
    std::vector<number> best(SENTENCES * K);
    std::vector<int64_t> indices(SENTENCES * K);
    qkv_topk(scores.data(), shift.data(), SENTENCES, LIVE, TOKENS, K, THREADS, best.data(),
             indices.data());
    for (int sentence = 0; sentence < SENTENCES; sentence++) {
        auto sum = [&](int64_t i) {
            return scores[(size_t)sentence * LIVE * TOKENS + i] +
                   shift[sentence * LIVE + i / TOKENS];
        };
        std::vector<int64_t> order(LIVE * TOKENS);
        for (size_t i = 0; i < order.size(); i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return sum(a) > sum(b); });
        for (int i = 0; i < K; i++) {
            int at = sentence * K + i;
            if (indices[at] != order[i] || best[at] != sum(order[i])) return false;
        }
    }
    return true;
}

bool check_log_sum_exp() {
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
}  // namespace

// 0: all checks passed; else the number of the first check that failed, from 1.
extern "C" int qkv_check() {
    bool (*const checks[])() = {check_products<number>, check_products<int8_t>, check_step,
                                check_topk,             check_log_sum_exp,         check_rotary,
                                check_rms_norm,         check_relu2};
    int n = 0;
    for (auto check : checks) {
        n++;
        if (!check()) return n;
    }
    return 0;
}
