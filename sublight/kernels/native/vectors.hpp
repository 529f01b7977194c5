// This file knows about vectors: loads, stores and roundings of bf16 and fp32, and exp, in one source for every width.
//
// GCC's and clang's vector extensions are lowered to what the target has: 16 lanes to AVX-512, 8 to AVX2, two of 4 to
// SSE2 or NEON. Elements are handled in pairs of vectors: bf16 needs no shuffle that way, only a shift and a mask.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "sublight needs g++ 12 or newer, or clang++ 11 or newer"
#endif

#ifndef SUBLIGHT_LANES
#ifdef __AVX512F__
#define SUBLIGHT_LANES 16
#else
#define SUBLIGHT_LANES 8
#endif
#endif

#define SUBLIGHT_INLINE inline __attribute__((always_inline))
#define SUBLIGHT_EXPORT extern "C" __attribute__((visibility("default")))

namespace sublight {

constexpr int lanes = SUBLIGHT_LANES;
constexpr int pair = 2 * lanes;                       // elements that are loaded or stored together

typedef float Floats __attribute__((vector_size(4 * SUBLIGHT_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * SUBLIGHT_LANES)));
typedef float Eight __attribute__((vector_size(32)));

struct Pair {
    Floats first, second;
};

struct bf16 {
    uint16_t bits;
};

struct fp16 {
    uint16_t bits;
};

SUBLIGHT_INLINE Floats all(float x) { return x - Floats{}; }      // 0 + x would be an addition: it makes +0 of -0
SUBLIGHT_INLINE Floats floats(Words w) { return (Floats)w; }            // the same bits
SUBLIGHT_INLINE Words words(Floats f) { return (Words)f; }

SUBLIGHT_INLINE Floats load(const float *from) {
    Floats to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

SUBLIGHT_INLINE void store(float *to, Floats from) { std::memcpy(to, &from, sizeof from); }

// bf16 in memory order is (even, odd) in each 32-bit word: first holds the even elements, second the odd ones.
SUBLIGHT_INLINE Pair load_pair(const bf16 *from) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    return {floats(both << 16), floats(both & 0xffff0000u)};
}

SUBLIGHT_INLINE Pair load_pair(const float *from) { return {load(from), load(from + lanes)}; }

// Round to nearest, ties to even; a NaN stays one (adding to its bits could carry it into an infinity or a zero).
SUBLIGHT_INLINE Words rounded(Floats x) {
    const Words u = words(x);
    const Words nearest = u + 0x7fffu + ((u >> 16) & 1u);
    return x != x ? Words{} + 0x7fc00000u : nearest;
}

SUBLIGHT_INLINE Words as_bf16(Pair x) { return (rounded(x.first) >> 16) | (rounded(x.second) & 0xffff0000u); }

SUBLIGHT_INLINE void store_pair(bf16 *to, Pair x) {
    const Words both = as_bf16(x);
    std::memcpy(to, &both, sizeof both);
}

// fp16, in the same order, by arithmetic that every machine has. Its bits, moved to fp32's places, are a number that is
// 2^112 times too small, subnormal ones too; an exponent of all ones (31) is one of fp32 then.
SUBLIGHT_INLINE Floats from_fp16(Words half) {
    const Words size = (half & 0x7fffu) << 13;
    const Words scaled = words(floats(size) * 5.192296858534828e33f);
    return floats((size >= (31u << 23) ? scaled | 0x7f800000u : scaled) | (half & 0x8000u) << 16);
}

// To nearest, ties to even. Below 2^-14 a number is added to 0.5, whose last place is 2^-24, that of subnormal numbers.
SUBLIGHT_INLINE Words to_fp16(Floats x) {
    const Words sign = words(x) & 0x80000000u, size = words(x) ^ sign;
    const Words normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
    const Words small = words(floats(size) + 0.5f) - 0x3f000000u;
    const Words finite = size < (113u << 23) ? small : normal;
    const Words large = size > 0x7f800000u ? Words{} + 0x7e00u : Words{} + 0x7c00u;      // NaN; 65520 and more
    return (size < 0x477ff000u ? finite : large) | sign >> 16;
}

SUBLIGHT_INLINE Pair load_pair(const fp16 *from) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    return {from_fp16(both & 0xffffu), from_fp16(both >> 16)};
}

SUBLIGHT_INLINE void store_pair(fp16 *to, Pair x) {
    const Words both = to_fp16(x.first) | to_fp16(x.second) << 16;
    std::memcpy(to, &both, sizeof both);
}

SUBLIGHT_INLINE void store_pair(float *to, Pair x) {
    store(to, x.first);
    store(to + lanes, x.second);
}

// A pair that was loaded from elements of this format, as fp32 in the order of memory.
template <class Element> SUBLIGHT_INLINE void store_in_order(float *to, Pair x) {
    if (sizeof(Element) == 4) return store_pair(to, x);
    for (int i = 0; i < lanes; i++) {
        to[2 * i] = x.first[i];
        to[2 * i + 1] = x.second[i];
    }
}

// Tails: count < pair elements; nothing beyond them is read or written, and what is missing reads as `fill`.
template <class Element> SUBLIGHT_INLINE Pair load_part(const Element *from, int64_t count, Element fill = Element{}) {
    Element whole[pair];
    for (int i = 0; i < pair; i++) whole[i] = fill;
    std::memcpy(whole, from, count * sizeof(Element));
    return load_pair(whole);
}

template <class Element> SUBLIGHT_INLINE void store_part(Element *to, Pair x, int64_t count) {
    Element whole[pair];
    store_pair(whole, x);
    std::memcpy(to, whole, count * sizeof(Element));
}

SUBLIGHT_INLINE float number(float x) { return x; }

SUBLIGHT_INLINE float number(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float to;
    std::memcpy(&to, &bits, sizeof to);
    return to;
}

SUBLIGHT_INLINE float number(fp16 x) { return from_fp16(Words{} + x.bits)[0]; }

SUBLIGHT_INLINE bf16 to_bf16(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    u = x != x ? (u | 0x00400000u) : u + 0x7fffu + ((u >> 16) & 1u);
    return {uint16_t(u >> 16)};
}

SUBLIGHT_INLINE void set(float &to, float x) { to = x; }
SUBLIGHT_INLINE void set(bf16 &to, float x) { to = to_bf16(x); }
SUBLIGHT_INLINE void set(fp16 &to, float x) { to.bits = uint16_t(to_fp16(Floats{} + x)[0]); }

SUBLIGHT_INLINE float sum(Floats x) {
    float parts[lanes];
    store(parts, x);
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

// a > b ? a : b, so b where either is a NaN: one instruction, which compilers do not find by themselves.
SUBLIGHT_INLINE Floats larger(Floats a, Floats b) {
#if SUBLIGHT_LANES == 16 && defined(__AVX512F__)
    return Floats(_mm512_maskz_max_ps(0xffff, __m512(a), __m512(b)));      // _mm512_max_ps warns in GCC's own header
#elif SUBLIGHT_LANES == 8 && defined(__AVX2__)
    return Floats(_mm256_max_ps(__m256(a), __m256(b)));
#else
    return a > b ? a : b;
#endif
}

SUBLIGHT_INLINE float largest(Floats x) {
    float parts[lanes];
    store(parts, x);
    float top = parts[0];
    for (int i = 1; i < lanes; i++) top = parts[i] > top ? parts[i] : top;
    return top;
}

SUBLIGHT_INLINE Eight folded(Floats x) {
#if SUBLIGHT_LANES == 16
    return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return x;
#endif
}

// The eight sums of eight vectors: a tree of shuffles and additions that leaves no lane idle.
SUBLIGHT_INLINE Eight sums_of_two(Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) +
           __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}

SUBLIGHT_INLINE Eight sums_of_four(Eight ab, Eight cd) {
    return __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
}

SUBLIGHT_INLINE Eight sums_of_eight(const Floats *x) {
    const Eight abcd = sums_of_four(sums_of_two(folded(x[0]), folded(x[1])), sums_of_two(folded(x[2]), folded(x[3])));
    const Eight efgh = sums_of_four(sums_of_two(folded(x[4]), folded(x[5])), sums_of_two(folded(x[6]), folded(x[7])));
    return __builtin_shufflevector(abcd, efgh, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(abcd, efgh, 4, 5, 6, 7, 12, 13, 14, 15);
}

// exp(x) for x <= 0: 2^n · p(r) with r = x - n·ln 2 in two parts (Cody and Waite), |r| <= ln 2 / 2, p of degree 6 by
// Taylor: truncated below 2e-8 relative. Below exp(-87.3) = 1.2e-38 it stays there, next to the smallest normal number:
// beside a 1 in a sum that is nothing. A NaN stays.
SUBLIGHT_INLINE Floats exp_below_zero(Floats x) {
    const Floats clamped = larger(all(-87.3f), x);
    const Floats shifted = clamped * 1.44269504f + 12582912.0f;      // 1.5 · 2^23: the integer n is in the low bits
    const Floats n = shifted - 12582912.0f;
    const Floats r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
    Floats p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    p = floats(words(p) + (words(shifted) << 23));
    return x != x ? x : p;                                           // its low bits could make p a number
}

template <class Value> SUBLIGHT_INLINE Value at_most(Value a, Value b) { return a < b ? a : b; }
template <class Value> SUBLIGHT_INLINE Value at_least(Value a, Value b) { return a > b ? a : b; }

}  // namespace sublight
