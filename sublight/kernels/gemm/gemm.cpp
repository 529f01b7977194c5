// This file knows about matrix products with few rows on the CPU: out[m, n] = a[m, k] · b[n, k]ᵀ, b packed ahead.
#include "panels.hpp"

using namespace sublight;

namespace {

constexpr int64_t rows_at_once = 96;                  // of a, in fp32, with a piece of its depth in the second cache
constexpr int64_t columns_at_once = 256;

template <class Way, class Element>
void gemm(const bf16 *a, const bf16 *packed, Element *out, int64_t m, int64_t n, int64_t k, int threads) {
    static thread_local Scratch<typename Way::Left> scratch;
    typename Way::Left *left = scratch.of(Way::left_size(m, k) + Way::left_size(rows_at_once, k));
    const int64_t groups = parts_of(m, rows_at_once), panels = parts_of(n, Way::columns);
    const int64_t chunk = at_least<int64_t>(
        1, at_most<int64_t>(columns_at_once / Way::columns, threads > 1 ? panels / (4 * threads) : panels));
    const auto rows_of = [m](int64_t g) { return at_most(rows_at_once, m - g * rows_at_once); };
    const auto left_of = [left, k](int64_t g) { return left + Way::left_size(g * rows_at_once, k); };

#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local Scratch<float> sums;
        [[maybe_unused]] typename Way::Use use;
#pragma omp for schedule(dynamic)
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t r = 0; r < rows_of(g); r++)
                put_row<Way>(left_of(g), rows_of(g), k, r, a + (g * rows_at_once + r) * k);
            Way::finish(left_of(g), rows_of(g), k);
        }
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t p = 0; p < panels; p += chunk)
            for (int64_t g = 0; g < groups; g++) {
                const int64_t count = at_most(chunk, panels - p), stride = count * Way::columns;
                const int64_t column = p * Way::columns;
                float *c = sums.of(rows_at_once * stride);
                Way::multiply(left_of(g), packed + Way::packed_size(column, k), rows_of(g), k, count, c, stride);
                for (int64_t r = 0; r < rows_of(g); r++)
                    store_row(out + (g * rows_at_once + r) * n + column, c + r * stride, at_most(stride, n - column));
            }
    }
    (void)threads;
}

}  // namespace

SUBLIGHT_EXPORT int64_t gemm_packed_size(int64_t n, int64_t k) {
    return with_way([=](auto way) { return way.packed_size(n, k); });
}

SUBLIGHT_EXPORT void gemm_pack(const bf16 *b, int64_t n, int64_t k, bf16 *to) {
    with_way([=](auto way) { way.pack(b, n, k, to); });
}

SUBLIGHT_EXPORT void gemm_to_bf16(const bf16 *a, const bf16 *packed, bf16 *out, int64_t m, int64_t n, int64_t k,
                                  int threads) {
    with_way([=](auto way) { gemm<decltype(way)>(a, packed, out, m, n, k, threads); });
}

SUBLIGHT_EXPORT void gemm_to_fp32(const bf16 *a, const bf16 *packed, float *out, int64_t m, int64_t n, int64_t k,
                                  int threads) {
    with_way([=](auto way) { gemm<decltype(way)>(a, packed, out, m, n, k, threads); });
}

SUBLIGHT_EXPORT int uses_tiles() {
    return with_way([](auto way) { return decltype(way)::columns == 32 && sizeof(typename decltype(way)::Left) == 2; });
}
