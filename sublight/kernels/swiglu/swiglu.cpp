// This file knows about SwiGLU on the CPU: silu(gate) · up, in one pass.
#include "activation.hpp"

#include <vector>

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

// To int8 with the row's own scale, amax / 127 (1 for a row of zeros): the row is computed in fp32 first.
template <class Element>
void row_to_int8(const Element *gate, const Element *up, int8_t *out, float *scale, int64_t width, std::vector<float> &y) {
    y.resize(size_t(width + pair));
    Floats most = {};
    for (int64_t i = 0; i < width; i += pair) {
        const bool whole = i + pair <= width;
        const Pair g = whole ? load_pair(gate + i) : load_part(gate + i, width - i);
        const Pair u = whole ? load_pair(up + i) : load_part(up + i, width - i);
        const Pair made = {silu(g.first) * u.first, silu(g.second) * u.second};
        for (const Floats &part : {made.first, made.second}) most = larger(part < 0.0f ? -part : part, most);
        store_in_order<Element>(&y[size_t(i)], made);
    }
    const float top = largest(most);
    *scale = top > 0 ? top / 127.0f : 1.0f;
    for (int64_t i = 0; i < width; i++)
        out[i] = int8_t(std::nearbyint(at_most(127.0f, at_least(-127.0f, y[size_t(i)] / *scale))));
}

template <class Element>
void swiglu_to_int8(const Element *gate_up, int8_t *out, float *scale, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> y;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            row_to_int8(gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, out + r * width, scale + r, width, y);
    }
    (void)threads;
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

#define SUBLIGHT_SWIGLU(form, Element)                                                                                \
    SUBLIGHT_EXPORT void swiglu_##form(const Element *gate_up, Element *out, int64_t rows, int64_t width, int threads) { \
        swiglu(gate_up, out, rows, width, threads);                                                                   \
    }                                                                                                                 \
    SUBLIGHT_EXPORT void swiglu_##form##_int8(const Element *gate_up, int8_t *out, float *scale, int64_t rows,        \
                                              int64_t width, int threads) {                                           \
        swiglu_to_int8(gate_up, out, scale, rows, width, threads);                                                    \
    }                                                                                                                 \
    SUBLIGHT_EXPORT void swiglu_apart_##form(const Element *gate, const Element *up, Element *out, int64_t count,     \
                                             int threads) {                                                           \
        apart(gate, up, out, count, threads);                                                                         \
    }

SUBLIGHT_SWIGLU(bf16, bf16)
SUBLIGHT_SWIGLU(fp16, fp16)
SUBLIGHT_SWIGLU(fp32, float)
