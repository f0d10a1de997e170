// Vectors with the processor's number of lanes, in the compiler's vector types: the same source
// gives AVX-512, AVX2 and NEON. Everything is compiled for the machine that it runs on.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sterna {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Valid at any address aligned for a float.
typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }

// The first `count` lanes; others are 0.
inline Floats load_part(const float* from, int64_t count) {
    if (count >= kLanes) return load(from);
    Floats value{};
    std::memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
}
inline void store_part(float* to, Floats value, int64_t count) {
    if (count >= kLanes) return store(to, value);
    std::memcpy(to, &value, static_cast<size_t>(count) * sizeof(float));
}

inline Floats load_part(const int8_t* from, int64_t count) {
    Bytes value{};
    if (count >= kLanes)
        value = *reinterpret_cast<const Bytes*>(from);
    else
        std::memcpy(&value, from, static_cast<size_t>(count));
    return __builtin_convertvector(value, Floats);
}

// Comparisons with NaN are false, so a NaN stays.
inline Floats limited(Floats value, float limit) {
    const Floats high = Floats{} + limit, low = Floats{} - limit;
    value = value > high ? high : value;
    return value < low ? low : value;
}

// e^x to about one unit in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]
// (coefficients: Taylor's, of degree 7, whose remainder there is below 6e-9). Beyond +-87 as at
// +-87, where every use here has long saturated.
inline Floats exponential(Floats x) {
    const Floats far = Floats{} + 87.0f;
    x = x > far ? far : x;
    x = x < -far ? -far : x;
    // Adding 1.5 * 2^23 leaves the rounded quotient in the low bits.
    const Floats magic = Floats{} + 12582912.0f;
    const Floats shifted = x * 1.44269504088896341f + magic;
    const Floats n = shifted - magic;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = Floats{} + 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Ints power = (reinterpret_cast<const Ints&>(shifted) << 23) + (127 << 23);
    return p * reinterpret_cast<const Floats&>(power);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace sterna
