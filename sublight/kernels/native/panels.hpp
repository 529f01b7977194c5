// This file knows about products with few rows: out[m, n] = a[m, k] · b[n, k]ᵀ in fp32, b bf16 and packed ahead.
//
// b is kept in panels of `columns` of its rows, in the order in which a product reads them, padded with zeros. Two ways
// share one interface: Fma (vectors, any machine) and Tiles (AMX). Rows of a are put in the way's own order first.
#pragma once

#include <cstdlib>
#include <vector>

#include "amx.hpp"

namespace sublight {

SUBLIGHT_INLINE int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// Memory that a thread keeps from call to call: fresh pages would cost more than some of these products.
template <class Value> struct Scratch {
    std::vector<Value> kept;

    Value *of(int64_t count) {
        if (int64_t(kept.size()) < count) kept.resize(size_t(count));
        return kept.data();
    }
};

// Panels of 2·lanes columns: for each k one vector of 32-bit words, the low halves columns 0 to lanes - 1, the high ones
// the rest. Rows of a are fp32 in blocks of at most `block`, the rows of a block beside each other.
struct Fma {
    using Left = float;
    static constexpr int columns = pair;
    static constexpr int block = lanes == 16 ? 12 : 6;      // 2 accumulators a row, 2 of b, 1 of a: 27 or 15 registers

    struct Use {};

    static int64_t packed_size(int64_t n, int64_t k) { return parts_of(n, columns) * columns * k; }
    static int64_t left_size(int64_t m, int64_t k) { return m * k; }

    static void pack(const bf16 *b, int64_t n, int64_t k, bf16 *to) {
        for (int64_t first = 0; first < n; first += columns, to += columns * k)
            for (int64_t i = 0; i < k; i++)
                for (int j = 0; j < columns; j++) {
                    const int64_t from = first + j / 2 + (j % 2) * lanes;
                    to[i * columns + j] = from < n ? b[from * k + i] : bf16{};
                }
    }

    static int64_t blocks(int64_t m) { return parts_of(m, block); }
    static int64_t start(int64_t m, int64_t i) { return i * m / blocks(m); }    // balanced: 8 rows are 4 and 4

    // Values of row r from column `first` on. The rows of a block lie side by side for each k.
    static void put(Left *to, int64_t m, int64_t k, int64_t r, int64_t first, int64_t count, const float *values) {
        int64_t i = r * blocks(m) / m;
        while (start(m, i + 1) <= r) i++;
        const int64_t begin = start(m, i), rows = start(m, i + 1) - begin;
        Left *at = to + begin * k + first * rows + (r - begin);
        for (int64_t j = 0; j < count; j++) at[j * rows] = values[j];
    }

    static void finish(Left *, int64_t, int64_t) {}

    // `sets` of accumulators take turns, so that few rows do not wait for the latency of an addition.
    template <int rows, int sets>
    static void micro(const Left *a, const bf16 *b, int64_t k, float *c, int64_t stride, bool adds) {
        Floats sum[sets][rows][2] = {};
        int64_t i = 0;
        for (; i + sets <= k; i += sets) {
            for (int line = 0; line < at_least(1, sets * columns / 32); line++)      // panels are read once, in order
                __builtin_prefetch(b + i * columns + line * 32 + 512);
#pragma GCC unroll 4
            for (int s = 0; s < sets; s++) {
                const Pair w = load_pair(b + (i + s) * columns);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    const Floats x = all(a[(i + s) * rows + r]);
                    sum[s][r][0] += x * w.first;
                    sum[s][r][1] += x * w.second;
                }
            }
        }
        for (; i < k; i++) {
            const Pair w = load_pair(b + i * columns);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                sum[0][r][0] += all(a[i * rows + r]) * w.first;
                sum[0][r][1] += all(a[i * rows + r]) * w.second;
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++) {
                float *to = c + r * stride + half * lanes;
                Floats value = sum[0][r][half];
                for (int s = 1; s < sets; s++) value += sum[s][r][half];
                store(to, adds ? load(to) + value : value);
            }
    }

    static void micro(int64_t rows, const Left *a, const bf16 *b, int64_t k, float *c, int64_t stride, bool adds) {
        switch (rows) {
        case 1: return micro<1, 4>(a, b, k, c, stride, adds);
        case 2: return micro<2, 2>(a, b, k, c, stride, adds);
        case 3: return micro<3, 2>(a, b, k, c, stride, adds);
        case 4: return micro<4, 1>(a, b, k, c, stride, adds);
        case 5: return micro<5, 1>(a, b, k, c, stride, adds);
        case 6: return micro<6, 1>(a, b, k, c, stride, adds);
#if SUBLIGHT_LANES == 16
        case 7: return micro<7, 1>(a, b, k, c, stride, adds);
        case 8: return micro<8, 1>(a, b, k, c, stride, adds);
        case 9: return micro<9, 1>(a, b, k, c, stride, adds);
        case 10: return micro<10, 1>(a, b, k, c, stride, adds);
        case 11: return micro<11, 1>(a, b, k, c, stride, adds);
        case 12: return micro<12, 1>(a, b, k, c, stride, adds);
#endif
        }
    }

    // c[m, panels·columns] from `count` panels of b that start at `b`. A piece of a panel of `depth` and of a block of a
    // lie in the first cache together; all blocks of a are done while the piece is there.
    static void multiply(const Left *a, const bf16 *b, int64_t m, int64_t k, int64_t count, float *c, int64_t stride) {
        const int64_t most = start(m, 1), depth = m <= block ? 4096 / at_least<int64_t>(most, 1) : 512;
        for (int64_t from = 0; from < k || from == 0; from += depth) {
            const int64_t piece = at_most(depth, k - from);
            for (int64_t p = 0; p < count; p++)
                for (int64_t i = 0; i < blocks(m); i++) {
                    const int64_t begin = start(m, i), rows = start(m, i + 1) - begin;
                    micro(rows, a + begin * k + from * rows, b + (p * k + from) * columns, piece,
                          c + begin * stride + p * columns, stride, from > 0);
                }
        }
    }
};

#if SUBLIGHT_AMX
// Panels of two tiles of 16 columns: for each 32 of k one tile after the other, a tile's row holding pairs (2k, 2k + 1)
// of 16 columns. Rows of a are bf16, 16 and 32 at a time padded with zeros.
struct Tiles {
    using Left = bf16;
    using Use = TileUse;
    static constexpr int columns = 2 * tile_columns;
    static constexpr int64_t elements = tile_columns * tile_depth;      // of a tile of bf16

    static int64_t deep(int64_t k) { return parts_of(k, tile_depth) * tile_depth; }
    static int64_t packed_size(int64_t n, int64_t k) { return parts_of(n, columns) * columns * deep(k); }
    static int64_t left_size(int64_t m, int64_t k) { return parts_of(m, tile_rows) * tile_rows * deep(k); }

    static void pack(const bf16 *b, int64_t n, int64_t k, bf16 *to) {
        for (int64_t first = 0; first < n; first += columns)
            for (int64_t from = 0; from < k; from += tile_depth)
                for (int half = 0; half < 2; half++, to += elements)
                    for (int64_t e = 0; e < elements; e++) {
                        const int64_t i = from + e / (2 * tile_columns) * 2 + e % 2;
                        const int64_t column = first + half * tile_columns + e / 2 % tile_columns;
                        to[e] = column < n && i < k ? b[column * k + i] : bf16{};
                    }
    }

    static void put(Left *to, int64_t, int64_t k, int64_t r, int64_t first, int64_t count, const float *values) {
        for (int64_t j = 0; j < count; j++) to[r * deep(k) + first + j] = to_bf16(values[j]);
    }

    static void finish(Left *to, int64_t m, int64_t k) {
        for (int64_t r = 0; r < m; r++)
            for (int64_t i = k; i < deep(k); i++) to[r * deep(k) + i] = bf16{};
        for (int64_t i = m * deep(k); i < left_size(m, k); i++) to[i] = bf16{};
    }

    template <bool two_rows> static void product(const Left *a, const bf16 *b, int64_t k, float (*c)[columns]) {
        const int64_t stride = deep(k) * int64_t(sizeof(bf16));
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t i = 0; i < deep(k); i += tile_depth, b += 2 * elements) {
            TILE_LOAD(4, a + i, stride);
            TILE_LOAD(6, b, tile_bytes);
            TILE_LOAD(7, b + elements, tile_bytes);
            TILE_MULTIPLY(0, 4, 6);
            TILE_MULTIPLY(1, 4, 7);
            if (two_rows) {
                TILE_LOAD(5, a + i + tile_rows * deep(k), stride);
                TILE_MULTIPLY(2, 5, 6);
                TILE_MULTIPLY(3, 5, 7);
            }
        }
        TILE_STORE(0, c[0], sizeof c[0]);
        TILE_STORE(1, c[0] + tile_columns, sizeof c[0]);
        if (two_rows) {
            TILE_STORE(2, c[tile_rows], sizeof c[0]);
            TILE_STORE(3, c[tile_rows] + tile_columns, sizeof c[0]);
        }
    }

    static void multiply(const Left *a, const bf16 *b, int64_t m, int64_t k, int64_t count, float *c, int64_t stride) {
        float made[2 * tile_rows][columns];
        for (int64_t p = 0; p < count; p++)
            for (int64_t r = 0; r < m; r += 2 * tile_rows) {
                const Left *rows = a + r * deep(k);
                const bf16 *panel = b + p * columns * deep(k);
                if (m - r > tile_rows)
                    product<true>(rows, panel, k, made);
                else
                    product<false>(rows, panel, k, made);
                for (int64_t i = 0; i < at_most<int64_t>(m - r, 2 * tile_rows); i++)
                    std::memcpy(c + (r + i) * stride + p * columns, made[i], sizeof made[i]);
            }
    }
};
#endif

// The way of this process: the same for packing and for every product.
template <class Function> auto with_way(Function function) {
#if SUBLIGHT_AMX
    if (tiles_allowed()) return function(Tiles{});
#endif
    return function(Fma{});
}

// One row of bf16 into the way's order, through fp32.
template <class Way> void put_row(typename Way::Left *to, int64_t m, int64_t k, int64_t r, const bf16 *row) {
    constexpr int64_t piece = 16 * pair;
    float values[piece];
    for (int64_t first = 0; first < k; first += piece) {
        const int64_t count = at_most(piece, k - first);
        for (int64_t j = 0; j < count; j++) values[j] = number(row[first + j]);
        Way::put(to, m, k, r, first, count, values);
    }
}

template <class Element> void store_row(Element *to, const float *from, int64_t count) {
    for (int64_t j = 0; j < count; j++) set(to[j], from[j]);
}

}  // namespace sublight
