// This file knows about cross entropy on the CPU: log of the sum of exp, one pass over memory, two over the first cache.
#include "vectors.hpp"

using namespace sublight;

namespace {

constexpr int64_t block = 16 * pair;

template <class Element> SUBLIGHT_INLINE Floats tops(const Element *x, Floats top) {
    Floats a = top, b = top;
    for (int64_t i = 0; i < block; i += pair) {
        const Pair v = load_pair(x + i);
        a = larger(v.first, a);
        b = larger(v.second, b);
    }
    return larger(a, b);
}

template <class Element> SUBLIGHT_INLINE float exps(const Element *x, Floats top) {
    Floats a = {}, b = {};
    for (int64_t i = 0; i < block; i += pair) {
        const Pair v = load_pair(x + i);
        a += exp_below_zero(v.first - top);
        b += exp_below_zero(v.second - top);
    }
    return sum(a + b);
}

// The sum of exp(x - top) so far, and top. Block sums are added in double: 150 000 classes lose nothing in fp32 then.
struct Sum {
    double so_far = 0;
    float top = -INFINITY;

    template <class Element> SUBLIGHT_INLINE void add(const Element *x) {
        const float found = largest(tops(x, all(top)));
        if (found > top) {
            so_far = so_far == 0 ? 0 : so_far * std::exp(double(top) - double(found));
            top = found;
        }
        // Where all are -inf so far, so is top: -inf - -inf would be NaN, and the sum is 0 (but for a NaN among them).
        so_far += exps(x, all(top == -INFINITY ? 0.0f : top));
    }
};

template <class Element> float loss(const Element *x, int64_t classes, int64_t target) {
    Sum sum;
    int64_t i = 0;
    for (; i + block <= classes; i += block) sum.add(x + i);
    if (i < classes) {
        Element rest[block];
        for (int64_t j = 0; j < block; j++) set(rest[j], -INFINITY);
        std::memcpy(rest, x + i, (classes - i) * sizeof(Element));
        sum.add(rest);
    }
    return float(std::log(sum.so_far) + (double(sum.top) - double(number(x[target]))));
}

template <class Element>
void losses(const Element *x, const int64_t *targets, float *out, int64_t rows, int64_t classes, int64_t ignored,
            int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        out[r] = targets[r] == ignored ? 0.0f : loss(x + r * classes, classes, targets[r]);
    (void)threads;
}

}  // namespace

#define SUBLIGHT_CROSS_ENTROPY(name, Element)                                                                         \
    SUBLIGHT_EXPORT void name(const Element *x, const int64_t *targets, float *out, int64_t rows, int64_t classes,    \
                              int64_t ignored, int threads) {                                                         \
        losses(x, targets, out, rows, classes, ignored, threads);                                                     \
    }

SUBLIGHT_CROSS_ENTROPY(cross_entropy_bf16, bf16)
SUBLIGHT_CROSS_ENTROPY(cross_entropy_fp16, fp16)
SUBLIGHT_CROSS_ENTROPY(cross_entropy_fp32, float)
