// A model as the operator reads it: records, their formats, and where their constants lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

// A function that other programs find in the library by its name.
#define STERNA_PUBLIC extern "C" __attribute__((visibility("default")))

namespace sterna {

// A tile of a matrix: 16 rows of 4 bytes, 4 trits a byte, which are 16 columns.
constexpr int64_t kBlockRows = 16, kStepColumns = 16, kBlockBytes = 64;
// Columns of a matrix: what keeps every sum inside 32 bits.
constexpr int64_t kMaxColumns = 65536;
// Memory is counted in lines of the cache.
struct alignas(64) Line { uint8_t bytes[64]; };

inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// A ternary matrix in the layout of docs/native-ops.md: trits as codes 0, 1, 2 for -1, 0, 1. It
// lies where somebody else has put it.
struct Matrix {
    const uint8_t* weight = nullptr;
    int64_t rows = 0, columns = 0;

    Matrix() = default;
    // Throws std::invalid_argument unless it has 1 to kMaxColumns columns, and rows.
    Matrix(const uint8_t* weight, int64_t rows, int64_t columns);

    int64_t blocks() const { return round_up(rows, kBlockRows) / kBlockRows; }
    int64_t steps() const { return round_up(columns, kStepColumns) / kStepColumns; }
    int64_t padded_rows() const { return blocks() * kBlockRows; }
    int64_t padded_columns() const { return steps() * kStepColumns; }
};

// Numbers of a file that is mapped into memory: they may lie at any address.
using Int16 = int16_t __attribute__((aligned(1)));
using Int32 = int32_t __attribute__((aligned(1)));

// Element types of ONNX.
enum ElementType : int {
    kUndefined = 0, kUint8 = 2, kInt16 = 5, kInt32 = 6, kInt64 = 7, kDouble = 11,
};

struct Tensor {
    int type = kUndefined;
    std::vector<int64_t> shape;
    const void* data = nullptr;

    int64_t count() const;
    // Throws std::invalid_argument that names it unless it is of this type and shape; -1 is any
    // size.
    template <class T>
    const T* as(const std::string& name, int wanted, const std::vector<int64_t>& sizes) const {
        return static_cast<const T*>(expect(name, wanted, sizes));
    }
    const void* expect(
        const std::string& name, int wanted, const std::vector<int64_t>& sizes) const;
};

// The kinds of model/quantized/records.py, which export/native/program.py gives to the compiler.
enum class Kind : int64_t { STERNA_KINDS };

// A row of the program: a record in numbers, in the order of export/native/program.py. `result`,
// `x` and `y` are slots of values; what reads one alone has it as both.
struct Numbers {
    Kind kind;
    int64_t result, x, y, width, columns, low, high, shift, mantissa, combine_shift;
    int64_t reciprocal_bits, root_frac, scale_frac, epsilon, reverse, constant;
};
constexpr int64_t kFields = sizeof(Numbers) / sizeof(int64_t);
// The slot of the last result: the output of the operator.
constexpr int64_t kLogits = -1;

// A sigmoid as straight lines, `low + rise * rest` in each segment.
struct Table {
    std::vector<int32_t> narrow;        // rise << 16 | low, for records that are narrow
    std::vector<int64_t> wide;          // rise << 32 | low

    template <class Wide>
    const std::vector<Wide>& pairs() const {
        if constexpr (sizeof(Wide) == 4) return narrow; else return wide;
    }
};

struct Record : Numbers {
    bool narrow = false;                // all of it fits in 32 bits
    Matrix matrix;
    std::vector<int32_t> vector;        // of a scale; the biases of a project
    const Table* table = nullptr;
    int64_t state = 0;                  // of a recurrence
};

struct Slot { int64_t first_line = 0, lines = 0; };

// Reads a program and checks all that the arithmetic relies on: the kernels then neither read out
// of bounds nor overflow, whatever tokens and state a call brings (which it checks).
struct Model {
    std::vector<Record> records;
    std::vector<Slot> slots;
    // Of a constant, for a number of step bits, from one end or the other.
    std::map<std::array<int64_t, 3>, Table> tables;
    int64_t lines = 0;                  // of all slots
    int64_t vocab = 0, states = 0, width = 0, state_low = 0, state_high = 0;
    int64_t logits = 0;                 // of a position
    int64_t last_recur = 0;             // later records may be left out
    const void* embedding = nullptr;
    bool short_embedding = false;

    // `names` are those of the records, one a line; `constant(i)` is the i-th one. Throws
    // std::invalid_argument, which names the record or the tensor.
    Model(const Tensor& program, const std::string& names,
          const std::function<Tensor(int64_t)>& constant);
    Model(const Model&) = delete;
};

}  // namespace sterna
