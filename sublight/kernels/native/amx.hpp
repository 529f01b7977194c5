// This file knows about AMX tiles: 8 registers of 16 rows of 64 bytes, and products of them.
//
// SUBLIGHT_AMX is 1 where the target has them, and where they are emulated in plain C++ (SUBLIGHT_AMX_EMULATED), so that
// what is built on tiles can be tested on any machine. Source: Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 2, LDTILECFG, TILELOADD, TDPBF16PS.
#pragma once

#include "vectors.hpp"

#if defined(SUBLIGHT_AMX_EMULATED)
#define SUBLIGHT_AMX 1
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define SUBLIGHT_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define SUBLIGHT_AMX 0
#endif

#if SUBLIGHT_AMX
namespace sublight {

constexpr int tile_rows = 16;
constexpr int tile_bytes = 64;                        // of a row: 16 fp32 or 32 bf16
constexpr int tile_columns = 16;                      // fp32
constexpr int tile_depth = 32;                        // bf16

#ifdef SUBLIGHT_AMX_EMULATED

struct Tile {
    unsigned char row[tile_rows][tile_bytes];
};

inline thread_local Tile tiles[8];
inline thread_local bool configured = false;          // on hardware, a tile without a configuration is SIGILL

struct TileUse {
    TileUse() { configured = true; }
    ~TileUse() { configured = false; }
};

inline bool tiles_allowed() { return true; }

inline Tile &tile(int number) {
    if (!configured) __builtin_trap();
    return tiles[number];
}

inline void emulate_load(int to, const void *from, int64_t stride) {
    for (int r = 0; r < tile_rows; r++)
        std::memcpy(tile(to).row[r], static_cast<const unsigned char *>(from) + r * stride, tile_bytes);
}

inline void emulate_store(int from, void *to, int64_t stride) {
    for (int r = 0; r < tile_rows; r++)
        std::memcpy(static_cast<unsigned char *>(to) + r * stride, tile(from).row[r], tile_bytes);
}

inline void emulate_zero(int to) { tile(to) = Tile{}; }

inline float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }

// TDPBF16PS: the even and the odd elements of the pairs are summed apart, one fused multiply-add at a time, then added
// to each other and to what is there. Subnormal inputs count as zero, subnormal results become zero, whatever MXCSR says.
inline void emulate_multiply(int to, int left, int right) {
    Tile &c = tile(to);
    const Tile &a = tile(left), &b = tile(right);
    for (int m = 0; m < tile_rows; m++)
        for (int n = 0; n < tile_columns; n++) {
            float apart[2] = {0, 0}, old;
            for (int k = 0; k < tile_depth / 2; k++)
                for (int half = 0; half < 2; half++) {
                    bf16 x, y;
                    std::memcpy(&x, a.row[m] + 4 * k + 2 * half, sizeof x);
                    std::memcpy(&y, b.row[k] + 4 * n + 2 * half, sizeof y);
                    apart[half] = flushed(std::fma(flushed(number(x)), flushed(number(y)), apart[half]));
                }
            std::memcpy(&old, c.row[m] + 4 * n, sizeof old);
            const float both = flushed(apart[0] + apart[1]);
            const float now = flushed(flushed(old) + both);
            std::memcpy(c.row[m] + 4 * n, &now, sizeof now);
        }
}

#define TILE_LOAD(to, from, stride) ::sublight::emulate_load(to, from, stride)
#define TILE_STORE(from, to, stride) ::sublight::emulate_store(from, to, stride)
#define TILE_ZERO(to) ::sublight::emulate_zero(to)
#define TILE_MULTIPLY(to, left, right) ::sublight::emulate_multiply(to, left, right)

#else

// A configuration belongs to a thread, and other libraries (oneDNN) change it or release it: it is loaded at every entry
// and released at the exit; a tile instruction without one is SIGILL.
struct TileUse {
    TileUse() {
        alignas(64) unsigned char config[64] = {};
        config[0] = 1;                                // palette 1
        for (int i = 0; i < 8; i++) {
            config[16 + 2 * i] = tile_bytes;          // little-endian 16 bits each, then 8 bits each
            config[48 + i] = tile_rows;
        }
        _tile_loadconfig(config);
    }
    ~TileUse() { _tile_release(); }
};

// Linux gives a process the tiles' state only when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
inline bool tiles_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return allowed;
}

#define TILE_LOAD(to, from, stride) _tile_loadd(to, from, stride)
#define TILE_STORE(from, to, stride) _tile_stored(from, to, stride)
#define TILE_ZERO(to) _tile_zero(to)
#define TILE_MULTIPLY(to, left, right) _tile_dpbf16ps(to, left, right)

#endif
}  // namespace sublight
#endif
