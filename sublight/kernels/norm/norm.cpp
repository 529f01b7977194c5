// This file knows about RMSNorm and LayerNorm on the CPU: two or three passes over a row that stays in the first cache.
#include "vectors.hpp"

using namespace sublight;

namespace {

// sum over the row of f(x), in four accumulators; the tail's missing elements are left out.
template <class Element, class Function> SUBLIGHT_INLINE float total(const Element *x, int64_t width, Function f) {
    Floats a[4] = {};
    int64_t i = 0;
    for (; i + 2 * pair <= width; i += 2 * pair) {
        const Pair left = load_pair(x + i), right = load_pair(x + i + pair);
        a[0] += f(left.first);
        a[1] += f(left.second);
        a[2] += f(right.first);
        a[3] += f(right.second);
    }
    for (; i + pair <= width; i += pair) {
        const Pair left = load_pair(x + i);
        a[0] += f(left.first);
        a[1] += f(left.second);
    }
    float rest = sum((a[0] + a[1]) + (a[2] + a[3]));
    for (; i < width; i++) rest += f(all(number(x[i])))[0];
    return rest;
}

// Squares that overflow fp32 (|x| > 1e19) are taken again in double: rare, and right.
template <class Element> double squares_in_double(const Element *x, int64_t width, double mean) {
    double squares = 0;
    for (int64_t i = 0; i < width; i++) squares += (number(x[i]) - mean) * (number(x[i]) - mean);
    return squares;
}

template <class Element> double mean_in_double(const Element *x, int64_t width) {
    double values = 0;
    for (int64_t i = 0; i < width; i++) values += number(x[i]);
    return values / double(width);
}

template <class Element> void add(const Element *x, const Element *residual, Element *to, int64_t width) {
    int64_t i = 0;
    for (; i + pair <= width; i += pair) {
        const Pair a = load_pair(x + i), b = load_pair(residual + i);
        store_pair(to + i, {a.first + b.first, a.second + b.second});
    }
    for (; i < width; i++) set(to[i], number(x[i]) + number(residual[i]));
}

template <bool layer, class Element>
void scale(const Element *x, const Element *weight, const Element *bias, Element *out, int64_t width, float mean,
           float inverse) {
    const Floats m = all(mean), s = all(inverse);
    int64_t i = 0;
    for (; i + pair <= width; i += pair) {
        const Pair a = load_pair(x + i), w = load_pair(weight + i);
        if (layer) {
            const Pair b = load_pair(bias + i);
            store_pair(out + i, {(a.first - m) * s * w.first + b.first, (a.second - m) * s * w.second + b.second});
        } else {
            store_pair(out + i, {a.first * s * w.first, a.second * s * w.second});
        }
    }
    for (; i < width; i++)
        set(out[i], layer ? (number(x[i]) - mean) * inverse * number(weight[i]) + number(bias[i])
                          : number(x[i]) * inverse * number(weight[i]));
}

template <bool layer, class Element>
void row(const Element *x, const Element *weight, const Element *bias, Element *out, int64_t width, float eps) {
    double mean = 0;
    if (layer) {
        mean = total(x, width, [](Floats v) { return v; }) / double(width);
        if (!std::isfinite(mean)) mean = mean_in_double(x, width);
    }
    const Floats m = all(float(mean));
    double squares = layer ? total(x, width, [m](Floats v) { return (v - m) * (v - m); })
                           : total(x, width, [](Floats v) { return v * v; });
    if (!std::isfinite(squares)) squares = squares_in_double(x, width, mean);
    const float inverse = float(1.0 / std::sqrt(squares / double(width) + double(eps)));
    scale<layer>(x, weight, bias, out, width, float(mean), inverse);
}

template <bool layer, class Element>
void norm(const Element *x, const Element *residual, const Element *weight, const Element *bias, Element *out,
          Element *summed, int64_t rows, int64_t width, float eps, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const Element *from = x + r * width;
        if (residual) {
            add(from, residual + r * width, summed + r * width, width);
            from = summed + r * width;
        }
        row<layer>(from, weight, bias, out + r * width, width, eps);
    }
    (void)threads;
}

}  // namespace

#define SUBLIGHT_NORM(name, layer, Element)                                                                          \
    SUBLIGHT_EXPORT void name(const Element *x, const Element *residual, const Element *weight, const Element *bias, \
                              Element *out, Element *summed, int64_t rows, int64_t width, float eps, int threads) {  \
        norm<layer>(x, residual, weight, bias, out, summed, rows, width, eps, threads);                              \
    }

SUBLIGHT_NORM(rms_bf16, false, bf16)
SUBLIGHT_NORM(rms_fp16, false, fp16)
SUBLIGHT_NORM(rms_fp32, false, float)
SUBLIGHT_NORM(layer_bf16, true, bf16)
SUBLIGHT_NORM(layer_fp16, true, fp16)
SUBLIGHT_NORM(layer_fp32, true, float)
