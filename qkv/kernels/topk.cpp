// Top-k of scores, and log-sum-exp, each in one pass over the scores; called by kernels/topk.py.
//
// A row is read in blocks of 8 vector registers. The maximum of a block is found by vector
// operations; only if it is among the k best so far are the scores of the block compared one by
// one. After the first blocks that is rare, so most scores cost one vector comparison.
#include "api.h"

namespace {
constexpr int BLOCK = 8 * LANES;  // scores per block

number max_of(const number *scores, int n) {
    number max = scores[0];
    int i = 0;
    if (n >= LANES) {
        Vector lanes = load(scores);
        for (i = LANES; i + LANES <= n; i += LANES) {
            Vector next = load(scores + i);
            lanes = next > lanes ? next : lanes;
        }
        for (int lane = 0; lane < LANES; lane++) max = std::max(max, lanes[lane]);
    }
    for (; i < n; i++) max = std::max(max, scores[i]);
    return max;
}

// Insert scores + shift of one row into the k best of its sentence so far, which are sorted; of
// equal sums the earlier comes first. An index of -1 marks a free entry: even -inf may take it.
void insert_row(const number *scores, int vocab, number shift, int64_t first_index, int k,
                number *best, int64_t *indices) {
    auto beats = [&](number sum, int rank) { return sum > best[rank] || indices[rank] < 0; };
    for (int begin = 0; begin < vocab; begin += BLOCK) {
        int end = std::min(vocab, begin + BLOCK);
        if (!beats(max_of(scores + begin, end - begin) + shift, k - 1)) continue;
        for (int i = begin; i < end; i++) {
            number sum = scores[i] + shift;
            if (!beats(sum, k - 1)) continue;
            int rank = k - 1;
            for (; rank > 0 && beats(sum, rank - 1); rank--)
                best[rank] = best[rank - 1], indices[rank] = indices[rank - 1];
            best[rank] = sum, indices[rank] = first_index + i;
        }
    }
}

// The maximum is subtracted first, so that no exponential overflows.
number log_sum_exp(const number *scores, int n) {
    number max = max_of(scores, n), total = 0;
    for (int i = 0; i < n; i++) total += fast_exp(scores[i] - max);
    return max + std::log(total);
}
}  // namespace

extern "C" {
// The k best of the scores (sentences, live, vocab) + shift (sentences, live; null: no shift) of
// each sentence: (sentences, k), best first, and their indices live row * vocab + token. Each
// thread takes whole sentences.
void qkv_topk(const number *scores, const number *shift, int sentences, int live, int vocab, int k,
              int threads, number *best, int64_t *indices) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        split_work(sentences, thread_range(), begin, end);
        std::fill(indices + (int64_t)begin * k, indices + (int64_t)end * k, -1);
        for (int row = begin * live; row < end * live; row++) {
            int64_t to = (int64_t)(row / live) * k;
            insert_row(scores + (int64_t)row * vocab, vocab, shift ? shift[row] : 0,
                       (int64_t)(row % live) * vocab, k, best + to, indices + to);
        }
    }
}

// log(sum(exp(scores))) of each row, (rows, vocab) -> (rows,).
void qkv_log_sum_exp(const number *scores, int rows, int vocab, int threads, number *sums) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        split_work(rows, thread_range(), begin, end);
        for (int row = begin; row < end; row++)
            sums[row] = log_sum_exp(scores + (int64_t)row * vocab, vocab);
    }
}
}
