// This file knows about what this processor can do at most: fp32 multiply-adds, and bytes read or copied, by one thread.
#include "vectors.hpp"

using namespace sublight;

// Independent chains of multiply-adds on registers; returns how many floating-point operations that was. out: 24 numbers.
SUBLIGHT_EXPORT int64_t multiply_add(int64_t rounds, float *out) {
    constexpr int chains = lanes == 16 ? 24 : 12;
    Floats sum[chains];                               // no two alike, or the compiler computes one for both
    for (int c = 0; c < chains; c++) sum[c] = all(out[c]);
    Floats a = all(0.5f), b = all(0.25f);
    for (int64_t i = 0; i < rounds; i++) {
        asm volatile("" : "+x"(a), "+x"(b));          // neither is known to be the same as last time
#pragma GCC unroll 24
        for (int c = 0; c < chains; c++) sum[c] += a * b;
    }
    for (int c = 1; c < chains; c++) sum[0] += sum[c];
    store(out, sum[0]);
    return rounds * chains * lanes * 2;
}

// Reads `bytes` (what is over a multiple of 512 is left) so many times; the sum keeps the reads.
SUBLIGHT_EXPORT uint32_t read_all(const uint32_t *from, int64_t bytes, int64_t times) {
    constexpr int at_once = 8;
    Words sum[at_once] = {};
    const int64_t step = at_once * lanes;
    for (int64_t time = 0; time < times; time++)
        for (int64_t i = 0; i + step <= bytes / 4; i += step)
#pragma GCC unroll 8
        for (int j = 0; j < at_once; j++) {
            Words w;
            std::memcpy(&w, from + i + j * lanes, sizeof w);
            sum[j] ^= w;
        }
    for (int j = 1; j < at_once; j++) sum[0] ^= sum[j];
    uint32_t all_of_it = 0;
    for (int i = 0; i < lanes; i++) all_of_it ^= sum[0][i];
    return all_of_it;
}

// `read` bytes are read and `write` of them written, in the proportion of an operator (2 : 1 for SwiGLU).
SUBLIGHT_EXPORT void stream(const uint32_t *from, uint32_t *to, int64_t words, int64_t reads) {
    for (int64_t i = 0; i + lanes <= words; i += lanes) {
        Words w, sum = {};
        for (int64_t r = 0; r < reads; r++) {
            std::memcpy(&w, from + r * words + i, sizeof w);
            sum ^= w;
        }
        std::memcpy(to + i, &sum, sizeof sum);
    }
}
