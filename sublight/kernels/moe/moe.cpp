// This file knows about a layer of experts on the CPU: rows sorted by expert, two products each, summed by weight.
//
// Five phases, each over independent pieces: rows into order, gate and up with silu, (its order is completed,) down with
// the weighted sum. A piece of the output is summed by one thread over the experts in order: the same result every time.
#include "activation.hpp"
#include "panels.hpp"

using namespace sublight;

namespace {

constexpr int64_t columns_at_once = 256;

struct Sizes {
    int64_t tokens, experts, top_k, width, inner;
};

// Which (token, choice) pairs go to each expert, in order of tokens; experts without any are left out.
struct Groups {
    std::vector<int64_t> expert, start, pairs;        // pairs[start[g] … start[g + 1]) belong to expert[g]

    Groups(const int32_t *ids, const Sizes &s) {
        const int64_t count = s.tokens * s.top_k;
        std::vector<int64_t> at(size_t(s.experts) + 1, 0);
        for (int64_t i = 0; i < count; i++) at[size_t(ids[i]) + 1]++;
        for (int64_t e = 0; e < s.experts; e++) {
            if (at[size_t(e) + 1]) {
                expert.push_back(e);
                start.push_back(at[size_t(e)]);
            }
            at[size_t(e) + 1] += at[size_t(e)];
        }
        start.push_back(count);
        pairs.resize(size_t(count));
        for (int64_t i = 0; i < count; i++) pairs[size_t(at[size_t(ids[i])]++)] = i;
    }

    int64_t count() const { return int64_t(expert.size()); }
    int64_t rows(int64_t g) const { return start[size_t(g) + 1] - start[size_t(g)]; }
};

template <class Way> struct Layer {
    using Left = typename Way::Left;
    const Sizes s;
    const Groups groups;
    const bf16 *gate_up, *down;
    std::vector<int64_t> x_at, h_at;                  // where the rows of a group start, in the way's order
    Left *x = nullptr, *h = nullptr;
    int64_t chunk;                                    // panels of a piece

    Layer(const Sizes &sizes, const int32_t *ids, const bf16 *gate_up_, const bf16 *down_, int threads)
        : s(sizes), groups(ids, sizes), gate_up(gate_up_), down(down_) {
        int64_t x_size = 0, h_size = 0;
        for (int64_t g = 0; g < groups.count(); g++) {
            x_at.push_back(x_size);
            h_at.push_back(h_size);
            x_size += Way::left_size(groups.rows(g), s.width);
            h_size += Way::left_size(groups.rows(g), s.inner);
        }
        static thread_local Scratch<Left> kept_x, kept_h;
        x = kept_x.of(x_size);
        h = kept_h.of(h_size);
        const int64_t fewest = parts_of(at_most(s.width, s.inner), Way::columns);
        chunk = at_least<int64_t>(1, at_most<int64_t>(columns_at_once / Way::columns,
                                                      threads > 1 ? fewest / (4 * threads) : fewest));
    }

    void order(int64_t g, const bf16 *from) const {
        for (int64_t r = 0; r < groups.rows(g); r++) {
            const int64_t token = groups.pairs[size_t(groups.start[size_t(g)] + r)] / s.top_k;
            put_row<Way>(x + x_at[size_t(g)], groups.rows(g), s.width, r, from + token * s.width);
        }
        Way::finish(x + x_at[size_t(g)], groups.rows(g), s.width);
        Way::finish(h + h_at[size_t(g)], groups.rows(g), s.inner);
    }

    // silu(gate) · up of one group and of the panels p, p + 1, … of inner.
    void activate(int64_t g, int64_t p, Scratch<float> &sums) const {
        const int64_t rows = groups.rows(g), panels = parts_of(s.inner, Way::columns);
        const int64_t count = at_most(chunk, panels - p), stride = count * Way::columns, first = p * Way::columns;
        const int64_t half = Way::packed_size(s.inner, s.width);
        const bf16 *weights = gate_up + 2 * half * groups.expert[size_t(g)] + Way::packed_size(first, s.width);
        float *gate = sums.of(2 * rows * stride), *up = gate + rows * stride;
        Way::multiply(x + x_at[size_t(g)], weights, rows, s.width, count, gate, stride);
        Way::multiply(x + x_at[size_t(g)], weights + half, rows, s.width, count, up, stride);
        for (int64_t i = 0; i < rows * stride; i += lanes) store(gate + i, silu(load(gate + i)) * load(up + i));
        for (int64_t r = 0; r < rows; r++)
            Way::put(h + h_at[size_t(g)], rows, s.inner, r, first, at_most(stride, s.inner - first), gate + r * stride);
    }

    // Panels p, p + 1, … of the output of all tokens.
    void combine(int64_t p, const float *weights, bf16 *out, Scratch<float> &sums) const {
        const int64_t count = at_most(chunk, parts_of(s.width, Way::columns) - p);
        const int64_t stride = count * Way::columns, first = p * Way::columns;
        int64_t most = 0;
        for (int64_t g = 0; g < groups.count(); g++) most = at_least(most, groups.rows(g));
        float *total = sums.of((s.tokens + most) * stride), *made = total + s.tokens * stride;
        std::memset(total, 0, size_t(s.tokens * stride) * sizeof(float));
        for (int64_t g = 0; g < groups.count(); g++) {
            const bf16 *panel = down + Way::packed_size(s.width, s.inner) * groups.expert[size_t(g)];
            Way::multiply(h + h_at[size_t(g)], panel + Way::packed_size(first, s.inner), groups.rows(g), s.inner, count,
                          made, stride);
            for (int64_t r = 0; r < groups.rows(g); r++) {
                const int64_t pair_number = groups.pairs[size_t(groups.start[size_t(g)] + r)];
                const Floats weight = all(weights[pair_number]);
                float *to = total + pair_number / s.top_k * stride;
                for (int64_t i = 0; i < stride; i += lanes) store(to + i, load(to + i) + weight * load(made + r * stride + i));
            }
        }
        for (int64_t t = 0; t < s.tokens; t++)
            store_row(out + t * s.width + first, total + t * stride, at_most(stride, s.width - first));
    }

    void run(const bf16 *from, const float *weights, bf16 *out, int threads) const {
        const int64_t inner_panels = parts_of(s.inner, Way::columns), width_panels = parts_of(s.width, Way::columns);
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            static thread_local Scratch<float> sums;
            [[maybe_unused]] typename Way::Use use;
#pragma omp for schedule(dynamic)
            for (int64_t g = 0; g < groups.count(); g++) order(g, from);
#pragma omp for schedule(dynamic) collapse(2)
            for (int64_t g = 0; g < groups.count(); g++)
                for (int64_t p = 0; p < inner_panels; p += chunk) activate(g, p, sums);
#pragma omp for schedule(dynamic)
            for (int64_t p = 0; p < width_panels; p += chunk) combine(p, weights, out, sums);
        }
        (void)threads;
    }
};

}  // namespace

SUBLIGHT_EXPORT int64_t moe_gate_up_size(int64_t width, int64_t inner) {
    return with_way([=](auto way) { return 2 * way.packed_size(inner, width); });
}

SUBLIGHT_EXPORT int64_t moe_down_size(int64_t width, int64_t inner) {
    return with_way([=](auto way) { return way.packed_size(width, inner); });
}

// gate_up [experts, 2·inner, width]: the gate's panels of an expert, then those of up. down [experts, width, inner].
SUBLIGHT_EXPORT void moe_pack(const bf16 *gate_up, const bf16 *down, int64_t experts, int64_t width, int64_t inner,
                              bf16 *packed_gate_up, bf16 *packed_down) {
    with_way([=](auto way) {
        const int64_t half = way.packed_size(inner, width);
        for (int64_t e = 0; e < experts; e++) {
            way.pack(gate_up + 2 * e * inner * width, inner, width, packed_gate_up + 2 * e * half);
            way.pack(gate_up + (2 * e + 1) * inner * width, inner, width, packed_gate_up + (2 * e + 1) * half);
            way.pack(down + e * width * inner, width, inner, packed_down + e * way.packed_size(width, inner));
        }
    });
}

SUBLIGHT_EXPORT void moe_bf16(const bf16 *x, const bf16 *gate_up, const bf16 *down, const int32_t *ids,
                              const float *weights, bf16 *out, int64_t tokens, int64_t experts, int64_t top_k,
                              int64_t width, int64_t inner, int threads) {
    with_way([=](auto way) {
        const Layer<decltype(way)> layer({tokens, experts, top_k, width, inner}, ids, gate_up, down, threads);
        layer.run(x, weights, out, threads);
    });
}
