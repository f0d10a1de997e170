// Walking over a packed matrix, for every instruction set.
//
// Compiled once for each: a kernel_*.cpp defines kGroup, kBlocksOne, kBlocksMany, kTokens and
//
//   template <int NB, int NT>
//   void dot(const uint8_t* weight, int64_t step_bytes, int64_t steps, const int8_t* acts,
//            int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride)
//
// which multiplies NB neighbouring blocks with NT tokens, and includes this file.
#pragma once

template <int NB, int NT>
inline void dot_blocks(const uint8_t* weight, int64_t width, int64_t steps, const int8_t* acts,
                       int64_t acts_stride, const int32_t* sums, int32_t* acc,
                       int64_t acc_stride) {
    if constexpr (NB > 0) {
        int64_t block = 0;
        for (; block + NB <= width; block += NB) {
            dot<NB, NT>(weight + block * kBlockBytes, width * kBlockBytes, steps, acts,
                        acts_stride, sums, acc + block * kBlockRows, acc_stride);
        }
        if (block < width) {
            // Fewer blocks are left than are wanted together: at most three.
            const uint8_t* const at = weight + block * kBlockBytes;
            int32_t* const to = acc + block * kBlockRows;
            const int64_t bytes = width * kBlockBytes;
            switch (width - block) {
                case 1: dot<1, NT>(at, bytes, steps, acts, acts_stride, sums, to, acc_stride);
                        break;
                case 2: if constexpr (NB > 2) {
                            dot<2, NT>(at, bytes, steps, acts, acts_stride, sums, to, acc_stride);
                        }
                        break;
                case 3: if constexpr (NB > 3) {
                            dot<3, NT>(at, bytes, steps, acts, acts_stride, sums, to, acc_stride);
                        }
                        break;
                default: break;
            }
        }
    }
}

void matmul(const Packed& weight, const int8_t* acts, const int32_t* sums, int64_t tokens,
            int32_t* acc) {
    const int64_t blocks = weight.blocks(), steps = weight.steps();
    const int64_t stride = weight.padded_columns(), out = weight.padded_rows();
    for (int64_t first = 0; first < blocks; first += kGroup) {
        const int64_t width = blocks - first < kGroup ? blocks - first : kGroup;
        const uint8_t* const at = weight.bytes.data() + first * steps * kBlockBytes;
        int32_t* const to = acc + first * kBlockRows;
        int64_t t = 0;
        for (; tokens - t >= kTokens; t += kTokens) {
            dot_blocks<kBlocksMany, kTokens>(at, width, steps, acts + t * stride, stride,
                                             sums + t, to + t * out, out);
        }
        for (; tokens - t >= 2 && kTokens > 2; t += 2) {
            dot_blocks<kBlocksMany, 2>(at, width, steps, acts + t * stride, stride, sums + t,
                                       to + t * out, out);
        }
        for (; t < tokens; ++t) {
            dot_blocks<kBlocksOne, 1>(at, width, steps, acts + t * stride, stride, sums + t,
                                      to + t * out, out);
        }
    }
}
