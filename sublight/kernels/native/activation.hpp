// This file knows about silu(x) = x / (1 + exp(-x)).
#pragma once

#include "vectors.hpp"

namespace sublight {

// With t = exp(-|x|), silu is x / (1 + t) above zero and x · t / (1 + t) below: nothing overflows. Below -87.3, where t
// would be no normal number, it is 0. silu(-inf) is NaN, as x / (1 + exp(-x)) is.
SUBLIGHT_INLINE Floats silu(Floats x) {
    const Floats below = floats(words(x) | 0x80000000u);
    const Floats t = exp_below_zero(below);
    return x * (x < 0.0f ? (x < -87.3f ? Floats{} : t) : all(1.0f)) / (1.0f + t);
}

}  // namespace sublight
