// The best tokens of many scores, and the log of their sum, each in one pass.
//
// In: scores (rows, vocab). Out: what kernels/topk.py finds by torch's operations; of equals the earlier wins. Called by
// kernels/native_topk.py (tests/kernels/test_topk.py). Told in docs/performance.md, "The native library".
#include "api.h"

namespace {
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
    for (int i = 0; i < n; i++) total += fast_exp(scores[i] - most);
    return most + std::log(total);
}
}  // namespace

extern "C" {
// The n best sums of each sentence, the scores (sentences, live, vocab) shifted by `shift` (sentences, live), null: by nothing: (sentences, n)
// sums, best first, and their places live row * vocab + token.
void qkv_best(const number *scores, const number *shift, int sentences, int live, int vocab, int n, int threads, number *best, int64_t *place) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        share(sentences, thread_range(), begin, end);
        std::fill(place + (int64_t)begin * n, place + (int64_t)end * n, -1);
        for (int row = begin * live; row < end * live; row++) {
            int64_t to = (int64_t)(row / live) * n;
            gather_best(scores + (int64_t)row * vocab, vocab, shift ? shift[row] : 0, (int64_t)(row % live) * vocab, n, best + to, place + to);
        }
    }
}

// log(sum(exp(scores))) of each row, (rows, vocab) -> (rows,).
void qkv_log_sums(const number *scores, int rows, int vocab, int threads, number *sums) {
#pragma omp parallel num_threads(threads)
    {
        int begin, end;
        share(rows, thread_range(), begin, end);
        for (int row = begin; row < end; row++) sums[row] = log_sum(scores + (int64_t)row * vocab, vocab);
    }
}
}
