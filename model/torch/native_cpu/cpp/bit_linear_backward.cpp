// The backward pass of a BitLinear: gradients of vectors, latent weights and biases.
//
// With n = q / rms(q) and W the codes times their scales, out = W n + bias. Straight through both
// quantisers: to_weights = grad' n, and to_x follows from grad W by the derivative of the norm
// (absmax_gradient in model/torch/network/quantizers.py).

#include <omp.h>

#include "bit_linear.hpp"
#include "entry.hpp"
#include "products.hpp"
#include "scratch.hpp"

namespace sterna {
namespace {

// Tokens between two updates of the gradient of the weights: their data stays in the L2 cache.
constexpr int64_t kChunk = 6 * kBlock;

#if STERNA_BFLOAT16
void narrow(BFloat16, void* to, int64_t at, Floats value, int64_t count) {
    const __m256i halves = BFloat16::halves(value);
    int16_t* here = static_cast<int16_t*>(to) + at;
    if (count >= kLanes)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(here), halves);
    else
        std::memcpy(here, &halves, static_cast<size_t>(count) * 2);
}
#endif
void narrow(Float32, void* to, int64_t at, Floats value, int64_t count) {
    store_part(static_cast<float*>(to) + at, value, count);
}

template <class Product>
class Backward {
  public:
    explicit Backward(const BitLinear& a)
        : a_(a), stride_(words(a.columns, 4) * 4),
          depth_(words(a.rows, kValues)), chunk_depth_(words(kChunk, kValues)),
          wide_rows_(words(a.rows, kLanes) * kLanes),
          wide_columns_(panels(a.columns) * kPanel), blocks_(words(a.tokens, kBlock)) {
        const int64_t sizes[] = {
            panel_words(a.columns, depth_), panel_words(a.columns, chunk_depth_),
            chunk_depth_ * wide_rows_, wide_rows_, blocks_ * wide_rows_,
            a.threads * kBlock * depth_, a.threads * kBlock * wide_columns_};
        int64_t total = 0;
        for (int64_t size : sizes) total += Scratch::size<int32_t>(size);
        Scratch scratch = Scratch::of(total);
        codes_ = scratch.take<int32_t>(sizes[0]);
        vectors_ = scratch.take<int32_t>(sizes[1]);
        grads_ = scratch.take<int32_t>(sizes[2]);
        scale_ = scratch.take<float>(sizes[3]);
        biases_ = scratch.take<float>(sizes[4]);
        scaled_ = scratch.take<int32_t>(sizes[5]);
        arrived_ = scratch.take<float>(sizes[6]);
        std::memset(scale_, 0, static_cast<size_t>(wide_rows_) * sizeof(float));
        for (int64_t part = 0, row = 0; part < a.parts; ++part)
            for (int64_t r = 0; r < a.rows_of[part]; ++r, ++row)
                scale_[row] = a.parts == 1 ? 1.0f : a.scales[part];
    }

    void run() {
#pragma omp parallel num_threads(a_.threads)
        {
#pragma omp for
            for (int64_t step = 0; step < depth_; ++step) spread_codes(step);
            for (int64_t chunk = 0; chunk < a_.tokens; chunk += kChunk) {
                const int64_t end = std::min(a_.tokens, chunk + kChunk);
#pragma omp for
                for (int64_t first = chunk; first < end; first += kBlock)
                    vectors_of_block(chunk, first, std::min(kBlock, end - first));
#pragma omp for
                for (int64_t row = 0; row < a_.rows; row += kTileRows * 4)
                    weights_of_rows(chunk, end, row);
            }
#pragma omp for
            for (int64_t row = 0; row < (a_.to_biases ? a_.rows : 0); ++row) {
                float sum = 0.0f;
                for (int64_t block = 0; block < blocks_; ++block)
                    sum += biases_[block * wide_rows_ + row];
                a_.to_biases[row] = sum;
            }
        }
    }

  private:
    static constexpr int64_t kValues = Product::kValues;

    // The codes as the right side of grad W: a word holds those of kValues rows of a column.
    void spread_codes(int64_t step) {
        for (int64_t column = 0; column < a_.columns; column += kLanes) {
            Floats rows[kValues] = {};
            const int64_t count = std::min<int64_t>(kLanes, a_.columns - column);
            for (int64_t i = 0; i < std::min(kValues, a_.rows - step * kValues); ++i)
                rows[i] = load_part(
                    a_.codes + (step * kValues + i) * a_.columns + column, count);
            *reinterpret_cast<Ints*>(codes_ + panel_at(column, step, depth_)) =
                Product::words(rows);
        }
    }

    // All of a block of tokens except the gradient of the weights, and both operands of that.
    void vectors_of_block(int64_t chunk, int64_t first, int64_t count) {
        int32_t* scaled = scaled_ + omp_get_thread_num() * kBlock * depth_;
        float* sums = biases_ + first / kBlock * wide_rows_;
        std::memset(sums, 0, static_cast<size_t>(wide_rows_) * sizeof(float));
        for (int64_t i = 0; i < count; i += kValues) {
            split_grads(first + i, std::min(kValues, count - i), (first + i - chunk) / kValues,
                        scaled + i * depth_, sums);
            split_vectors(first + i, std::min(kValues, count - i),
                          (first + i - chunk) / kValues);
        }
        float* arrived = arrived_ + omp_get_thread_num() * kBlock * wide_columns_;
        product<Product>(
            Left{scaled, depth_, 1}, Right{codes_, depth_}, count, a_.columns, depth_,
            [&](int64_t i, int64_t column, Floats sums_of) {
                store(arrived + i * wide_columns_ + column, sums_of);
            });
        for (int64_t i = 0; i < count; ++i)
            through_norm(first + i, arrived + i * wide_columns_);
    }

    // Grad of `count` tokens, once scaled by the matrices for grad W, once by the vectors' norms
    // for the gradient of the weights.
    void split_grads(
        int64_t token, int64_t count, int64_t step, int32_t* scaled, float* sums) {
        for (int64_t row = 0; row < a_.rows; row += kLanes) {
            const int64_t lanes = std::min<int64_t>(kLanes, a_.rows - row);
            Floats normal[kValues] = {}, sum = load(sums + row);
            for (int64_t i = 0; i < count; ++i) {
                const int64_t at = (token + i) * a_.rows + row;
                Floats grad = load_part(a_.grad + at, lanes);
                if (a_.limit < kInfinity) {     // saturated outputs pass none
                    const Floats out = load_part(a_.out + at, lanes);
                    grad = ((out >= a_.limit) | (out <= -a_.limit)) ? Floats{} : grad;
                }
                sum += grad;
                normal[i] = grad * a_.inverse[token + i];
                narrow(Product{}, scaled + i * depth_, row, grad * load(scale_ + row),
                       std::min<int64_t>(kLanes, words(a_.rows, kValues) * kValues - row));
            }
            store(sums + row, sum);
            *reinterpret_cast<Ints*>(grads_ + step * wide_rows_ + row) = Product::words(normal);
        }
    }

    void split_vectors(int64_t token, int64_t count, int64_t step) {
        for (int64_t column = 0; column < a_.columns; column += kLanes) {
            Floats rows[kValues] = {};
            for (int64_t i = 0; i < count; ++i)
                rows[i] = load_part(a_.q + (token + i) * stride_ + column,
                                    std::min<int64_t>(kLanes, a_.columns - column));
            *reinterpret_cast<Ints*>(vectors_ + panel_at(column, step, chunk_depth_)) =
                Product::words(rows);
        }
    }

    void through_norm(int64_t token, const float* arrived) {
        const int8_t* q = a_.q + token * stride_;
        const float inverse = a_.inverse[token];
        Floats sums{};
        for (int64_t c = 0; c < a_.columns; c += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, a_.columns - c);
            sums += load_part(arrived + c, count) * (load_part(q + c, count) * inverse);
        }
        float along = 0.0f;
        for (int lane = 0; lane < kLanes; ++lane) along += sums[lane];
        along /= static_cast<float>(a_.columns);
        const float slope = a_.gain[token] * inverse * (a_.parts == 1 ? a_.scales[0] : 1.0f);
        float* to_x = a_.to_x + token * a_.columns;
        for (int64_t c = 0; c < a_.columns; c += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, a_.columns - c);
            const Floats normalised = load_part(q + c, count) * inverse;
            store_part(to_x + c, (load(arrived + c) - normalised * along) * slope, count);
        }
    }

    void weights_of_rows(int64_t chunk, int64_t end, int64_t row) {
        float* to = a_.to_weights + row * a_.columns;
        product<Product>(
            Left{grads_ + row, 1, wide_rows_}, Right{vectors_, chunk_depth_},
            std::min<int64_t>(kTileRows * 4, a_.rows - row), a_.columns,
            words(end - chunk, kValues),
            [&](int64_t r, int64_t column, Floats sums) {
                float* at = to + r * a_.columns + column;
                const int64_t count = std::min<int64_t>(kLanes, a_.columns - column);
                if (chunk > 0) sums += load_part(at, count);
                store_part(at, sums, count);
            });
    }

    static constexpr float kInfinity = __builtin_inff();
    const BitLinear& a_;
    const int64_t stride_, depth_, chunk_depth_, wide_rows_, wide_columns_, blocks_;
    int32_t *codes_, *vectors_, *grads_, *scaled_;
    float *scale_, *biases_, *arrived_;
};

void bit_linear_backward(const BitLinear& a) {
#if STERNA_BFLOAT16
    if (a.halves) return Backward<BFloat16>(a).run();
#endif
    Backward<Float32>(a).run();
}

}  // namespace
}  // namespace sterna

STERNA_ENTRY(bit_linear_backward, BitLinear)
