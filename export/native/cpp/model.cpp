// Reading what the graph stores: profile, matrices, tables.
#include "model.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sterna {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;

struct Number {
    const char* name;
    int32_t Profile::*value;
    int32_t low, high;
};

constexpr int32_t kMaxSegments = 1 << 24;
constexpr Number kNumbers[] = {
    {"x_bits", &Profile::x_bits, 2, 24}, {"x_frac", &Profile::x_frac, 0, 24},
    {"z_bits", &Profile::z_bits, 2, 24}, {"z_frac", &Profile::z_frac, 0, 24},
    {"h_bits", &Profile::h_bits, 2, 24}, {"h_frac", &Profile::h_frac, 0, 24},
    {"o_bits", &Profile::o_bits, 2, 24}, {"o_frac", &Profile::o_frac, 0, 24},
    {"p_bits", &Profile::p_bits, 2, 24}, {"p_frac", &Profile::p_frac, 0, 24},
    {"logit_bits", &Profile::logit_bits, 2, 24}, {"logit_frac", &Profile::logit_frac, 0, 24},
    {"reciprocal_bits", &Profile::reciprocal_bits, 2, 24},
    {"root_frac", &Profile::root_frac, 0, 10}, {"scale_frac", &Profile::scale_frac, 0, 24},
    {"mantissa_bits", &Profile::mantissa_bits, 0, 24},
    {"scale_bits", &Profile::scale_bits, 0, 24}, {"sigmoid_frac", &Profile::sigmoid_frac, 1, 24},
    {"sigmoid_segments", &Profile::sigmoid_segments, 2, kMaxSegments},
};
static_assert(sizeof kNumbers / sizeof *kNumbers == sizeof(Profile) / sizeof(int32_t),
              "a number of Profile has no name");

void check(bool right, const std::string& what) {
    if (!right) throw std::invalid_argument(what);
}

int64_t round_shift(int64_t value, int32_t shift) {
    return shift == 0 ? value : (value + (int64_t{1} << (shift - 1))) >> shift;
}

// The table that NumericProfile.sigmoid_table() defines, as segments. The caller compares what
// it gives with the table of the graph, so a last bit of exp() decides about speed only.
Sigmoid define_sigmoid(const Profile& p) {
    const int32_t step_bits = p.z_bits - p.index_bits();
    const double limit = std::ldexp(1.0, p.z_bits - 1 - p.z_frac);
    const int32_t entries = p.sigmoid_segments;
    std::vector<int32_t> table(entries + 1);
    for (int32_t i = 0; i <= entries; ++i) {
        const double value = -limit + i * (2 * limit) / entries;
        const double exact = 1.0 / (1.0 + std::exp(-value));
        const double scaled = std::floor(std::ldexp(exact, p.sigmoid_frac) + 0.5);
        table[i] = static_cast<int32_t>(std::fmin(scaled, std::ldexp(1.0, p.sigmoid_frac) - 1));
    }
    std::vector<int32_t> rise(entries, 0);
    for (int32_t i = 0; i < entries && step_bits; ++i) rise[i] = table[i + 1] - table[i];
    table.pop_back();
    return Sigmoid(step_bits, std::move(table), std::move(rise));
}

std::vector<int32_t> read_table(
    const double* table, size_t count, double low, double high, int frac = 0) {
    std::vector<int32_t> values(count);
    for (size_t i = 0; i < count; ++i) {
        const double value = std::ldexp(table[i], frac);
        if (!(value == std::floor(value) && value >= low && value <= high)) {
            throw std::invalid_argument(
                "a table must hold whole numbers of its format, got " + std::to_string(value)
                + " at entry " + std::to_string(i));
        }
        values[i] = static_cast<int32_t>(value);
    }
    return values;
}

// Names the first weight that is no trit.
template <class Trit>
void refuse(Trit trit, int64_t columns, int64_t rows) {
    for (int64_t i = 0; i < columns * rows; ++i) {
        if (trit(i) > 2) {
            throw std::invalid_argument("element [" + std::to_string(i / rows) + ", "
                                        + std::to_string(i % rows) + "] is not -1, 0 or 1");
        }
    }
}

template <class Trit>
Packed pack(int64_t columns, int64_t rows, int64_t group, Trit trit) {
    check(columns >= 1 && columns <= kMaxColumns,
          "a matrix must have 1 to 65536 columns, got " + std::to_string(columns));
    check(rows >= 1, "a matrix must have at least one row");
    Packed packed;
    packed.rows = rows;
    packed.columns = columns;
    packed.group = group;
    const int64_t blocks = packed.blocks(), steps = packed.steps();
    packed.bytes = Bytes(static_cast<size_t>(blocks * steps * kBlockBytes));
    for (int64_t step = 0; step < steps; ++step) {
        const int64_t column = step * kStepColumns;
        const int64_t depth = columns - column < kStepColumns ? columns - column : kStepColumns;
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t row = block * kBlockRows;
            const int64_t height = rows - row < kBlockRows ? rows - row : kBlockRows;
            uint8_t bytes[kBlockBytes] = {};
            uint8_t worst = 0;
            for (int64_t c = 0; c < depth; ++c) {
                const int64_t field = 2 * (c / 4), from = (column + c) * rows + row;
                for (int64_t r = 0; r < height; ++r) {
                    const uint8_t code = trit(from + r);
                    worst = code > worst ? code : worst;
                    bytes[4 * r + c % 4] |= static_cast<uint8_t>(code << field);
                }
            }
            if (worst > 2) refuse(trit, columns, rows);
            const int64_t first = block / group * group;
            const int64_t width = first + group <= blocks ? group : blocks - first;
            std::memcpy(packed.bytes.data()
                            + (first * steps + step * width + (block - first)) * kBlockBytes,
                        bytes, kBlockBytes);
        }
    }
    return packed;
}

}  // namespace

int32_t Profile::index_bits() const {
    int32_t bits = 0;
    while ((1 << bits) < sigmoid_segments) ++bits;
    return bits;
}

bool Profile::narrow() const {
    const int32_t gate = sigmoid_frac;
    const int32_t products[] = {
        z_bits - 1 + gate, h_bits - 1 + gate, 2 * (z_bits - 1), gate + z_bits - index_bits()};
    const int32_t shifts[] = {candidate_shift(), output_shift(), product_shift(), gate};
    for (const int32_t bits : products) {
        if (bits > 30) return false;
    }
    for (const int32_t shift : shifts) {
        if (shift > 30) return false;
    }
    return true;
}

Profile read_profile(const std::function<int64_t(const char* name)>& number) {
    Profile p;
    for (const Number& each : kNumbers) {
        const int64_t value = number(each.name);
        check(value >= each.low && value <= each.high,
              std::string("attribute ") + each.name + " must be from " + std::to_string(each.low)
              + " to " + std::to_string(each.high) + ", got " + std::to_string(value));
        p.*each.value = static_cast<int32_t>(value);
    }
    for (const int32_t shift : {p.combine_shift(), p.candidate_shift(), p.output_shift(),
                                p.product_shift()}) {
        check(shift >= 0 && shift <= 48,
              "the attributes of the formats and of the scale contradict each other");
    }
    const int32_t segments = p.sigmoid_segments;
    check(!(segments & (segments - 1)) && segments <= 1 << p.z_bits,
          "attribute sigmoid_segments must be a power of two, at most one for each z");
    return p;
}

Bytes::Bytes(size_t size) : size_(size) {
    const bool large = size >= kHugePage;
    void* data = nullptr;
    if (posix_memalign(&data, large ? kHugePage : 64, size ? size : 1)) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    // Fewer page walks when the weights are cold; only a hint, and only for whole pages.
    if (large) madvise(data, size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    data_.reset(static_cast<uint8_t*>(data));
}

void Bytes::Free::operator()(uint8_t* data) const { std::free(data); }

Packed pack_int2(const uint8_t* trits, int64_t columns, int64_t rows, int64_t group) {
    // Two's complement plus one, in two bits: -1, 0, 1 give 0, 1, 2.
    return pack(columns, rows, group, [trits](int64_t i) {
        return static_cast<uint8_t>(((trits[i >> 2] >> (2 * (i & 3))) + 1) & 3);
    });
}

Packed pack_int8(const int8_t* trits, int64_t columns, int64_t rows, int64_t group) {
    return pack(columns, rows, group, [trits](int64_t i) {
        return static_cast<uint8_t>(trits[i] + 1);
    });
}

Sigmoid::Sigmoid(int32_t step, std::vector<int32_t> lows, std::vector<int32_t> rises)
    : step_bits(step), low(std::move(lows)), rise(std::move(rises)) {
    constexpr int32_t kEnd = 1 << 16;
    for (size_t i = 0; i < low.size(); ++i) {
        if (low[i] < 0 || low[i] >= kEnd || rise[i] < 0 || rise[i] >= kEnd) {
            pairs.clear();
            return;
        }
        pairs.push_back(static_cast<uint32_t>(rise[i]) << 16 | static_cast<uint32_t>(low[i]));
    }
}

int32_t Sigmoid::at(int32_t index) const {
    const int32_t i = index >> step_bits;
    const int64_t rest = index & ((1 << step_bits) - 1);
    return low[i] + static_cast<int32_t>(round_shift(rise[i] * rest, step_bits));
}

Gates read_gates(const Profile& p, const double* table) {
    const int32_t count = 1 << p.z_bits, z_min = -(count / 2);
    const std::vector<int32_t> sigmoid = read_table(
        table, count, 0, (1 << p.sigmoid_frac) - 1, p.sigmoid_frac);
    const std::vector<int32_t> output = read_table(
        table + 2 * count, count, 0, (1 << p.sigmoid_frac) - 1, p.output_shift());
    if (output != sigmoid) throw std::invalid_argument("the gates f and g must be equal");
    const int32_t h_max = (1 << (p.h_bits - 1)) - 1, h_min = -h_max - 1;
    std::vector<int32_t> candidate = read_table(table + count, count, h_min, h_max);
    Gates gates{define_sigmoid(p), {}};
    bool same = true;
    for (int32_t i = 0; i < count && same; ++i) {
        int64_t c = round_shift(int64_t{z_min + i} * sigmoid[i], p.candidate_shift());
        c = c < h_min ? h_min : c > h_max ? h_max : c;
        same = gates.sigmoid.at(i) == sigmoid[i] && c == candidate[i];
    }
    if (!same) {
        gates.sigmoid = Sigmoid(0, sigmoid, std::vector<int32_t>(count, 0));
        gates.candidate = std::move(candidate);
    }
    return gates;
}

Silu read_silu(const Profile& p, const double* table) {
    const int32_t count = 1 << p.z_bits, z_min = -(count / 2);
    std::vector<int32_t> values = read_table(
        table, count, z_min, -z_min, p.product_shift());
    Silu silu{define_sigmoid(p), {}};
    for (int32_t i = 0; i < count; ++i) {
        if (round_shift(int64_t{z_min + i} * silu.sigmoid.at(i), p.sigmoid_frac) != values[i]) {
            silu.silu = std::move(values);
            break;
        }
    }
    return silu;
}

}  // namespace sterna
