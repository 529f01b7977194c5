// This file knows about silu(x) = x / (1 + exp(-x)).
#pragma once

#include "vectors.hpp"

namespace sublight {

// With t = exp(-|x|), silu is x / (1 + t) above zero and x · t / (1 + t) below: nothing overflows, and where exp(-x)
// would (x < -88) the small value that is left is still right. silu(-inf) is NaN, as x / (1 + exp(-x)) is.
SUBLIGHT_INLINE Floats silu(Floats x) {
    const Floats below = x < 0.0f ? x : -x;
    const Floats t = exp_below_zero<true>(below);
    return x * (x < 0.0f ? t : all(1.0f)) / (1.0f + t);
}

}  // namespace sublight
