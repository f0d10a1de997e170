// The forward pass of a BitLinear: quantise both sides, multiply integers, scale, limit.
//
// Every rounding is that of model/torch/network/quantizers.py, so the result is the same to the last
// bit. The sums are exact: of int8 in int32, or of floats below 2^24. (Torch's sum of squares is
// exact up to 2^24 only, as it always is up to 1,040 columns.)

#include <omp.h>

#include <cmath>
#include <limits>

#include "bit_linear.hpp"
#include "entry.hpp"
#include "products.hpp"
#include "scratch.hpp"

namespace sterna {
namespace {

constexpr float kSmallestPeak = 1e-30f;
constexpr int64_t kExactSquares = 1 << 16;  // 127^2 times this is below 2^31

// Quantise one vector; returns the sum of the codes. A vector with an infinity or NaN becomes zeros
// with the scale NaN, which makes all of its outputs NaN.
int32_t quantize(const float* x, int64_t columns, int8_t* q, float* gain, float* inverse) {
    int32_t peak_bits = 0;  // bit patterns of magnitudes are ordered like the floats
    for (int64_t i = 0; i < columns; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        peak_bits = std::max(peak_bits, bits & 0x7fffffff);
    }
    float peak;
    std::memcpy(&peak, &peak_bits, sizeof peak);
    if (peak_bits >= 0x7f800000) {
        std::memset(q, 0, static_cast<size_t>(columns));
        *gain = *inverse = std::numeric_limits<float>::quiet_NaN();
        return 0;
    }
    const float scale = peak < kSmallestPeak ? 0.0f : (1.0f / peak) * 127.0f;
    int64_t squares = 0;
    int32_t sum = 0;
    for (int64_t first = 0; first < columns; first += kExactSquares) {
        int32_t here = 0;
        for (int64_t i = first; i < std::min(columns, first + kExactSquares); ++i) {
            const int32_t code = static_cast<int32_t>(std::rint(x[i] * scale));
            q[i] = static_cast<int8_t>(code);
            here += code * code;
            sum += code;
        }
        squares += here;
    }
    *gain = scale;
    // 127 is always among the magnitudes, so only a zero vector is below the limit.
    const float norm = std::max(std::sqrt(static_cast<float>(squares)), 127.0f);
    *inverse = (1.0f / norm) * static_cast<float>(std::sqrt(static_cast<double>(columns)));
    return sum;
}

void encode_row(const float* weight, float scale, int64_t columns, int8_t* codes) {
    for (int64_t i = 0; i < columns; ++i) {
        const float ratio = weight[i] / scale;
        codes[i] = static_cast<int8_t>((ratio > 0.5f) - (ratio < -0.5f));
    }
}

// Conversion of the codes of both sides for a product. `sum` is that of the codes of a vector.
#if STERNA_INT8
struct Codes : Int8 {
    static const int32_t* left(const int8_t* q, int64_t, int64_t, int64_t, int32_t*) {
        return reinterpret_cast<const int32_t*>(q);
    }
    static void put(int32_t* word, const int8_t* codes, int64_t count) {
        int8_t four[4] = {};
        for (int64_t i = 0; i < count; ++i) four[i] = static_cast<int8_t>(codes[i] + 1);
        std::memcpy(word, four, sizeof four);
    }
    // The right side holds the codes plus one, as it is unsigned.
    static Floats whole(Ints sums, int32_t sum) {
        return __builtin_convertvector(sums - sum, Floats);
    }
};
#else
struct Codes : Float32 {
    static const int32_t* left(
        const int8_t* q, int64_t tokens, int64_t stride, int64_t columns, int32_t* block) {
        for (int64_t row = 0; row < tokens; ++row)
            for (int64_t i = 0; i < columns; ++i) {
                const float value = q[row * stride + i];
                std::memcpy(block + row * columns + i, &value, sizeof value);
            }
        return block;
    }
    static void put(int32_t* word, const int8_t* codes, int64_t) {
        const float value = *codes;
        std::memcpy(word, &value, sizeof value);
    }
    static Floats whole(Floats sums, int32_t) { return sums; }
};
#endif

void bit_linear_forward(const BitLinear& a) {
    const int64_t depth = words(a.columns, Codes::kValues), stride = words(a.columns, 4) * 4;
    const int64_t padded_rows = panels(a.rows) * kPanel;
    Scratch scratch = Scratch::of(
        Scratch::size<int32_t>(panel_words(a.rows, depth))
        + Scratch::size<const float*>(padded_rows) + 2 * Scratch::size<float>(padded_rows)
        + Scratch::size<int32_t>(a.threads * kBlock * depth));
    int32_t* right = scratch.take<int32_t>(panel_words(a.rows, depth));
    const float** latent = scratch.take<const float*>(padded_rows);
    float* scale = scratch.take<float>(padded_rows);
    float* bias = scratch.take<float>(padded_rows);
    int32_t* blocks = scratch.take<int32_t>(a.threads * kBlock * depth);
    for (int64_t part = 0, row = 0; part < a.parts; ++part)
        for (int64_t r = 0; r < a.rows_of[part]; ++r, ++row) {
            latent[row] = a.weights[part] + r * a.columns;
            scale[row] = a.scales[part];
            bias[row] = a.biases ? a.biases[part][r] : 0.0f;
        }

#pragma omp parallel num_threads(a.threads)
    {
#pragma omp for
        for (int64_t row = 0; row < a.rows; ++row) {
            int8_t* codes = a.codes + row * a.columns;
            encode_row(latent[row], scale[row], a.columns, codes);
            for (int64_t step = 0; step < depth; ++step)
                Codes::put(right + panel_at(row, step, depth), codes + step * Codes::kValues,
                           std::min<int64_t>(Codes::kValues, a.columns - step * Codes::kValues));
        }
#pragma omp for
        for (int64_t first = 0; first < a.tokens; first += kBlock) {
            const int64_t count = std::min(kBlock, a.tokens - first);
            int32_t sums_of[kBlock];
            float factor[kBlock];
            int8_t* q = a.q + first * stride;
            for (int64_t i = 0; i < count; ++i) {
                const int64_t token = first + i;
                sums_of[i] = quantize(a.x + token * a.columns, a.columns, q + i * stride,
                                      a.gain + token, a.inverse + token);
                for (int64_t c = a.columns; c < stride; ++c) q[i * stride + c] = 0;
                factor[i] = a.parts == 1 ? a.inverse[token] * a.scales[0] : a.inverse[token];
            }
            const int32_t* left = Codes::left(
                q, count, stride, a.columns, blocks + omp_get_thread_num() * kBlock * depth);
            float* out = a.out + first * a.rows;
            product<Codes>(
                Left{left, depth, 1}, Right{right, depth}, count, a.rows, depth,
                [&](int64_t i, int64_t row, typename Codes::Sums sums) {
                    Floats value = Codes::whole(sums, sums_of[i]);
                    if (a.parts > 1) value *= load(scale + row);
                    value = limited(value * factor[i] + load(bias + row), a.limit);
                    store_part(out + i * a.rows + row, value,
                               std::min<int64_t>(kLanes, a.rows - row));
                });
        }
    }
}

}  // namespace
}  // namespace sterna

STERNA_ENTRY(bit_linear_forward, BitLinear)
