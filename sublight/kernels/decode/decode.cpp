// This file knows about attention of one query token over a KV cache on the CPU: pages or one piece, groups of heads.
//
// A block of tokens is taken for all heads at once, so that memory is read in order and once: keys while they are
// multiplied, values by prefetch in the meantime. Heads that share a key head are multiplied while its row is in
// registers. The softmax is corrected block by block; parts of a sequence (several threads) are merged at the end.
#include <algorithm>
#include <vector>

#include "vectors.hpp"

using namespace sublight;

namespace {

constexpr int tokens_at_once = 32;
constexpr int tokens_of_values = 16;                  // rows of values 2 kB apart fall on few sets of the first cache
constexpr int fewest_of_part = 512;                   // tokens, where several threads share a sequence

// Where the keys and values of a token lie: in page table[b][token / page], or, without a table, in sequence b's piece.
template <class Element> struct Cache {
    const Element *k, *v;
    const int32_t *table;
    int64_t max_pages, page, page_stride, token_stride, head_stride;

    int64_t offset(int64_t b, int64_t token) const {
        const int64_t number = table ? table[b * max_pages + token / page] : b;
        return number * page_stride + (table ? token % page : token) * token_stride;
    }
};

struct Sizes {
    int64_t heads, kv_heads, dim, steps;              // steps: pairs of vectors of a row, the last may be a part

    int64_t group() const { return heads / kv_heads; }
    int64_t padded() const { return steps * pair; }
};

template <class Element> SUBLIGHT_INLINE Pair load_step(const Element *row, int64_t step, int64_t dim) {
    const int64_t left = dim - step * pair;
    return left >= pair ? load_pair(row + step * pair) : load_part(row + step * pair, left);
}

// out[token][head] = k · q for `heads` heads that share keys and 8 / heads tokens. Eight sums at once hide the latency
// of an addition. q is fp32, in the order of load_pair.
template <int heads, class Element>
SUBLIGHT_INLINE Eight scores(const Element *const *rows, const float *q, const Sizes &s) {
    constexpr int tokens = 8 / heads;
    Floats sum[8] = {};
    for (int64_t step = 0; step < s.steps; step++) {
        Pair k[tokens];
        for (int t = 0; t < tokens; t++) k[t] = load_step(rows[t], step, s.dim);
        for (int h = 0; h < heads; h++) {
            const float *at = q + h * s.padded() + step * pair;
            const Floats first = load(at), second = load(at + lanes);
            for (int t = 0; t < tokens; t++) {
                sum[t * heads + h] += k[t].first * first;
                sum[t * heads + h] += k[t].second * second;
            }
        }
    }
    return sums_of_eight(sum);
}

// out[head] += Σ over tokens of p[head][token] · v[token], for `wide` pairs of vectors from `step` on.
template <int heads, int wide, class Element>
SUBLIGHT_INLINE void weigh(const Element *const *rows, int count, const float *p, float *out, int64_t step,
                           const Sizes &s) {
    Pair sum[heads][wide];
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < wide; w++) {
            const float *at = out + h * s.padded() + (step + w) * pair;
            sum[h][w] = {load(at), load(at + lanes)};
        }
    for (int t = 0; t < count; t++)
        for (int w = 0; w < wide; w++) {
            const Pair v = load_step(rows[t], step + w, s.dim);
            for (int h = 0; h < heads; h++) {
                const Floats weight = all(p[h * tokens_at_once + t]);
                sum[h][w].first += weight * v.first;
                sum[h][w].second += weight * v.second;
            }
        }
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < wide; w++) {
            float *at = out + h * s.padded() + (step + w) * pair;
            store(at, sum[h][w].first);
            store(at + lanes, sum[h][w].second);
        }
}

template <class Element> SUBLIGHT_INLINE void prefetch(const Element *row, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(Element))) __builtin_prefetch(row + i);
}

// What is known of a head after some tokens: out is Σ exp(score - top) · v, total is Σ exp(score - top).
struct Partial {
    std::vector<float> out, top, total;

    void begin(const Sizes &s) {
        out.assign(size_t(s.heads * s.padded()), 0.0f);
        top.assign(size_t(s.heads), -INFINITY);
        total.assign(size_t(s.heads), 0.0f);
    }
};

template <class Element> struct Attention {
    const Element *q;
    const Cache<Element> cache;
    const int32_t *lengths;
    Element *out;
    const Sizes s;
    const float scale;

    // The scores of `heads` heads from head `first` on; p is [heads of all][tokens_at_once].
    template <int heads>
    void score(const Element *const *keys, int count, const float *qs, int64_t first, float *p) const {
        constexpr int tokens = 8 / heads;
        for (int t = 0; t < count; t += tokens) {
            const Element *rows[tokens];
            for (int i = 0; i < tokens; i++)
                rows[i] = keys[at_most(t + i, count - 1)] + first / s.group() * cache.head_stride;
            float eight[8];
            const Eight found = scores<heads>(rows, qs + first * s.padded(), s);
            std::memcpy(eight, &found, sizeof eight);
            for (int i = 0; i < tokens; i++)
                for (int h = 0; h < heads; h++) p[(first + h) * tokens_at_once + t + i] = eight[i * heads + h];
        }
    }

    template <int heads>
    void weigh_rows(const Element *const *values, int count, const float *p, int64_t first, float *to) const {
        constexpr int wide = 4 / heads;
        const Element *rows[tokens_of_values];
        for (int t = 0; t < count; t++) rows[t] = values[t] + first / s.group() * cache.head_stride;
        int64_t step = 0;
        for (; step + wide <= s.steps; step += wide)
            weigh<heads, wide>(rows, count, p + first * tokens_at_once, to + first * s.padded(), step, s);
        for (; step < s.steps; step++)
            weigh<heads, 1>(rows, count, p + first * tokens_at_once, to + first * s.padded(), step, s);
    }

    // exp(score · scale - top) in place of the scores; what was summed before is scaled where top rose.
    void soften(float *p, int count, int64_t head, Partial &so_far) const {
        float *mine = p + head * tokens_at_once, &top = so_far.top[size_t(head)], &total = so_far.total[size_t(head)];
        for (int t = count; t < tokens_at_once; t++) mine[t] = -INFINITY;
        Floats most = all(top);
        for (int t = 0; t < tokens_at_once; t += lanes) {
            const Floats scaled = load(mine + t) * scale;
            store(mine + t, scaled);
            most = larger(scaled, most);
        }
        for (int t = count; t < tokens_at_once; t++) mine[t] = -INFINITY;      // a negative or zero scale made them wrong
        const float found = largest(most);
        if (found > top) {
            const float shrink = std::exp(top - found);
            float *to = so_far.out.data() + head * s.padded();
            for (int64_t i = 0; i < s.padded() && total != 0; i += lanes) store(to + i, load(to + i) * shrink);
            total = total == 0 ? 0 : total * shrink;
            top = found;
        }
        const Floats from = all(top == -INFINITY ? 0.0f : top);
        Floats sums = {};
        for (int t = 0; t < tokens_at_once; t += lanes) {
            const Floats weight = exp_below_zero(load(mine + t) - from);
            store(mine + t, weight);
            sums += weight;
        }
        total += sum(sums);
    }

    template <class Function> void by_heads(Function function) const {
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            const int64_t first = kv * s.group();
            for (int64_t h = 0; h < s.group();) h += function(first + h, s.group() - h);
        }
    }

    void block(const Element *const *keys, const Element *const *values, int count, const Element *const *next,
               int next_count, const float *qs, float *p, Partial &so_far) const {
        const bool rows_are_whole = cache.head_stride == s.dim;
        const int64_t row = rows_are_whole ? s.kv_heads * s.dim : s.dim;
        const int64_t apart = rows_are_whole ? 1 : s.kv_heads;
        for (int t = 0; t < count; t += 8) {                                   // eight rows of keys for all heads
            const int some = at_most(8, count - t);
            for (int i = 0; i < some; i++)
                for (int64_t h = 0; h < apart; h++) prefetch(values[t + i] + h * cache.head_stride, row);
            by_heads([&](int64_t first, int64_t left) -> int64_t {
                if (left >= 8) return score<8>(keys + t, some, qs, first, p + t), 8;
                if (left >= 4) return score<4>(keys + t, some, qs, first, p + t), 4;
                if (left >= 2) return score<2>(keys + t, some, qs, first, p + t), 2;
                return score<1>(keys + t, some, qs, first, p + t), 1;
            });
        }
        for (int64_t h = 0; h < s.heads; h++) soften(p, count, h, so_far);
        for (int t = 0; t < count; t += tokens_of_values) {
            const int some = at_most(tokens_of_values, count - t);
            for (int i = t; i < at_most(t + tokens_of_values, next_count); i++)
                for (int64_t h = 0; h < apart; h++) prefetch(next[i] + h * cache.head_stride, row);
            by_heads([&](int64_t first, int64_t left) -> int64_t {
                float *to = so_far.out.data();
                if (left >= 4) return weigh_rows<4>(values + t, some, p + t, first, to), 4;
                if (left >= 2) return weigh_rows<2>(values + t, some, p + t, first, to), 2;
                return weigh_rows<1>(values + t, some, p + t, first, to), 1;
            });
        }
    }

    // Tokens from `from` to `to` of sequence b.
    void part(int64_t b, int64_t from, int64_t to, Partial &so_far) const {
        static thread_local std::vector<float> qs, p;
        qs.assign(size_t(s.heads * s.padded()), 0.0f);
        p.resize(size_t(s.heads * tokens_at_once + tokens_at_once));
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t step = 0; step < s.steps; step++) {
                const Pair x = load_step(q + (b * s.heads + h) * s.dim, step, s.dim);
                store(qs.data() + h * s.padded() + step * pair, x.first);
                store(qs.data() + h * s.padded() + step * pair + lanes, x.second);
            }
        so_far.begin(s);
        const Element *keys[2][tokens_at_once], *values[2][tokens_at_once];
        const auto locate = [&](int64_t begin, int which) {
            const int count = int(std::clamp<int64_t>(to - begin, 0, tokens_at_once));
            for (int t = 0; t < count; t++) {
                const int64_t at = cache.offset(b, begin + t);
                keys[which][t] = cache.k + at;
                values[which][t] = cache.v + at;
            }
            return count;
        };
        int now = 0, count = locate(from, 0);
        for (int64_t begin = from; begin < to; begin += tokens_at_once, now = 1 - now) {
            const int next = locate(begin + tokens_at_once, 1 - now);
            block(keys[now], values[now], count, keys[1 - now], next, qs.data(), p.data(), so_far);
            count = next;
        }
    }

    // One sequence from its parts. Without a token it is 0; where every score is -inf, 0 / 0 is NaN, as a softmax says.
    void finish(int64_t b, const Partial *parts, int64_t count) const {
        std::vector<float> row(size_t(s.padded()), 0.0f);
        for (int64_t h = 0; h < s.heads; h++) {
            float top = -INFINITY, total = 0;
            for (int64_t i = 0; i < count; i++) top = at_least(top, parts[i].top[size_t(h)]);
            std::fill(row.begin(), row.end(), 0.0f);
            for (int64_t i = 0; i < count; i++) {
                const float its = parts[i].top[size_t(h)], weight = its == top ? 1.0f : std::exp(its - top);
                total += parts[i].total[size_t(h)] * weight;
                for (int64_t j = 0; j < s.padded(); j++)
                    row[size_t(j)] += parts[i].out[size_t(h * s.padded() + j)] * weight;
            }
            const float share = lengths[b] > 0 ? 1.0f / total : 0.0f;
            Element *to = out + (b * s.heads + h) * s.dim;
            for (int64_t step = 0; step < s.steps; step++) {
                const Pair x = {load(&row[size_t(step * pair)]) * share, load(&row[size_t(step * pair + lanes)]) * share};
                const int64_t left = s.dim - step * pair;
                left >= pair ? store_pair(to + step * pair, x) : store_part(to + step * pair, x, left);
            }
        }
    }

    void run(int64_t batch, int threads) const {
        int64_t tokens = 0;
        for (int64_t b = 0; b < batch; b++) tokens += lengths[b];
        const int64_t most = threads > 1 ? at_least<int64_t>(fewest_of_part, tokens / (4 * threads)) : INT64_MAX / 2;
        std::vector<int64_t> start(1, 0), sequence;                            // the parts of each sequence
        for (int64_t b = 0; b < batch; b++) {
            const int64_t count = lengths[b] > 0 ? (lengths[b] - 1) / most + 1 : 0;
            sequence.insert(sequence.end(), size_t(count), b);
            start.push_back(start.back() + count);
        }
        std::vector<Partial> parts(sequence.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
        for (int64_t i = 0; i < int64_t(sequence.size()); i++) {
            const int64_t b = sequence[size_t(i)], from = (i - start[size_t(b)]) * most;
            part(b, from, at_most<int64_t>(lengths[b], from + most), parts[size_t(i)]);
        }
        for (int64_t b = 0; b < batch; b++)
            finish(b, parts.data() + start[size_t(b)], start[size_t(b) + 1] - start[size_t(b)]);
        (void)threads;
    }
};

template <class Element>
void decode(const Element *q, const Element *k, const Element *v, const int32_t *table, const int32_t *lengths,
            Element *out, int64_t batch, int64_t heads, int64_t kv_heads, int64_t dim, int64_t max_pages, int64_t page,
            const int64_t *strides, float scale, int threads) {
    const Attention<Element> attention{q, {k, v, table, max_pages, page, strides[0], strides[1], strides[2]}, lengths,
                                       out, {heads, kv_heads, dim, (dim + pair - 1) / pair}, scale};
    attention.run(batch, threads);
}

}  // namespace

// strides: of a page (without a table: of a sequence), a token and a head, in elements, the same for k and v.
SUBLIGHT_EXPORT void decode_bf16(const bf16 *q, const bf16 *k, const bf16 *v, const int32_t *table,
                                 const int32_t *lengths, bf16 *out, int64_t batch, int64_t heads, int64_t kv_heads,
                                 int64_t dim, int64_t max_pages, int64_t page, const int64_t *strides, float scale,
                                 int threads) {
    decode(q, k, v, table, lengths, out, batch, heads, kv_heads, dim, max_pages, page, strides, scale, threads);
}

SUBLIGHT_EXPORT void decode_fp32(const float *q, const float *k, const float *v, const int32_t *table,
                                 const int32_t *lengths, float *out, int64_t batch, int64_t heads, int64_t kv_heads,
                                 int64_t dim, int64_t max_pages, int64_t page, const int64_t *strides, float scale,
                                 int threads) {
    decode(q, k, v, table, lengths, out, batch, heads, kv_heads, dim, max_pages, page, strides, scale, threads);
}
