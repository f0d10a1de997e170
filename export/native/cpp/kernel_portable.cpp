// The kernel without any instruction set: plain C++ over the packed layout.
#include "kernel.hpp"

namespace sterna {
namespace portable {

constexpr int64_t kBlocks = 1, kTokens = 2;

// 16-bit sums of 8 steps: 8 * 4 products of at most 2 * 127, below 2^13.
constexpr int64_t kWidenSteps = 8;

template <int NB, int NT>
inline void dot(const uint8_t* weight, int64_t, int64_t steps, const int8_t* acts,
                int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
    static_assert(NB == 1);
    for (int t = 0; t < NT; ++t) {
        int32_t total[kBlockRows];
        for (int64_t row = 0; row < kBlockRows; ++row) total[row] = -sums[t];
        for (int64_t done = 0; done < steps; done += kWidenSteps) {
            const int64_t last = done + kWidenSteps < steps ? done + kWidenSteps : steps;
            int16_t sum[kBlockBytes] = {};
            for (int64_t step = done; step < last; ++step) {
                const uint8_t* const w = weight + step * kBlockBytes;
                const int8_t* const q = acts + t * acts_stride + step * kStepColumns;
                for (int64_t i = 0; i < kBlockBytes; i += 4) {
                    for (int byte = 0; byte < 4; ++byte) {
                        const int codes = w[i + byte];
                        sum[i + byte] = static_cast<int16_t>(
                            sum[i + byte] + (codes & 3) * q[byte] + (codes >> 2 & 3) * q[4 + byte]
                            + (codes >> 4 & 3) * q[8 + byte] + (codes >> 6) * q[12 + byte]);
                    }
                }
            }
            for (int64_t row = 0; row < kBlockRows; ++row) {
                total[row] += sum[4 * row] + sum[4 * row + 1] + sum[4 * row + 2]
                    + sum[4 * row + 3];
            }
        }
        for (int64_t row = 0; row < kBlockRows; ++row) acc[t * acc_stride + row] = total[row];
    }
}

#include "records.hpp"

bool supported() { return true; }

}  // namespace portable

const Kernel kPortable = {
    "portable", portable::supported, portable::matmul, portable::run};

}  // namespace sterna
