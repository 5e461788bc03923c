// The forward step of a packed stack (decoder or encoder) in one call, without the dispatch of each
// torch operation. Called by engine/native_step.py. See docs/explanation/performance.md.
//
// A row is one token. In a decode step each sequence has one row (beam search: one per beam); in
// prefill and in an encoder each token of a prompt or source is a row. Inputs: the token id,
// sequence, KV-cache slot and position of each row. Output: logits (an encoder: the keys and values
// of cross-attention); the rows' own keys and values are written to the cache.
// Batch-invariant: the result of a row depends on its own sequence only, with the same order of
// operations in any batch.
#include "attention.h"
#include "products.h"

namespace {
// ── Embedding, norms, activations ────────────────────────────────────────────────────────────────
void norm_rows(const Norm &norm, const number *in, number *out, int rows, int width,
               ThreadRange threads) {
    int begin, end;
    split_work(rows, threads, begin, end);
    for (int row = begin; row < end; row++)
        normalize(norm, in + (int64_t)row * width, out + (int64_t)row * width, width);
}

void embed_rows(const Model &model, const Positions &positions, const Rows &rows, number *out,
                ThreadRange threads) {
    int d = model.d_model, begin, end;
    split_work(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++) {
        const number *in = model.table + rows.ids[row] * d;
        const number *added =
            positions.added ? positions.added + (int64_t)rows.position[row] * d : nullptr;
        number *x = out + (int64_t)row * d;
        for (int i = 0; i < d; i++)
            x[i] = added ? added[i] + model.scale * in[i] : model.scale * in[i];
        if (model.embed_norm.kind) normalize(model.embed_norm, x, x, d);
    }
}

template <int KIND> inline number activated(number x) {
    constexpr number ROOT_HALF = (number)0.70710678118654752;       // sqrt(1 / 2)
    constexpr number ROOT_2_OVER_PI = (number)0.79788456080286536;  // sqrt(2 / pi)
    switch (KIND) {
        case RELU: return std::max(x, (number)0);
        case RELU2: return x > 0 ? x * x : 0;
        case GELU: return x * (number)0.5 * (1 + std::erf(x * ROOT_HALF));
        case GELU_TANH:
            return x * (number)0.5 *
                   (1 + std::tanh(ROOT_2_OVER_PI * (x + (number)0.044715 * x * x * x)));
        default: return x / (1 + fast_exp(-x));  // SILU
    }
}

// (rows, d_ff) -> activation(x); gated: gate and up, (rows, 2 d_ff) -> activation(gate) * up.
// The kind is a constant of the loop, so that it has a vector form.
template <int KIND>
void activate_rows(const Layer &layer, const number *in, number *__restrict out, int rows,
                   ThreadRange threads) {
    int d_ff = layer.down.inputs, width = layer.up.outputs, begin, end;
    split_work(d_ff, threads, begin, end);
    for (int row = 0; row < rows; row++, in += width, out += d_ff)
        if (layer.gated)
            for (int i = begin; i < end; i++) out[i] = activated<KIND>(in[i]) * in[d_ff + i];
        else
            for (int i = begin; i < end; i++) out[i] = activated<KIND>(in[i]);
}

void activate(const Layer &layer, const number *in, number *out, int rows, ThreadRange threads) {
    switch (layer.activation) {
        case RELU: return activate_rows<RELU>(layer, in, out, rows, threads);
        case RELU2: return activate_rows<RELU2>(layer, in, out, rows, threads);
        case GELU: return activate_rows<GELU>(layer, in, out, rows, threads);
        case GELU_TANH: return activate_rows<GELU_TANH>(layer, in, out, rows, threads);
        default: return activate_rows<SILU>(layer, in, out, rows, threads);
    }
}

// ── Convolution: the last kernel_size inputs of each row concatenated, then one product ──────────
// The first of the kernel_size inputs of a row.
number *conv_input(const Layer &layer, const KVCache &cache, const Rows &rows, int row, int d) {
    int64_t first = (int64_t)rows.sequence[row] * (layer.kernel_size - 1 + cache.capacity);
    return cache.conv_inputs + (first + rows.slot[row]) * d;
}

void write_conv_inputs(const Layer &layer, const KVCache &cache, const Rows &rows, const number *in,
                       int d, ThreadRange threads) {
    int begin, end;
    split_work(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++)
        std::copy_n(in + (int64_t)row * d, d,
                    conv_input(layer, cache, rows, row, d) + (int64_t)(layer.kernel_size - 1) * d);
}

void read_conv_inputs(const Layer &layer, const KVCache &cache, const Rows &rows, number *out,
                      int d, ThreadRange threads) {
    int begin, end, width = layer.kernel_size * d;
    split_work(rows.n, threads, begin, end);
    for (int row = begin; row < end; row++)
        std::copy_n(conv_input(layer, cache, rows, row, d), width, out + (int64_t)row * width);
}

// ── The step: one parallel region for all layers, with barriers instead of one fork per operation ─
struct Workspace { number *x, *h, *wide, *mixed; };  // (rows, d_model) x 2, (rows, max_width) x 2

inline void barrier() {
#pragma omp barrier
}

// Pre-norm: x + branch(norm(x)); post-norm: norm(x + branch(x)). `branch` reads its argument and
// adds its result to x.
template <class Branch>
void residual(const Model &model, const Norm &norm, bool pre_norm, Workspace work, int rows,
              ThreadRange threads, Branch branch) {
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

// Whether a sequence has several rows.
bool share_sequences(const Rows &rows) {
    for (int row = 1; row < rows.n; row++)
        if (rows.sequence[row] == rows.sequence[row - 1]) return true;
    return false;
}

void run_attention(const Model &model, const Attention &a, bool pre_norm, const AttentionContext &c,
                   bool writes, Workspace work, ThreadRange threads) {
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

void run_convolution(const Model &model, const Layer &layer, const KVCache &cache, const Rows &rows,
                     Workspace work, ThreadRange threads) {
    residual(model, layer.self.norm, layer.pre_norm, work, rows.n, threads, [&](const number *in) {
        write_conv_inputs(layer, cache, rows, in, model.d_model, threads);
        barrier();
        read_conv_inputs(layer, cache, rows, work.wide, model.d_model, threads);
        barrier();
        product(layer.self.out, work.wide, rows.n, work.x, true, threads);
    });
}

void run_feed_forward(const Model &model, const Layer &layer, int rows, Workspace work,
                      ThreadRange threads) {
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
// Logits (rows.n_outputs, vocab) of the rows in `rows.outputs`; `memory` (the encoder's keys and
// values) may be null. Returns 1, and does nothing, if an id is not in the vocabulary.
int qkv_step(const Model *model, const Positions *positions, const Rows *rows, const KVCache *cache,
             const KVCache *memory, int threads, number *logits) {
    int n = rows->n, d = model->d_model;
    for (int row = 0; row < n; row++)
        if (rows->ids[row] < 0 || rows->ids[row] >= model->vocab) return 1;
    for (int row = 0; cache->mask && row < n; row++)  // a beam attends to its own new slot
        cache->mask[(int64_t)row * cache->capacity + rows->slot[row]] = 0;
    const Positions unrotated = {};
    const KVCache none = {}, &source = memory ? *memory : none;
    AttendedSlots past(*rows, *cache), all_source(*rows, source);
    static thread_local std::vector<number> buffer;
    buffer.resize((int64_t)n * (2 * d + 2 * model->max_width));
    number *wide = buffer.data() + (int64_t)n * 2 * d;
    Workspace work = {buffer.data(), buffer.data() + (int64_t)n * d, wide,
                      wide + (int64_t)n * model->max_width};
#pragma omp parallel num_threads(threads)
    {
        ThreadRange range = thread_range();
        embed_rows(*model, *positions, *rows, work.x, range);
        barrier();
        int kv_layer = 0;
        for (int index = 0; index < model->n_layers; index++) {
            const Layer &layer = model->layers[index];
            if (layer.kernel_size)
                run_convolution(*model, layer, *cache, *rows, work, range);
            else
                run_attention(*model, layer.self, layer.pre_norm,
                              {*cache, past, *positions, *rows, kv_layer}, true, work, range);
            if (layer.has_cross)
                run_attention(*model, layer.cross, layer.pre_norm,
                              {source, all_source, unrotated, *rows, kv_layer}, false, work, range);
            run_feed_forward(*model, layer, n, work, range);
            if (!layer.kernel_size) kv_layer++;
        }
        int begin, end;
        split_work(rows->n_outputs, range, begin, end);
        for (int out = begin; out < end; out++) {
            int row = rows->outputs ? rows->outputs[out] : out;
            normalize(model->norm, work.x + (int64_t)row * d, work.h + (int64_t)out * d, d);
        }
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

int qkv_width() { return PANEL_WIDTH; }
}
