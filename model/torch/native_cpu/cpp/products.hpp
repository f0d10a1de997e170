// Matrix products in registers. A matrix consists of words of 32 bits, and a word holds one float,
// two bfloat16 or four int8: a product of words is a short dot product.
#pragma once

#include <algorithm>
#include <type_traits>

#include "vectors.hpp"

namespace sterna {

// Rows and vectors of a tile of sums; with 32 registers these leave room for the operands.
constexpr int kTileRows = 6;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int64_t kPanel = kTileVectors * kLanes;

struct Float32 {
    static constexpr int kValues = 1;
    using Sums = Floats;
    static Sums dot(Sums sums, int32_t left, Ints right) {
        float value;
        std::memcpy(&value, &left, sizeof value);
        return sums + value * reinterpret_cast<const Floats&>(right);
    }
    // One vector of words from one row of values.
    static Ints words(const Floats* rows) { return reinterpret_cast<const Ints&>(*rows); }
};

#if defined(__AVX512BF16__)
#define STERNA_BFLOAT16 1
struct BFloat16 {
    static constexpr int kValues = 2;
    using Sums = Floats;
    static Sums dot(Sums sums, int32_t left, Ints right) {
        return reinterpret_cast<Sums>(_mm512_dpbf16_ps(
            reinterpret_cast<__m512>(sums), (__m512bh)_mm512_set1_epi32(left),
            (__m512bh)reinterpret_cast<__m512i>(right)));
    }
    static __m256i halves(Floats row) {
        return (__m256i)_mm512_cvtneps_pbh(reinterpret_cast<__m512>(row));
    }
    static __m512i rounded(Floats row) { return _mm512_cvtepu16_epi32(halves(row)); }
    // One vector of words from two rows of values, the first in the low halves.
    static Ints words(const Floats* rows) {
        return reinterpret_cast<Ints>(_mm512_or_si512(
            rounded(rows[0]), _mm512_slli_epi32(rounded(rows[1]), 16)));
    }
};
#endif

#if defined(__AVX512VNNI__)
#define STERNA_INT8 1
// The right side is unsigned, the left side signed.
struct Int8 {
    static constexpr int kValues = 4;
    using Sums = Ints;
    static Sums dot(Sums sums, int32_t left, Ints right) {
        return reinterpret_cast<Sums>(_mm512_dpbusd_epi32(
            reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(right),
            _mm512_set1_epi32(left)));
    }
};
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define STERNA_INT8 1
// The right side is unsigned and at most 2, the left side signed and at most 127: sums of 16 bits,
// two to a word of sums, hold kSteps steps of 2 * 2 * 127.
struct Int8 {
    static constexpr int kValues = 4;
    static constexpr int64_t kSteps = 64;
    using Sums = Ints;
    static Sums dot(Sums sums, int32_t left, Ints right) {
        return reinterpret_cast<Sums>(_mm256_add_epi16(
            reinterpret_cast<__m256i>(sums),
            _mm256_maddubs_epi16(reinterpret_cast<__m256i>(right), _mm256_set1_epi32(left))));
    }
    static Sums widened(Sums sums) {
        return reinterpret_cast<Sums>(
            _mm256_madd_epi16(reinterpret_cast<__m256i>(sums), _mm256_set1_epi16(1)));
    }
};
#endif

// Whether a product's sums must be widened after every kSteps steps.
template <class Product, class = void>
constexpr bool kIsNarrow = false;
template <class Product>
constexpr bool kIsNarrow<Product, std::void_t<decltype(Product::kSteps)>> = true;

// Strides of the left side in words: `row` between rows, `depth` between steps.
struct Left {
    const int32_t* words;
    int64_t row, depth;
};

// The right side lies in panels of kPanel columns, each [depth][kPanel].
struct Right {
    const int32_t* words;
    int64_t depth;
};
inline int64_t panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
inline int64_t panel_words(int64_t columns, int64_t depth) {
    return panels(columns) * depth * kPanel;
}
inline int64_t panel_at(int64_t column, int64_t step, int64_t depth) {
    return column / kPanel * depth * kPanel + step * kPanel + column % kPanel;
}

template <class Product, int kRows, int kVectors>
inline void add_tile(
    Left left, const int32_t* right, int64_t begin, int64_t end,
    typename Product::Sums (&sums)[kRows][kVectors]) {
    for (int64_t step = begin; step < end; ++step) {
        Ints columns[kVectors];
        for (int v = 0; v < kVectors; ++v)
            columns[v] = *reinterpret_cast<const Ints*>(right + step * kPanel + v * kLanes);
        for (int row = 0; row < kRows; ++row) {
            const int32_t word = left.words[row * left.row + step * left.depth];
            for (int v = 0; v < kVectors; ++v)
                sums[row][v] = Product::dot(sums[row][v], word, columns[v]);
        }
    }
}

template <class Product, int kRows, int kVectors, class Store>
inline void tile(Left left, const int32_t* right, int64_t depth, const Store& put) {
    typename Product::Sums sums[kRows][kVectors] = {};
    if constexpr (kIsNarrow<Product>) {
        for (int64_t begin = 0; begin < depth; begin += Product::kSteps) {
            typename Product::Sums narrow[kRows][kVectors] = {};
            add_tile<Product, kRows, kVectors>(
                left, right, begin, std::min(depth, begin + Product::kSteps), narrow);
            for (int row = 0; row < kRows; ++row)
                for (int v = 0; v < kVectors; ++v) sums[row][v] += Product::widened(narrow[row][v]);
        }
    } else {
        add_tile<Product, kRows, kVectors>(left, right, 0, depth, sums);
    }
    for (int row = 0; row < kRows; ++row)
        for (int v = 0; v < kVectors; ++v) put(row, v * kLanes, sums[row][v]);
}

template <class Product, int kRows, class Store>
inline void tile_of_rows(
    Left left, const int32_t* right, int64_t depth, int vectors, const Store& put) {
    if constexpr (kTileVectors == 4) {
        if (vectors == 4) return tile<Product, kRows, 4>(left, right, depth, put);
        if (vectors == 3) return tile<Product, kRows, 3>(left, right, depth, put);
    }
    if (vectors == 2) return tile<Product, kRows, 2>(left, right, depth, put);
    return tile<Product, kRows, 1>(left, right, depth, put);
}

// Every vector of sums of `rows` times `columns`, in any order, as put(row, column, sums). Panels
// may be longer than the product is deep.
template <class Product, class Store>
inline void product(
    Left left, Right right, int64_t rows, int64_t columns, int64_t depth, const Store& put) {
    for (int64_t column = 0; column < columns; column += kPanel) {
        const int32_t* panel = right.words + column * right.depth;
        const int vectors = static_cast<int>(
            (std::min(kPanel, columns - column) + kLanes - 1) / kLanes);
        for (int64_t row = 0; row < rows; row += kTileRows) {
            const auto here = [&](int64_t r, int64_t c, typename Product::Sums sums) {
                put(row + r, column + c, sums);
            };
            const Left part{left.words + row * left.row, left.row, left.depth};
            switch (std::min<int64_t>(kTileRows, rows - row)) {
                case 6: tile_of_rows<Product, 6>(part, panel, depth, vectors, here); break;
                case 5: tile_of_rows<Product, 5>(part, panel, depth, vectors, here); break;
                case 4: tile_of_rows<Product, 4>(part, panel, depth, vectors, here); break;
                case 3: tile_of_rows<Product, 3>(part, panel, depth, vectors, here); break;
                case 2: tile_of_rows<Product, 2>(part, panel, depth, vectors, here); break;
                default: tile_of_rows<Product, 1>(part, panel, depth, vectors, here);
            }
        }
    }
}

}  // namespace sterna
