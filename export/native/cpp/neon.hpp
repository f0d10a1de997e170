// The walk of a NEON kernel over its blocks; `add` differs with and without dot products.
//
// A lane of a vector is a row. The fields of a byte are taken at 1 and 4 times their value, so
// that they stay positive as signed bytes; a shift at the end makes the second kind right.
#pragma once

template <int NB, int NT>
inline void dot(const uint8_t* weight, int64_t, int64_t steps, const int8_t* acts,
                int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
    static_assert(NB == 1);
    constexpr int kQuarters = 4;
    const uint8x16_t mask1 = vdupq_n_u8(3), mask4 = vdupq_n_u8(12);
    int32x4_t sum1[kQuarters][NT], sum4[kQuarters][NT];
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
        for (int token = 0; token < NT; ++token) {
            sum1[quarter][token] = vdupq_n_s32(-sums[token]);
            sum4[quarter][token] = vdupq_n_s32(0);
        }
    }
    for (int64_t step = 0; step < steps; ++step) {
        int8x16_t q[NT];
#pragma GCC unroll 4
        for (int token = 0; token < NT; ++token) q[token] = vld1q_s8(acts + token * acts_stride);
#pragma GCC unroll 8
        for (int quarter = 0; quarter < kQuarters; ++quarter) {
            const uint8x16_t w = vld1q_u8(weight + quarter * 16);
            const uint8x16_t upper = vshrq_n_u8(w, 4);
            const int8x16_t codes[4] = {
                vreinterpretq_s8_u8(vandq_u8(w, mask1)),
                vreinterpretq_s8_u8(vandq_u8(w, mask4)),
                vreinterpretq_s8_u8(vandq_u8(upper, mask1)),
                vreinterpretq_s8_u8(vandq_u8(upper, mask4))};
#pragma GCC unroll 4
            for (int token = 0; token < NT; ++token) {
                sum1[quarter][token] = add<0>(sum1[quarter][token], codes[0], q[token]);
                sum4[quarter][token] = add<1>(sum4[quarter][token], codes[1], q[token]);
                sum1[quarter][token] = add<2>(sum1[quarter][token], codes[2], q[token]);
                sum4[quarter][token] = add<3>(sum4[quarter][token], codes[3], q[token]);
            }
        }
        weight += kBlockBytes;
        acts += kStepColumns;
    }
    for (int token = 0; token < NT; ++token) {
        for (int quarter = 0; quarter < kQuarters; ++quarter) {
            vst1q_s32(acc + token * acc_stride + quarter * 4,
                      vaddq_s32(sum1[quarter][token], vshrq_n_s32(sum4[quarter][token], 2)));
        }
    }
}
