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
    bool whole() const { return dim % pair == 0; }
};

template <bool whole, class Element> SUBLIGHT_INLINE Pair load_step(const Element *row, int64_t step, int64_t dim) {
    const int64_t left = dim - step * pair;
    return whole || left >= pair ? load_pair(row + step * pair) : load_part(row + step * pair, left);
}

// out[token][head] = k · q for `heads` heads that share keys and 8 / heads tokens. Eight sums at once hide the latency
// of an addition. q is fp32, in the order of load_pair.
template <int heads, bool whole, class Element>
SUBLIGHT_INLINE Eight scores(const Element *const *rows, const float *q, const Sizes &s) {
    constexpr int tokens = 8 / heads;
    Floats sum[8] = {};
    for (int64_t step = 0; step < s.steps; step++) {
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            const Pair k = load_step<whole>(rows[t], step, s.dim);
#pragma GCC unroll 8
            for (int h = 0; h < heads; h++) {
                const float *at = q + h * s.padded() + step * pair;
                sum[t * heads + h] += k.first * load(at);
                sum[t * heads + h] += k.second * load(at + lanes);
            }
        }
    }
    return sums_of_eight(sum);
}

// out[head] += Σ over tokens of p[token][head] · v[token], for `wide` pairs of vectors from `step` on.
template <int heads, int wide, bool whole, class Element>
SUBLIGHT_INLINE void weigh(const Element *const *rows, int count, const float *p, int apart, float *out, int64_t step,
                           const Sizes &s) {
    Pair sum[heads][wide];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) {
            const float *at = out + h * s.padded() + (step + w) * pair;
            sum[h][w] = {load(at), load(at + lanes)};
        }
    for (int t = 0; t < count; t++) {
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) {
            const Pair v = load_step<whole>(rows[t], step + w, s.dim);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                const Floats weight = all(p[t * apart + h]);
                sum[h][w].first += weight * v.first;
                sum[h][w].second += weight * v.second;
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) {
            float *at = out + h * s.padded() + (step + w) * pair;
            store(at, sum[h][w].first);
            store(at + lanes, sum[h][w].second);
        }
}

// Rows that come next, asked for in the order of memory and little by little: memory works while others are multiplied,
// and reads its own rows once. (Row by row as they are used, 256 bytes in 2 kB at a time, took twice as long.)
template <class Element> struct Ahead {
    const Element *const *rows;
    int64_t count, pieces, piece, head_stride;        // of `count` rows, `pieces` pieces each of `piece` elements
    int64_t which = 0, at = 0;

    Ahead(const Element *const *rows_, int count_, int64_t kv_heads, int64_t dim, int64_t head_stride_)
        : rows(rows_), count(count_), pieces(head_stride_ == dim ? 1 : kv_heads),
          piece(head_stride_ == dim ? kv_heads * dim : dim), head_stride(head_stride_) {}

    SUBLIGHT_INLINE void ask(int64_t elements) {
        for (; elements > 0 && which < count * pieces; elements -= line, at += line) {
            __builtin_prefetch(rows[which % count] + which / count * head_stride + at);
            if (at + line >= piece) {
                which++;
                at = -line;
            }
        }
    }

    static constexpr int64_t line = 64 / sizeof(Element);
};

// What is known of a head after some tokens: out is Σ exp(score - top) · v, total is Σ exp(score - top).
struct Partial {
    std::vector<float> out, top, total;

    void begin(const Sizes &s) {
        out.assign(size_t(s.heads * s.padded()), 0.0f);
        top.assign(size_t(s.heads), -INFINITY);
        total.assign(size_t(s.heads), 0.0f);
    }
};

// The rows of a block of tokens, of the first key head.
template <class Element> struct Rows {
    const Element *keys[tokens_at_once], *values[tokens_at_once];
    int count;
};

template <class Element> struct Attention {
    const Element *q;
    const Cache<Element> cache;
    const int32_t *lengths;
    Element *out;
    const Sizes s;
    const float scale;

    // The scores of `heads` heads from head `first` on: p is [token][head].
    template <int heads>
    void score(const Rows<Element> &now, const float *qs, int64_t first, float *p, Ahead<Element> &ahead) const {
        constexpr int tokens = 8 / heads;
        const int64_t kv = first / s.group() * cache.head_stride;
        const float *mine = qs + first * s.padded();
        for (int t = 0; t < now.count; t += tokens) {
            const Element *rows[tokens];
            for (int i = 0; i < tokens; i++) rows[i] = now.keys[at_most(t + i, now.count - 1)] + kv;
            ahead.ask(tokens * s.dim);
            const Eight found = s.whole() ? scores<heads, true>(rows, mine, s) : scores<heads, false>(rows, mine, s);
            std::memcpy(p + t * heads, &found, sizeof found);
        }
    }

    // exp(score · scale - top) in place of the scores of `heads` heads; what was summed before shrinks where top rose.
    template <int heads> void soften(float *p, int count, int64_t first, Partial &so_far) const {
        float *tops = so_far.top.data() + first, *totals = so_far.total.data() + first;
        Floats most = all(-INFINITY), from, sums = {};
        for (int i = count * heads; i < tokens_at_once * heads; i++) p[i] = 0;         // a score of nothing yet
        for (int i = 0; i < tokens_at_once * heads; i += lanes) store(p + i, load(p + i) * scale);
        for (int i = count * heads; i < tokens_at_once * heads; i++) p[i] = -INFINITY;
        for (int i = 0; i < tokens_at_once * heads; i += lanes) most = larger(load(p + i), most);
        float found[lanes], shift[lanes];
        store(found, most);
        for (int h = 0; h < heads; h++) {
            for (int i = h; i < lanes; i += heads) found[h] = at_least(found[i], found[h]);
            if (found[h] > tops[h]) rise(first + h, found[h], so_far);
            for (int i = h; i < lanes; i += heads) shift[i] = tops[h] == -INFINITY ? 0.0f : tops[h];
        }
        from = load(shift);
        for (int i = 0; i < tokens_at_once * heads; i += lanes) {
            const Floats weight = exp_below_zero(load(p + i) - from);
            store(p + i, weight);
            sums += weight;
        }
        store(found, sums);
        for (int i = 0; i < lanes; i++) totals[i % heads] += found[i];
    }

    void rise(int64_t head, float top, Partial &so_far) const {
        float &total = so_far.total[size_t(head)], *to = so_far.out.data() + head * s.padded();
        if (so_far.top[size_t(head)] > -INFINITY) {
            const float shrink = std::exp(so_far.top[size_t(head)] - top);
            for (int64_t i = 0; i < s.padded(); i += lanes) store(to + i, load(to + i) * shrink);
            total *= shrink;
        }
        so_far.top[size_t(head)] = top;
    }

    // Σ p · v for `heads` heads (at most 4 at once: accumulators), 16 rows of values at a time.
    template <int heads>
    void weigh_rows(const Rows<Element> &now, const float *p, int64_t first, Partial &so_far,
                    Ahead<Element> &ahead) const {
        constexpr int some = heads > 4 ? 4 : heads, wide = 4 / some;
        const int64_t kv = first / s.group() * cache.head_stride;
        for (int begin = 0; begin < now.count; begin += tokens_of_values) {
            const int count = at_most(tokens_of_values, now.count - begin);
            const Element *rows[tokens_of_values];
            for (int t = 0; t < count; t++) rows[t] = now.values[begin + t] + kv;
            for (int h = 0; h < heads; h += some) {
                float *sums = so_far.out.data() + (first + h) * s.padded();
                const float *weights = p + begin * heads + h;
                int64_t step = 0;
                for (; s.whole() && step + wide <= s.steps; step += wide) {
                    ahead.ask(h == 0 ? count * wide * pair : 0);
                    weigh<some, wide, true>(rows, count, weights, heads, sums, step, s);
                }
                for (; step < s.steps; step++) weigh<some, 1, false>(rows, count, weights, heads, sums, step, s);
            }
        }
    }

    template <int heads>
    int64_t step_of(const Rows<Element> &now, const float *qs, int64_t first, float *p, Partial &so_far, bool values,
                    Ahead<Element> &ahead) const {
        float *mine = p + first * tokens_at_once;
        if (values) {
            weigh_rows<heads>(now, mine, first, so_far, ahead);
        } else {
            score<heads>(now, qs, first, mine, ahead);
            soften<heads>(mine, now.count, first, so_far);
        }
        return heads;
    }

    // Keys for all heads, then values for all heads: 8, 4, 2 or 1 of those that share keys at a time.
    void block(const Rows<Element> &now, const Rows<Element> &next, const float *qs, float *p, Partial &so_far) const {
        for (const bool values : {false, true}) {
            Ahead<Element> ahead(values ? next.keys : now.values, values ? next.count : now.count, s.kv_heads, s.dim,
                                 cache.head_stride);
            for (int64_t h = 0; h < s.heads;) {
                const int64_t left = s.group() - h % s.group();
                h += left >= 8   ? step_of<8>(now, qs, h, p, so_far, values, ahead)
                     : left >= 4 ? step_of<4>(now, qs, h, p, so_far, values, ahead)
                     : left >= 2 ? step_of<2>(now, qs, h, p, so_far, values, ahead)
                                 : step_of<1>(now, qs, h, p, so_far, values, ahead);
            }
        }
    }

    // Tokens from `from` to `to` of sequence b.
    void part(int64_t b, int64_t from, int64_t to, Partial &so_far) const {
        static thread_local std::vector<float> qs, p;
        qs.assign(size_t(s.heads * s.padded()), 0.0f);
        p.resize(size_t(s.heads * tokens_at_once));
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t step = 0; step < s.steps; step++) {
                const Pair x = load_step<false>(q + (b * s.heads + h) * s.dim, step, s.dim);
                store(qs.data() + h * s.padded() + step * pair, x.first);
                store(qs.data() + h * s.padded() + step * pair + lanes, x.second);
            }
        so_far.begin(s);
        Rows<Element> rows[2];
        locate(b, from, to, rows[0]);
        for (int64_t begin = from, now = 0; begin < to; begin += tokens_at_once, now = 1 - now) {
            locate(b, begin + tokens_at_once, to, rows[1 - now]);
            block(rows[now], rows[1 - now], qs.data(), p.data(), so_far);
        }
    }

    void locate(int64_t b, int64_t from, int64_t to, Rows<Element> &rows) const {
        rows.count = int(std::clamp<int64_t>(to - from, 0, tokens_at_once));
        for (int t = 0; t < rows.count; t++) {
            const int64_t at = cache.offset(b, from + t);
            rows.keys[t] = cache.k + at;
            rows.values[t] = cache.v + at;
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
            const float share = lengths[b] == 0 ? 0.0f : top == -INFINITY ? NAN : 1.0f / total;
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
#define SUBLIGHT_DECODE(name, Element)                                                                                \
    SUBLIGHT_EXPORT void name(const Element *q, const Element *k, const Element *v, const int32_t *table,             \
                              const int32_t *lengths, Element *out, int64_t batch, int64_t heads, int64_t kv_heads,   \
                              int64_t dim, int64_t max_pages, int64_t page, const int64_t *strides, float scale,      \
                              int threads) {                                                                          \
        decode(q, k, v, table, lengths, out, batch, heads, kv_heads, dim, max_pages, page, strides, scale, threads);  \
    }

SUBLIGHT_DECODE(decode_bf16, bf16)
SUBLIGHT_DECODE(decode_fp32, float)
