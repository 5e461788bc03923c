// One step of a decoder, for machines whose compiler is at hand: the same sums as fast_layer.py, without a dispatch for each.
//
// In: the stream of the newest token of each row, and the cache. Out: logits; the cache has one more cell for each beam.
// Tokens that follow each other stand as beams too, each with its own turn, which see those before them.
// Called by engine/native_step.py; equal to the model's own (tests/engine/test_native_step.py). Told in docs/performance.md, "The native library".
#include "products.h"

namespace {  // nothing but the last functions is seen from outside
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

struct Turns {              // matrices (d_head, d_head), null: nothing turns
    const number *first;
    int64_t by_row;         // from one beam's to the next one's; 0: all rows have the same
    const number *of(int beam) const { return first ? first + beam * by_row : nullptr; }
};
struct Scene {
    const Cells &cells;
    const Sight &sight;
    Turns turns;
    int layer, rows, beams;

    // Where the cells of a row's head begin.
    int64_t at(const Attention &a, int row, int kv) const {
        return (((int64_t)layer * (rows / beams) + row / beams) * a.kv_heads + kv) * cells.room * a.d_head;
    }
};

// Each key/value head of each row: its new cell.
void remember(const Attention &a, const Scene &s, const number *made, Team team) {
    int d = a.d_head, begin, end;
    share(s.rows * a.kv_heads, team, begin, end);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t cell = s.at(a, row, kv) + (int64_t)(s.cells.end - s.beams + row % s.beams) * d;
        const number *mine = made + (int64_t)row * a.in.outputs + (a.heads + kv) * d;
        placed(a.k_norm, s.turns.of(row % s.beams), mine, s.cells.keys + cell, d);
        std::copy_n(mine + a.kv_heads * d, d, s.cells.values + cell);
    }
}

// Each key/value head of each row: the queries of its group.
void attend(const Attention &a, const Scene &s, const number *made, number *mixed, Team team) {
    int d = a.d_head, group = a.heads / a.kv_heads, begin, end;
    share(s.rows * a.kv_heads, team, begin, end);
    std::vector<number> q(d);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t store = s.at(a, row, kv);
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            placed(a.q_norm, s.turns.of(row % s.beams), made + (int64_t)row * a.in.outputs + head * d, q.data(), d);
            look(q.data(), s.cells.keys + store, s.cells.values + store, s.sight[row], mixed + ((int64_t)row * a.heads + head) * d, d);
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
            if (!is_cross) {
                remember(a, scene, room.made, team);
                if (scene.beams > 1) together();  // beams may see each other's cells
            }
            attend(a, scene, room.made, room.mixed, team);
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
}  // namespace

extern "C" {
// x (rows, d_model), which is overwritten, to logits (rows, vocab); `turns` and `memory` may be null.
void qkv_step(const Model *model, number *x, const number *turns, int64_t by_row, const Cells *cells, const Cells *memory, int rows, int beams,
              int threads, number *logits) {
    for (int row = 0; row < rows; row++)  // each beam sees its own new cell
        cells->hidden[row / beams * cells->by_sentence + row % beams * cells->by_beam + cells->end - beams + row % beams] = 0;
    Sight past = sight_of(*cells, rows, beams), source = memory ? sight_of(*memory, rows, beams) : Sight();
    static thread_local std::vector<number> kept;
    kept.resize((int64_t)rows * (model->d_model + 2 * model->widest));
    number *made = kept.data() + (int64_t)rows * model->d_model;
    Room room = {x, kept.data(), made, made + (int64_t)rows * model->widest};
#pragma omp parallel num_threads(threads)
    {
        Team team = my_team();
        for (int n = 0; n < model->n_layers; n++)
            go_through(*model, model->layers[n], {*cells, past, {turns, by_row}, n, rows, beams},
                       {memory ? *memory : *cells, source, {nullptr, 0}, n, rows, beams}, room, team);
        norm_rows(model->norm, x, room.h, rows, model->d_model, team);
        together();
        product(model->head, room.h, rows, logits, false, team);
    }
}

// out (rows, outputs) = in (rows, inputs) W^T + b.
void qkv_product(const Matrix *matrix, const number *in, int rows, int threads, number *out) {
#pragma omp parallel num_threads(threads)
    {
        product(*matrix, in, rows, out, false, my_team());
    }
}

int qkv_width() { return WIDTH; }
}
