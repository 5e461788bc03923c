// The forward step of a packed stack (decoder or encoder) in one call, without the dispatch of each torch operation.
//
// A row is one token. In a decode step each sequence has one row (beam search: one per beam); in prefill and in an encoder
// each token of a prompt or source is a row. In: the token id, sequence, KV-cache slot and position of each row. Out: logits
// (an encoder: the keys and values of cross-attention); the rows' own keys and values are in the cache afterwards.
// Batch-invariant: what is computed for a row depends on its own sequence only, in the same order of operations.
// Called by engine/native_step.py, compared with the model in tests/engine/. Explained in docs/performance.md, "The native library".
#include "products.h"

namespace {
// ── Embedding, norms, activations ────────────────────────────────────────────────────────────────────────────────
void normalize(const Norm &norm, const number *in, number *out, int width) {
    number mean = 0, sum = 0;
    if (norm.kind == LAYER_NORM) {
        for (int i = 0; i < width; i++) mean += in[i];
        mean /= width;
    }
    for (int i = 0; i < width; i++) sum += (in[i] - mean) * (in[i] - mean);
    number by = norm.kind ? 1 / std::sqrt((norm.kind == LAYER_NORM ? sum / width : sum) + norm.eps) : 1;
    for (int i = 0; i < width; i++) {
        number x = (in[i] - mean) * by;
        if (norm.gain) x *= norm.gain[i];
        out[i] = norm.bias ? x + norm.bias[i] : x;
    }
}

void norm_rows(const Norm &norm, const number *in, number *out, int rows, int width, ThreadRange threads) {
    int begin, end;
    share(rows, threads, begin, end);
    for (int row = begin; row < end; row++) normalize(norm, in + (int64_t)row * width, out + (int64_t)row * width, width);
}

void embed_rows(const Model &model, const Positions &positions, const Rows &rows, number *out, ThreadRange threads) {
    int d = model.d_model, begin, end;
    share(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++) {
        const number *in = model.table + rows.ids[row] * d;
        const number *added = positions.added ? positions.added + (int64_t)rows.position[row] * d : nullptr;
        number *x = out + (int64_t)row * d;
        for (int i = 0; i < d; i++) x[i] = added ? added[i] + model.scale * in[i] : model.scale * in[i];
        if (model.embed_norm.kind) normalize(model.embed_norm, x, x, d);
    }
}

inline number activated(number x, int kind) {
    switch (kind) {
        case RELU: return std::max(x, (number)0);
        case RELU2: return x > 0 ? x * x : 0;
        case GELU: return x * (number)0.5 * (1 + std::erf(x * (number)0.70710678118654752));
        case GELU_TANH: return x * (number)0.5 * (1 + std::tanh((number)0.79788456080286536 * (x + (number)0.044715 * x * x * x)));
        default: return x / (1 + fast_exp(-x));  // SILU
    }
}

// (rows, d_ff) -> activation(x); of gate and up side by side, (rows, 2 d_ff): activation(gate) * up, (rows, d_ff).
void activate(const Layer &layer, const number *in, number *out, int rows, ThreadRange threads) {
    int d_ff = layer.down.inputs, width = layer.up.outputs, begin, end;
    share(d_ff, threads, begin, end);
    for (int row = 0; row < rows; row++)
        for (int i = begin; i < end; i++) {
            const number *from = in + (int64_t)row * width + i;
            number x = activated(*from, layer.activation);
            out[(int64_t)row * d_ff + i] = layer.gated ? x * from[d_ff] : x;
        }
}

// ── Attention ────────────────────────────────────────────────────────────────────────────────────────────────────
inline number multiply_add(number a, number b, number c) {
#if defined(__FMA__) || defined(__aarch64__)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

// Norm of a query or key, then its rotation: each pair (a, b) becomes (a cos - b sin, b cos + a sin).
void norm_and_rotate(const Norm &norm, const Positions &positions, int position, const number *in, number *out, int width) {
    normalize(norm, in, out, width);
    if (!positions.cos) return;
    const number *cos = positions.cos + (int64_t)position * positions.half, *sin = positions.sin + (int64_t)position * positions.half;
    int step = positions.interleaved ? 2 : 1, to_b = positions.interleaved ? 1 : positions.half;
    for (int i = 0; i < positions.half; i++) {
        number a = out[i * step], b = out[i * step + to_b];
        out[i * step] = multiply_add(b, -sin[i], a * cos[i]);
        out[i * step + to_b] = multiply_add(b, cos[i], a * sin[i]);
    }
}

struct Slots { const int *slots; int n; };  // the slots of its sequence that a row attends to

// softmax(q k^T) v over n slots.
void attend_query(const number *q, const number *keys, const number *values, Slots visible, number *out, int width) {
    std::vector<number> scores(visible.n);
    number best = -INFINITY, total = 0;
    for (int n = 0; n < visible.n; n++) {
        const number *key = keys + (int64_t)visible.slots[n] * width;
        number score = 0;
        for (int i = 0; i < width; i++) score += q[i] * key[i];
        scores[n] = score;
        best = std::max(best, score);
    }
    for (number &score : scores) total += score = fast_exp(score - best);
    std::fill(out, out + width, 0);
    for (int n = 0; n < visible.n; n++) {
        const number *value = values + (int64_t)visible.slots[n] * width, weight = scores[n] / total;
        for (int i = 0; i < width; i++) out[i] += weight * value[i];
    }
}

// What the rows of a step attend to, made once and used by all layers.
struct Visible {
    std::vector<int> all;   // 0, 1, 2, ...: without a mask a row attends to the first `end` slots
    std::vector<int> kept;  // with a mask: the slots of each row, one after the other
    std::vector<Slots> of;  // of each row

    Visible(const Rows &rows, const KVCache &cache) : all(cache.mask ? 0 : cache.capacity), of(rows.n) {
        for (size_t slot = 0; slot < all.size(); slot++) all[slot] = slot;
        std::vector<int> starts(rows.n);
        for (int row = 0; row < rows.n; row++) {
            starts[row] = kept.size();
            const number *mask = cache.mask ? cache.mask + (int64_t)row * cache.capacity : nullptr;
            int end = cache.lengths ? cache.lengths[rows.sequence[row]] : rows.end[row];
            for (int slot = 0; mask && slot < end; slot++)
                if (mask[slot] == 0) kept.push_back(slot);
            of[row].n = mask ? (int)kept.size() - starts[row] : end;
        }
        for (int row = 0; row < rows.n; row++) of[row].slots = cache.mask ? kept.data() + starts[row] : all.data();
    }
};

struct Context {            // what attention of one layer reads besides its weights
    const KVCache &cache;
    const Visible &visible;
    const Positions &positions;
    const Rows &rows;
    int layer;

    // Where the slots of a key/value head of a row's sequence begin.
    int64_t at(const Attention &a, int row, int kv) const {
        return (((int64_t)layer * cache.sequences + rows.sequence[row]) * a.kv_heads + kv) * cache.capacity * a.d_head;
    }
};

// Write the key and value of each row into its slot; (row, key/value head) pairs are divided among the threads.
void write_cache(const Attention &a, const Context &c, const number *qkv, ThreadRange threads) {
    int d = a.d_head, begin, end;
    share(c.rows.n * a.kv_heads, threads, begin, end);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t slot = c.at(a, row, kv) + (int64_t)c.rows.slot[row] * d;
        const number *key = qkv + (int64_t)row * a.in.outputs + (a.heads + kv) * d;
        norm_and_rotate(a.k_norm, c.positions, c.rows.position[row], key, c.cache.keys + slot, d);
        std::copy_n(key + a.kv_heads * d, d, c.cache.values + slot);
    }
}

// Attention of each row: the query heads of a group read one key/value head, so that its cache is read while it is near.
void attend(const Attention &a, const Context &c, const number *q, number *mixed, ThreadRange threads) {
    int d = a.d_head, group = a.heads / a.kv_heads, begin, end;
    share(c.rows.n * a.kv_heads, threads, begin, end);
    std::vector<number> query(d);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t first = c.at(a, row, kv);
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            norm_and_rotate(a.q_norm, c.positions, c.rows.position[row], q + (int64_t)row * a.in.outputs + head * d, query.data(), d);
            attend_query(query.data(), c.cache.keys + first, c.cache.values + first, c.visible.of[row],
                         mixed + ((int64_t)row * a.heads + head) * d, d);
        }
    }
}

// ── A convolution in the place of attention: the last `taps` inputs of each row side by side, then one product ──────
number *conv_input(const Layer &layer, const KVCache &cache, const Rows &rows, int row, int d) {  // of its first tap
    return cache.conv_inputs + ((int64_t)rows.sequence[row] * (layer.taps - 1 + cache.capacity) + rows.slot[row]) * d;
}

void write_conv_inputs(const Layer &layer, const KVCache &cache, const Rows &rows, const number *in, int d, ThreadRange threads) {
    int begin, end;
    share(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++)
        std::copy_n(in + (int64_t)row * d, d, conv_input(layer, cache, rows, row, d) + (int64_t)(layer.taps - 1) * d);
}

void read_conv_inputs(const Layer &layer, const KVCache &cache, const Rows &rows, number *out, int d, ThreadRange threads) {
    int begin, end, width = layer.taps * d;
    share(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++) std::copy_n(conv_input(layer, cache, rows, row, d), width, out + (int64_t)row * width);
}

// ── The step: one parallel region for all layers, with barriers where threads read what others have written ─────────
struct Workspace { number *x, *h, *wide, *mixed; };  // (rows, d_model) twice, (rows, widest) twice

inline void barrier() {
#pragma omp barrier
}

// x + branch(norm(x)) (pre-norm), or norm(x + branch(x)) (post-norm); `branch` reads its argument and adds to x.
template <class Branch>
void residual(const Model &model, const Norm &norm, bool pre_norm, Workspace work, int rows, ThreadRange threads, Branch branch) {
    if (pre_norm) {
        norm_rows(norm, work.x, work.h, rows, model.d_model, threads);
        barrier();
    }
    branch(pre_norm ? work.h : work.x);
    barrier();
    if (!pre_norm) {
        norm_rows(norm, work.x, work.x, rows, model.d_model, threads);
        barrier();
    }
}

bool share_sequences(const Rows &rows) {  // rows of one sequence stand together
    for (int row = 1; row < rows.n; row++)
        if (rows.sequence[row] == rows.sequence[row - 1]) return true;
    return false;
}

void run_attention(const Model &model, const Attention &a, bool pre_norm, const Context &c, bool writes, Workspace work, ThreadRange threads) {
    residual(model, a.norm, pre_norm, work, c.rows.n, threads, [&](const number *in) {
        product(a.in, in, c.rows.n, work.wide, false, threads);
        barrier();
        if (writes) {
            write_cache(a, c, work.wide, threads);
            if (share_sequences(c.rows)) barrier();  // rows read slots that other threads write
        }
        attend(a, c, work.wide, work.mixed, threads);
        barrier();
        product(a.out, work.mixed, c.rows.n, work.x, true, threads);
    });
}

void run_convolution(const Model &model, const Layer &layer, const KVCache &cache, const Rows &rows, Workspace work, ThreadRange threads) {
    residual(model, layer.self.norm, layer.pre_norm, work, rows.n, threads, [&](const number *in) {
        write_conv_inputs(layer, cache, rows, in, model.d_model, threads);
        barrier();
        read_conv_inputs(layer, cache, rows, work.wide, model.d_model, threads);
        barrier();
        product(layer.self.out, work.wide, rows.n, work.x, true, threads);
    });
}

void run_feed_forward(const Model &model, const Layer &layer, int rows, Workspace work, ThreadRange threads) {
    residual(model, layer.norm, layer.pre_norm, work, rows, threads, [&](const number *in) {
        product(layer.up, in, rows, work.wide, false, threads);
        barrier();
        activate(layer, work.wide, work.mixed, rows, threads);
        barrier();
        product(layer.down, work.mixed, rows, work.x, true, threads);
    });
}
}  // namespace

extern "C" {
// Logits (rows.n_outputs, vocab) of the rows that `rows.outputs` names; `memory` (the encoder's keys and values) may be null.
// Returns 1, and does nothing, if an id is not in the vocabulary.
int qkv_step(const Model *model, const Positions *positions, const Rows *rows, const KVCache *cache, const KVCache *memory, int threads,
              number *logits) {
    int n = rows->n, d = model->d_model;
    for (int row = 0; row < n; row++)
        if (rows->ids[row] < 0 || rows->ids[row] >= model->vocab) return 1;
    for (int row = 0; cache->mask && row < n; row++)  // a beam attends to its own new slot
        cache->mask[(int64_t)row * cache->capacity + rows->slot[row]] = 0;
    const Positions unrotated = {};
    const KVCache none = {}, &source = memory ? *memory : none;
    Visible past(*rows, *cache), all_source(*rows, source);
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)n * (2 * d + 2 * model->widest));
    number *wide = kept.data() + (int64_t)n * 2 * d;
    Workspace work = {kept.data(), kept.data() + (int64_t)n * d, wide, wide + (int64_t)n * model->widest};
#pragma omp parallel num_threads(threads)
    {
        ThreadRange range = thread_range();
        embed_rows(*model, *positions, *rows, work.x, range);
        barrier();
        int kv_layer = 0;
        for (int at = 0; at < model->n_layers; at++) {
            const Layer &layer = model->layers[at];
            if (layer.taps) run_convolution(*model, layer, *cache, *rows, work, range);
            else run_attention(*model, layer.self, layer.pre_norm, {*cache, past, *positions, *rows, kv_layer}, true, work, range);
            if (layer.has_cross)
                run_attention(*model, layer.cross, layer.pre_norm, {source, all_source, unrotated, *rows, kv_layer}, false, work, range);
            run_feed_forward(*model, layer, n, work, range);
            if (!layer.taps) kv_layer++;
        }
        int begin, end;
        share(rows->n_outputs, range, begin, end);
        for (int out = begin; out < end; out++)
            normalize(model->norm, work.x + (int64_t)(rows->outputs ? rows->outputs[out] : out) * d, work.h + (int64_t)out * d, d);
        barrier();
        product(model->head, work.h, rows->n_outputs, logits, false, range);
    }
    for (int row = 0; rows->advance && row < n; row++)
        rows->slot[row] += rows->advance, rows->end[row] += rows->advance, rows->position[row]++;
    return 0;
}

// out (rows, outputs) = in (rows, inputs) W^T + b.
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out) {
#pragma omp parallel num_threads(threads)
    {
        product(*matrix, in, rows, out, false, thread_range());
    }
}

int qkv_width() { return WIDTH; }
}
