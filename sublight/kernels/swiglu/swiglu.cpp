// This file knows about SwiGLU on the CPU: silu(gate) · up, in one pass.
#include "activation.hpp"

using namespace sublight;

namespace {

template <class Element> void row(const Element *gate, const Element *up, Element *out, int64_t width) {
    int64_t i = 0;
    for (; i + pair <= width; i += pair) {
        const Pair g = load_pair(gate + i), u = load_pair(up + i);
        store_pair(out + i, {silu(g.first) * u.first, silu(g.second) * u.second});
    }
    if (i < width) {
        const Pair g = load_part(gate + i, width - i), u = load_part(up + i, width - i);
        store_part(out + i, {silu(g.first) * u.first, silu(g.second) * u.second}, width - i);
    }
}

template <class Element> void swiglu(const Element *gate_up, Element *out, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        row(gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, out + r * width, width);
    (void)threads;
}

// gate and up as two matrices, as a torch module that has two projections makes them.
template <class Element> void apart(const Element *gate, const Element *up, Element *out, int64_t count, int threads) {
    constexpr int64_t piece = 4096;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < count; i += piece) row(gate + i, up + i, out + i, at_most(piece, count - i));
    (void)threads;
}

}  // namespace

SUBLIGHT_EXPORT void swiglu_bf16(const bf16 *gate_up, bf16 *out, int64_t rows, int64_t width, int threads) {
    swiglu(gate_up, out, rows, width, threads);
}

SUBLIGHT_EXPORT void swiglu_fp32(const float *gate_up, float *out, int64_t rows, int64_t width, int threads) {
    swiglu(gate_up, out, rows, width, threads);
}

SUBLIGHT_EXPORT void swiglu_apart_bf16(const bf16 *gate, const bf16 *up, bf16 *out, int64_t count, int threads) {
    apart(gate, up, out, count, threads);
}

SUBLIGHT_EXPORT void swiglu_apart_fp32(const float *gate, const float *up, float *out, int64_t count, int threads) {
    apart(gate, up, out, count, threads);
}
