// This file knows about the fastest loops of this processor: what memory gives at a size, what its arithmetic gives.
//
// Every function returns seconds that `threads` threads took together, each on a part of its own. Loops hold enough
// independent sums to hide latencies (4 to 5 cycles, two units: 12 are more than 10).
#include <omp.h>
#include <time.h>

#include "amx.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace sublight;

namespace {

double now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + 1e-9 * at.tv_nsec;
}

template <class Loop> double together(int threads, Loop loop) {
    double since = 0;
#pragma omp parallel num_threads(threads)
    {
#pragma omp barrier
#pragma omp master
        since = now();
        loop(omp_get_thread_num(), omp_get_num_threads());
    }
    return now() - since;
}

SUBLIGHT_INLINE void keep() { asm volatile("" ::: "memory"); }

// In a register: an operand in memory would keep the whole array there, and the loop would measure stores.
#if defined(__x86_64__)
template <class Value> SUBLIGHT_INLINE void used(Value &value) { asm volatile("" : "+v"(value)); }
#else
template <class Value> SUBLIGHT_INLINE void used(Value &value) { asm volatile("" : "+w"(value)); }
#endif

constexpr int sums = 12;

// One register each; the vectors of our kernels may be two where there is no AVX.
#if defined(__AVX512F__)
#define SUBLIGHT_REGISTER 64
#elif defined(__AVX__)
#define SUBLIGHT_REGISTER 32
#else
#define SUBLIGHT_REGISTER 16
#endif
typedef float Numbers __attribute__((vector_size(SUBLIGHT_REGISTER)));
typedef uint32_t Bits __attribute__((vector_size(SUBLIGHT_REGISTER)));

}  // namespace

// Loads of whole vectors, 8 sums.
SUBLIGHT_EXPORT double sublight_read(const char *from, int64_t bytes, int passes, int threads) {
    return together(threads, [=](int me, int all) {
        const int64_t step = 8 * sizeof(Bits), part = bytes / all / step * step;
        const char *mine = from + me * part;
        Bits sum[8] = {};
        for (int pass = 0; pass < passes; pass++) {
            for (int64_t at = 0; at < part; at += step)
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    Bits x;
                    std::memcpy(&x, mine + at + i * sizeof x, sizeof x);
                    sum[i] ^= x;
                }
            keep();
        }
        for (int i = 0; i < 8; i++) used(sum[i]);
    });
}

// The first half into the second: the library's copy, and one whose stores go past the caches.
SUBLIGHT_EXPORT double sublight_copy(char *both, int64_t bytes, int passes, int threads, int past_caches) {
    return together(threads, [=](int me, int all) {
        const int64_t part = bytes / 2 / all / 64 * 64;
        const char *from = both + me * part;
        char *to = both + bytes / 2 / 64 * 64 + me * part;
        for (int pass = 0; pass < passes; pass++) {
#if defined(__AVX__)
            if (past_caches) {
                for (int64_t at = 0; at < part; at += 64)
                    for (int i = 0; i < 2; i++)
                        _mm256_stream_si256((__m256i *)(to + at + 32 * i),
                                            _mm256_loadu_si256((const __m256i *)(from + at + 32 * i)));
                _mm_sfence();
                continue;
            }
#endif
            (void)past_caches;
            std::memcpy(to, from, part);
            keep();
        }
    });
}

// times x 12 fused multiply-adds of fp32 vectors: 2 x 12 x 4 to 16 operations each time.
SUBLIGHT_EXPORT double sublight_fma(int64_t times, int threads, double *operations) {
    *operations = 2.0 * sums * (sizeof(Numbers) / 4) * times * threads;
    return together(threads, [=](int, int) {
        Numbers sum[sums], by = Numbers{} + 0.999f, add = Numbers{} + 1e-3f;
        for (int i = 0; i < sums; i++) sum[i] = Numbers{} + float(i);
        used(by), used(add);
        for (int64_t t = 0; t < times; t++)
            for (int i = 0; i < sums; i++) sum[i] = sum[i] * by + add;
        for (int i = 0; i < sums; i++) used(sum[i]);
    });
}

// fp16 vectors, where the processor multiplies them; 0 operations where not.
SUBLIGHT_EXPORT double sublight_half(int64_t times, int threads, double *operations) {
#if defined(__AVX512FP16__)
    *operations = 2.0 * sums * 32 * times * threads;
    return together(threads, [=](int, int) {
        __m512h sum[sums], by = _mm512_set1_ph(0.5f), add = _mm512_set1_ph(0.25f);
        for (int i = 0; i < sums; i++) sum[i] = by;
        used(by), used(add);
        for (int64_t t = 0; t < times; t++)
            for (int i = 0; i < sums; i++) sum[i] = _mm512_fmadd_ph(sum[i], by, add);
        for (int i = 0; i < sums; i++) used(sum[i]);
    });
#else
    (void)times, (void)threads;
    *operations = 0;
    return 0;
#endif
}

// Products of int8: VNNI, else vpmaddubsw (16-bit sums: no kernel can be faster with AVX2); 0 operations where neither.
SUBLIGHT_EXPORT double sublight_bytes(int64_t times, int threads, double *operations) {
#if defined(__AVX512VNNI__)
    typedef __m512i Bytes;
#define SUBLIGHT_BYTES(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#elif defined(__AVX2__)
    typedef __m256i Bytes;
#define SUBLIGHT_BYTES(sum, a, b) _mm256_maddubs_epi16(sum, (void(a), b))
#endif
#if defined(SUBLIGHT_BYTES)
    *operations = 2.0 * 8 * sizeof(Bytes) * times * threads;
    return together(threads, [=](int, int) {
        Bytes x0 = {}, x1 = {}, x2 = {}, x3 = {}, x4 = {}, x5 = {}, x6 = {}, x7 = {}, a = {}, b = {};
        used(a), used(b);
        for (int64_t t = 0; t < times; t++) {         // named one by one: g++ keeps an array of them in memory
            x0 = SUBLIGHT_BYTES(x0, a, b), x1 = SUBLIGHT_BYTES(x1, a, b), x2 = SUBLIGHT_BYTES(x2, a, b);
            x3 = SUBLIGHT_BYTES(x3, a, b), x4 = SUBLIGHT_BYTES(x4, a, b), x5 = SUBLIGHT_BYTES(x5, a, b);
            x6 = SUBLIGHT_BYTES(x6, a, b), x7 = SUBLIGHT_BYTES(x7, a, b);
            used(x0), used(x1), used(x2), used(x3), used(x4), used(x5), used(x6), used(x7);
        }
    });
#else
    (void)times, (void)threads;
    *operations = 0;
    return 0;
#endif
}

// Tiles: 4 products of bf16 (int8: of twice as many) that do not wait for each other; 0 operations without AMX.
SUBLIGHT_EXPORT double sublight_tiles(int64_t times, int threads, int of_bytes, double *operations) {
#if SUBLIGHT_AMX && !defined(SUBLIGHT_AMX_EMULATED)
    if (tiles_allowed()) {
        *operations = 2.0 * 4 * tile_rows * tile_columns * tile_depth * (of_bytes ? 2 : 1) * times * threads;
        return together(threads, [=](int, int) {
            TileUse use;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            TILE_ZERO(4);
            TILE_ZERO(5);
            TILE_ZERO(6);
            TILE_ZERO(7);
            for (int64_t t = 0; t < times; t++) {
#if defined(__AMX_INT8__)
                if (of_bytes) {
                    _tile_dpbssd(0, 4, 6);
                    _tile_dpbssd(1, 4, 7);
                    _tile_dpbssd(2, 5, 6);
                    _tile_dpbssd(3, 5, 7);
                    continue;
                }
#endif
                TILE_MULTIPLY(0, 4, 6);
                TILE_MULTIPLY(1, 4, 7);
                TILE_MULTIPLY(2, 5, 6);
                TILE_MULTIPLY(3, 5, 7);
            }
        });
    }
#endif
    (void)times, (void)threads, (void)of_bytes;
    *operations = 0;
    return 0;
}
