// Walking over a matrix, for every instruction set.
//
// Compiled once for each: a kernel_*.cpp defines kBlocks, kTokens and
//
//   template <int NB, int NT>
//   void dot(const uint8_t* weight, int64_t block_bytes, int64_t steps, const int8_t* acts,
//            int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride)
//
// which multiplies NB neighbouring blocks with NT tokens, and includes this file. A single token
// takes block after block, which is one forward stream; several share what they unpack. A kernel
// of one block at a time may define STERNA_PANEL and
//
//   int64_t dot_panel(weight, steps, acts, acts_stride, sums, tokens, acc, acc_stride)
//
// which multiplies one block with the first tokens of many, and returns how many it took.
#pragma once

template <int NB, int NT>
inline void dot_blocks(int64_t count, const uint8_t* weight, int64_t block_bytes, int64_t steps,
                       const int8_t* acts, int64_t acts_stride, const int32_t* sums, int32_t* acc,
                       int64_t acc_stride) {
    if constexpr (NB > 0) {
        if (count == NB) {
            dot<NB, NT>(weight, block_bytes, steps, acts, acts_stride, sums, acc, acc_stride);
        } else {
            dot_blocks<NB - 1, NT>(
                count, weight, block_bytes, steps, acts, acts_stride, sums, acc, acc_stride);
        }
    }
}

// Blocks first to first + count of a matrix; acc [tokens, acc_stride] begins with their first row.
inline void multiply_blocks(const Matrix& matrix, int64_t first, int64_t count, const int8_t* acts,
                            int64_t acts_stride, const int32_t* sums, int64_t tokens, int32_t* acc,
                            int64_t acc_stride) {
    const int64_t steps = matrix.steps(), block_bytes = steps * kBlockBytes;
    for (int64_t block = 0; block < count; block += kBlocks) {
        const int64_t width = count - block < kBlocks ? count - block : kBlocks;
        const uint8_t* const weight = matrix.weight + (first + block) * block_bytes;
        int32_t* const to = acc + block * kBlockRows;
        int64_t t = 0;
#ifdef STERNA_PANEL
        t = dot_panel(weight, steps, acts, acts_stride, sums, tokens, to, acc_stride);
#endif
        for (; tokens - t >= kTokens; t += kTokens) {
            dot_blocks<kBlocks, kTokens>(width, weight, block_bytes, steps, acts + t * acts_stride,
                                         acts_stride, sums + t, to + t * acc_stride, acc_stride);
        }
        for (; t < tokens; ++t) {
            for (int64_t one = 0; one < width; ++one) {
                dot<1, 1>(weight + one * block_bytes, block_bytes, steps, acts + t * acts_stride,
                          acts_stride, sums + t, to + t * acc_stride + one * kBlockRows,
                          acc_stride);
            }
        }
    }
}

void matmul(const Matrix& matrix, const int8_t* acts, const int32_t* sums, int64_t tokens,
            int32_t* acc) {
    multiply_blocks(matrix, 0, matrix.blocks(), acts, matrix.padded_columns(), sums, tokens, acc,
                    matrix.padded_rows());
}
