// What the operators are made of: formats, packed matrices, projections and tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// A function that other programs find in the library by its name.
#define STERNA_PUBLIC extern "C" __attribute__((visibility("default")))

namespace sterna {

// Rows of a block; a block of one step is 64 bytes: 16 rows of 4 bytes, 4 trits a byte.
constexpr int64_t kBlockRows = 16;
// Columns that one step covers.
constexpr int64_t kStepColumns = 16;
constexpr int64_t kBlockBytes = 64;
// Columns of a matrix: what keeps every sum inside 32 bits.
constexpr int64_t kMaxColumns = 65536;

inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// What a NumericProfile of Sterna says; each number is an attribute of a node, of its name.
struct Profile {
    int32_t x_bits, x_frac, z_bits, z_frac, h_bits, h_frac, o_bits, o_frac, p_bits, p_frac;
    int32_t logit_bits, logit_frac, reciprocal_bits, root_frac, scale_frac, mantissa_bits;
    int32_t scale_bits, sigmoid_frac, sigmoid_segments;

    int32_t combine_shift() const { return scale_frac + mantissa_bits - scale_bits; }
    int32_t candidate_shift() const { return z_frac + sigmoid_frac - h_frac; }
    int32_t output_shift() const { return sigmoid_frac + h_frac - o_frac; }
    int32_t product_shift() const { return 2 * z_frac - p_frac; }
    // log2 of sigmoid_segments.
    int32_t index_bits() const;
    // Whether all products of gates, states and pre-activations fit in 32 bits with their half.
    bool narrow() const;
};

// Reads each number by its name. Checks what the arithmetic relies on; throws
// std::invalid_argument.
Profile read_profile(const std::function<int64_t(const char* name)>& number);

// Memory on a 64-byte boundary; large ones ask for huge pages.
class Bytes {
public:
    Bytes() = default;
    explicit Bytes(size_t size);
    uint8_t* data() const { return data_.get(); }
    size_t size() const { return size_; }

private:
    struct Free { void operator()(uint8_t* data) const; };
    std::unique_ptr<uint8_t[], Free> data_;
    size_t size_ = 0;
};

// A ternary matrix in the layout of docs/native-ops.md: trits as codes 0, 1, 2 for -1, 0, 1.
// `group` blocks lie side by side in each step, so that a matrix-vector product reads its bytes
// in one forward stream.
struct Packed {
    int64_t rows = 0, columns = 0, group = 1;
    Bytes bytes;

    int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
    int64_t steps() const { return (columns + kStepColumns - 1) / kStepColumns; }
    int64_t padded_rows() const { return blocks() * kBlockRows; }
    int64_t padded_columns() const { return steps() * kStepColumns; }
};

// Packs trits(column, row) = 2-bit two's complement, four to a byte, rows fastest (ONNX's INT2
// of shape [columns, rows]). Throws std::invalid_argument on a code that is no trit.
Packed pack_int2(const uint8_t* trits, int64_t columns, int64_t rows, int64_t group);
// The same from bytes of -1, 0, 1.
Packed pack_int8(const int8_t* trits, int64_t columns, int64_t rows, int64_t group);

struct Projection {
    Packed weight;
    int64_t parts = 1;                  // merged projections, each with its own scale
    std::vector<int32_t> k;             // [parts]
    std::vector<int32_t> shift;         // [parts]
    std::vector<int32_t> bias;          // [rows]
};

// sigmoid(z) by interpolation between segments, or by one entry for each z (step_bits 0).
struct Sigmoid {
    int32_t step_bits = 0;
    std::vector<int32_t> low, rise;     // [segments]
    std::vector<uint32_t> pairs;        // rise << 16 | low, if both fit in 16 bits
    Sigmoid() = default;
    Sigmoid(int32_t step, std::vector<int32_t> lows, std::vector<int32_t> rises);
    int32_t at(int32_t index) const;    // index = z - z_min
};

// The gates of an MLGRU; `candidate` is empty if it follows from the sigmoid.
struct Gates {
    Sigmoid sigmoid;
    std::vector<int32_t> candidate;     // [2^z_bits]
};

// The activation of a GLU: silu is empty if it follows from the sigmoid.
struct Silu {
    Sigmoid sigmoid;
    std::vector<int32_t> silu;          // [2^z_bits]
};

// Uses the short form only after comparing it with every entry of the table.
Gates read_gates(const Profile& profile, const double* table);
Silu read_silu(const Profile& profile, const double* table);

struct Mlgru {
    Profile profile;
    Projection fcg, out;
    Gates gates;
};

struct Glu {
    Profile profile;
    Projection gate_up, down;
    Silu silu;
};

struct Head {
    Profile profile;
    Projection head;
};

}  // namespace sterna
