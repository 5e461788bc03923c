// Attention of a step: rotary position embedding, the KV cache, softmax(q k^T) v; and the norms.
#pragma once
#include "api.h"

namespace {
void normalize(const Norm &norm, const number *in, number *out, int width) {
    number mean = 0, sum = 0;
    if (norm.kind == LAYER_NORM) {
        for (int i = 0; i < width; i++) mean += in[i];
        mean /= width;
    }
    for (int i = 0; i < width; i++) sum += (in[i] - mean) * (in[i] - mean);
    number scale =
        norm.kind ? 1 / std::sqrt((norm.kind == LAYER_NORM ? sum / width : sum) + norm.eps) : 1;
    for (int i = 0; i < width; i++) {
        number x = (in[i] - mean) * scale;
        if (norm.gain) x *= norm.gain[i];
        out[i] = norm.bias ? x + norm.bias[i] : x;
    }
}

inline number multiply_add(number a, number b, number c) {
#if defined(__FMA__) || defined(__aarch64__)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

// Norm of a query or key, then rotation: each pair (a, b) becomes (a cos - b sin, b cos + a sin).
void norm_and_rotate(const Norm &norm, const Positions &positions, int position, const number *in,
                     number *out, int width) {
    normalize(norm, in, out, width);
    if (!positions.cos) return;
    const number *cos = positions.cos + (int64_t)position * positions.half;
    const number *sin = positions.sin + (int64_t)position * positions.half;
    int step = positions.interleaved ? 2 : 1, to_b = positions.interleaved ? 1 : positions.half;
    for (int i = 0; i < positions.half; i++) {
        number a = out[i * step], b = out[i * step + to_b];
        out[i * step] = multiply_add(b, -sin[i], a * cos[i]);
        out[i * step + to_b] = multiply_add(b, cos[i], a * sin[i]);
    }
}

struct SlotList { const int *slots; int n; };
constexpr int MAX_HEAD_VECTORS = 8;  // of a head whose sums are kept in registers

// The values of the slots, summed with these weights. The sums of VECTORS vectors stay in
// registers; 0: any width, in memory.
template <int VECTORS>
void weighted_sum(const number *weights, const number *values, SlotList attended, number *out,
                  int width) {
    if (VECTORS > 0 && width != VECTORS * LANES)
        return weighted_sum<std::max(0, VECTORS - 1)>(weights, values, attended, out, width);
    Vector sums[std::max(1, VECTORS)] = {};
    if (VECTORS == 0) std::fill(out, out + width, 0);
    for (int n = 0; n < attended.n; n++) {
        const number *value = values + (int64_t)attended.slots[n] * width;
        for (int v = 0; v < VECTORS; v++) sums[v] += weights[n] * load(value + v * LANES);
        for (int i = 0; VECTORS == 0 && i < width; i++) out[i] += weights[n] * value[i];
    }
    for (int v = 0; v < VECTORS; v++) *(Vector *)(out + v * LANES) = sums[v];
}

// softmax(q k^T) v over the slots of a list.
void attend_query(const number *q, const number *keys, const number *values, SlotList attended,
                  number *out, int width) {
    std::vector<number> scores(attended.n);
    number max = -INFINITY, total = 0;
    for (int n = 0; n < attended.n; n++) {
        const number *key = keys + (int64_t)attended.slots[n] * width;
        number score = 0;
        for (int i = 0; i < width; i++) score += q[i] * key[i];
        scores[n] = score;
        max = std::max(max, score);
    }
    for (number &score : scores) total += score = fast_exp(score - max);
    for (number &score : scores) score /= total;
    weighted_sum<MAX_HEAD_VECTORS>(scores.data(), values, attended, out, width);
}

// The slots that each row of a step attends to; computed once for all layers.
struct AttendedSlots {
    std::vector<int> all;         // 0, 1, 2, ...: without a mask a row attends to the first `end`
    std::vector<int> masked;      // with a mask: the slots of each row, one row after the other
    std::vector<SlotList> of;     // of each row

    AttendedSlots(const Rows &rows, const KVCache &cache)
        : all(cache.mask ? 0 : cache.capacity), of(rows.n) {
        for (size_t slot = 0; slot < all.size(); slot++) all[slot] = slot;
        std::vector<int> starts(rows.n);
        for (int row = 0; row < rows.n; row++) {
            starts[row] = masked.size();
            const number *mask = cache.mask ? cache.mask + (int64_t)row * cache.capacity : nullptr;
            int end = cache.lengths ? cache.lengths[rows.sequence[row]] : rows.end[row];
            for (int slot = 0; mask && slot < end; slot++)
                if (mask[slot] == 0) masked.push_back(slot);
            of[row].n = mask ? (int)masked.size() - starts[row] : end;
        }
        for (int row = 0; row < rows.n; row++)
            of[row].slots = cache.mask ? masked.data() + starts[row] : all.data();
    }
};

struct AttentionContext {         // what attention of one layer reads besides its weights
    const KVCache &cache;
    const AttendedSlots &attended;
    const Positions &positions;
    const Rows &rows;
    int layer;

    // Offset of the first slot of a key/value head of a row's sequence.
    int64_t offset(const Attention &a, int row, int kv) const {
        int64_t sequence = (int64_t)layer * cache.sequences + rows.sequence[row];
        return (sequence * a.kv_heads + kv) * cache.capacity * a.d_head;
    }
};

// Write the key and value of each row into its slot; (row, key/value head) pairs are divided among
// the threads.
void write_cache(const Attention &a, const AttentionContext &c, const number *qkv,
                 ThreadRange threads) {
    int d = a.d_head, begin, end;
    split_work(c.rows.n * a.kv_heads, threads, begin, end);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t slot = c.offset(a, row, kv) + (int64_t)c.rows.slot[row] * d;
        const number *key = qkv + (int64_t)row * a.in.outputs + (a.heads + kv) * d;
        norm_and_rotate(a.k_norm, c.positions, c.rows.position[row], key, c.cache.keys + slot, d);
        std::copy_n(key + a.kv_heads * d, d, c.cache.values + slot);
    }
}

// Attention of each row. The query heads of a group are computed one after the other, so that their
// shared key/value head is read from memory once and then from the cache of the core.
void attend(const Attention &a, const AttentionContext &c, const number *q, number *mixed,
            ThreadRange threads) {
    int d = a.d_head, group = a.heads / a.kv_heads, begin, end;
    split_work(c.rows.n * a.kv_heads, threads, begin, end);
    std::vector<number> query(d);
    for (int n = begin; n < end; n++) {
        int row = n / a.kv_heads, kv = n % a.kv_heads;
        int64_t first = c.offset(a, row, kv);
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            norm_and_rotate(a.q_norm, c.positions, c.rows.position[row],
                            q + (int64_t)row * a.in.outputs + head * d, query.data(), d);
            attend_query(query.data(), c.cache.keys + first, c.cache.values + first,
                         c.attended.of[row], mixed + ((int64_t)row * a.heads + head) * d, d);
        }
    }
}
}  // namespace
