// Reading a program: its records, their constants, and the proof that nothing overflows.
#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace sterna {
namespace {

using std::to_string;

// Largest magnitude of a value that is read, save by an addition.
constexpr double kWidest = 1 << 24;

void check(bool right, const std::string& what) {
    if (!right) throw std::invalid_argument(what);
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i ? ", " : "") + (shape[i] < 0 ? "any" : to_string(shape[i]));
    }
    return text + "]";
}

std::string type_text(int type) {
    return type == kUint8 ? "uint8" : type == kInt16 ? "int16" : type == kInt32 ? "int32"
        : type == kInt64 ? "int64" : type == kDouble ? "float64" : "another type";
}

// What a slot holds, from `low` to `high`: a vector, activations with their scale, or a number.
// It holds the same kind and width wherever it is written, so that no two kinds share memory.
enum class Holds { kNothing, kVector, kActs, kNumber };
struct Value {
    Holds holds = Holds::kNothing;
    int64_t width = 0;
    double low = 0, high = 0;

    double reach() const { return std::max(-low, high); }
};

// Names the first code that is no trit; the filling counts, too.
void check_codes(const std::string& name, const Matrix& matrix) {
    const int64_t count = matrix.blocks() * matrix.steps() * kBlockBytes;
    uint64_t wrong = 0;
    for (int64_t at = 0; at < count; at += 8) {
        uint64_t codes;
        std::memcpy(&codes, matrix.weight + at, 8);
        wrong |= codes & codes >> 1;
    }
    if (!(wrong & 0x5555555555555555u)) return;
    int64_t at = 0;
    const auto bad = [&] { return matrix.weight[at] & matrix.weight[at] >> 1 & 0x55; };
    while (!bad()) ++at;
    const int64_t tile = at / kBlockBytes, steps = matrix.steps();
    throw std::invalid_argument(
        name + ": element " + shape_text({tile / steps, tile % steps, at % 64 / 4, at % 4})
        + " holds a code that is not -1, 0 or 1");
}

class Reader {
public:
    Reader(Model& model, const std::function<Tensor(int64_t)>& constant)
        : model_(model), constant_(constant) {}

    void read(Record& r, const std::string& name) {
        name_ = name;
        // What has no such number holds 0.
        constexpr int64_t kMost = 1 << 24, kLimit = 1 << 30;
        const struct { const char* name; int64_t value, low, high; } ranges[] = {
            {"width", r.width, 1, kMost}, {"columns", r.columns, 0, kMost},
            {"low", r.low, -kLimit, 0}, {"high", r.high, 0, kLimit}, {"shift", r.shift, -40, 62},
            {"mantissa", r.mantissa, 0, kMost}, {"combine_shift", r.combine_shift, 0, 48},
            {"reciprocal_bits", r.reciprocal_bits, 0, 48}, {"root_frac", r.root_frac, 0, 26},
            {"scale_frac", r.scale_frac, 0, 48}, {"epsilon", r.epsilon, 0, int64_t{1} << 52},
            {"constant", r.constant, 0, kMost}};
        for (const auto& each : ranges) {
            require(each.value >= each.low && each.value <= each.high,
                    std::string(each.name) + " must be from " + to_string(each.low) + " to "
                    + to_string(each.high) + ", got " + to_string(each.value));
        }
        switch (r.kind) {
            case Kind::kEmbedding: return embedding(r);
            case Kind::kNarrow: return narrow(r, vector(r.x, r.width).reach());
            case Kind::kScale: return scale(r);
            case Kind::kNorm: return norm(r);
            case Kind::kEnergy: return energy(r);
            case Kind::kRoot: return root(r);
            case Kind::kQuantize: return quantize(r);
            case Kind::kProject: return project(r);
            case Kind::kSigmoid: return sigmoid(r);
            case Kind::kRecur: return recur(r);
            case Kind::kMultiply:
                return narrow(r, vector(r.x, r.width).reach() * vector(r.y, r.width).reach());
            case Kind::kAdd: return add(r);
            default: require(false, "kind " + to_string(int64_t(r.kind)) + " is not known");
        }
    }

    void place() {
        for (const Value& value : values_) {
            const int64_t bytes = value.holds == Holds::kVector ? 4 * value.width
                : value.holds == Holds::kActs ? round_up(value.width, sizeof(Line)) + 1 : 1;
            const int64_t lines = round_up(bytes, sizeof(Line)) / int64_t{sizeof(Line)};
            model_.slots.push_back({model_.lines, lines});
            model_.lines += lines;
        }
    }

private:
    void require(bool right, const std::string& what) const {
        check(right, "record " + name_ + ": " + what);
    }

    // Whether rs(value, shift), |value| <= reach, fits in 32 bits; it must fit in 62.
    bool fits(double reach, int64_t shift) const {
        const double largest = shift < 0 ? std::ldexp(reach, int(-shift))
            : reach + std::ldexp(0.5, int(shift));
        require(largest < 0x1p62, "its numbers need more than 62 bits");
        return largest < 0x1p31 && shift > -32;
    }

    const Value& value(int64_t slot, Holds holds, int64_t width) const {
        require(slot >= 0 && slot < static_cast<int64_t>(values_.size())
                    && values_[slot].holds == holds && values_[slot].width == width,
                "slot " + to_string(slot) + " does not hold what it reads, "
                + to_string(width) + " values");
        return values_[slot];
    }
    const Value& vector(int64_t slot, int64_t width) const {
        const Value& read = value(slot, Holds::kVector, width);
        require(read.reach() <= kWidest,
                "it reads a result that is not saturated, which only additions may");
        return read;
    }

    void give(const Record& r, Holds holds, int64_t width, double low, double high) {
        if (r.result == kLogits && r.kind == Kind::kProject) return;
        require(r.result >= 0 && r.result <= static_cast<int64_t>(values_.size()),
                "slots must be numbered from 0 on, got " + to_string(r.result));
        if (r.result == static_cast<int64_t>(values_.size())) values_.push_back({holds, width});
        Value& to = values_[r.result];
        require(to.holds == holds && to.width == width,
                "slot " + to_string(r.result) + " is of another kind or width");
        to.low = low;
        to.high = high;
    }
    void saturated(const Record& r) {
        give(r, Holds::kVector, r.width, double(r.low), double(r.high));
    }

    // A copy, whose numbers lie where they may.
    template <class T>
    std::vector<T> constant(int64_t index, const std::string& name, int type,
                            int64_t count) const {
        const Tensor tensor = constant_(index);
        const void* const from = tensor.expect(name, type, {count});
        std::vector<T> copy(static_cast<size_t>(tensor.count()));
        if (!copy.empty()) std::memcpy(copy.data(), from, copy.size() * sizeof(T));
        return copy;
    }

    void embedding(Record& r) {
        require(!model_.vocab, "there can be only one");
        const Tensor table = constant_(r.constant);
        model_.short_embedding = table.type == kInt16;
        const std::vector<int64_t> shape = {r.columns, r.width};
        const auto leaves = [&r](const auto* from) {
            return std::any_of(from, from + r.columns * r.width, [&r](int64_t each) {
                return each < r.low || each > r.high;
            });
        };
        const bool wrong = model_.short_embedding
            ? leaves(table.as<Int16>("embedding", kInt16, shape))
            : leaves(table.as<Int32>("embedding", kInt32, shape));
        check(!wrong, "embedding must be from " + to_string(r.low) + " to " + to_string(r.high));
        model_.vocab = r.columns;
        model_.embedding = table.data;
        saturated(r);
    }

    // Also a product: `reach` is what may be shifted.
    void narrow(Record& r, double reach) {
        r.narrow = fits(reach, r.shift);
        saturated(r);
    }

    void scale(Record& r) {
        const std::vector<double> from = constant<double>(
            r.constant, name_ + ".vector", kDouble, r.width);
        for (int64_t i = 0; i < r.width; ++i) {
            check(std::fabs(from[i]) <= kWidest && from[i] == std::floor(from[i]),
                  name_ + ".vector must be whole numbers of 24 bits, got " + to_string(from[i]));
            r.vector.push_back(static_cast<int32_t>(from[i]));
        }
        narrow(r, vector(r.x, r.width).reach() * kWidest);
    }

    void acts(Record& r) {
        require(r.width <= kMaxColumns, "width must be at most 65536");
        r.narrow = fits(std::ldexp(127, int(r.reciprocal_bits)), r.reciprocal_bits);
        give(r, Holds::kActs, r.width, 0, std::ldexp(1, int(r.scale_frac)));
    }

    void norm(Record& r) {
        vector(r.x, r.width);
        exact_root(127.0 * 127 * double(r.width), r.root_frac);
        require(r.scale_frac + r.root_frac <= 48, "scale_frac and root_frac are too large");
        acts(r);
    }

    void exact_root(double squares, int64_t root_frac) const {
        require(std::ldexp(squares, int(2 * root_frac)) < 0x1p52,
                "a sum of squares needs more than 52 bits");
    }

    double squares(const Record& r) const {
        const double reach = vector(r.x, r.width).reach();
        return reach * reach * double(r.width);
    }

    void energy(Record& r) {
        const double reach = squares(r) * double(r.mantissa);
        fits(reach, r.shift);
        give(r, Holds::kNumber, 1, 0, std::ldexp(reach, int(-r.shift)) + 1);
    }

    void root(Record& r) {
        const double extra = r.y == r.x ? 0 : value(r.y, Holds::kNumber, 1).high;
        exact_root(squares(r) + double(r.epsilon) + extra, r.root_frac);
        give(r, Holds::kNumber, 1, 1, 0x1p26);
    }

    void quantize(Record& r) {
        const Value& divisor = value(r.y, Holds::kNumber, 1);
        require(divisor.low >= 1, "it divides by a number that may be 0");
        require(r.shift >= 0, "shift must not be negative");
        require(std::ldexp(vector(r.x, r.width).reach(), int(r.shift)) <= 0x1p63,
                "its scale needs more than 64 bits");
        acts(r);
    }

    void project(Record& r) {
        const Value& acts = value(r.x, Holds::kActs, r.columns);
        r.matrix = Matrix(nullptr, r.width, r.columns);
        r.matrix.weight = constant_(r.constant).as<uint8_t>(
            name_ + ".weight", kUint8, {r.matrix.blocks(), r.matrix.steps(), 16, 4});
        check_codes(name_ + ".weight", r.matrix);
        r.vector = constant<int32_t>(r.constant + 1, name_ + ".bias", kInt32, r.width);
        const double unshifted = acts.high * double(r.mantissa);
        fits(unshifted, r.combine_shift);
        const double scale = std::ldexp(unshifted, int(-r.combine_shift)) + 1;
        require(scale < 0x1p31 && r.shift >= 0, "its scale needs more than 31 bits");
        const double reach = 127 * double(r.columns) * scale;
        fits(reach, r.shift);
        double most = 0;
        for (int64_t i = 0; i < r.width; ++i) most = std::max(most, std::fabs(double(r.vector[i])));
        // One that does not saturate is clipped far beyond where an addition does.
        most += std::ldexp(reach, int(-r.shift)) + 1;
        give(r, Holds::kVector, r.width, std::max(-most, double(r.low)),
             std::min(most, double(r.high)));
        if (r.result == kLogits) model_.logits = r.width;
    }

    void sigmoid(Record& r) {
        const Value& x = vector(r.x, r.width);
        const std::vector<int32_t> from =
            constant<int32_t>(r.constant, "sigmoid.table", kInt32, -1);
        const int64_t count = static_cast<int64_t>(from.size()), segments = count - (r.shift > 0);
        require(r.shift >= 0 && r.shift <= 24 && segments >= 1 && segments <= 1 << 24
                    && x.low >= r.low && x.high - r.low < std::ldexp(segments, int(r.shift)),
                "its table does not cover what it reads");
        const auto ends = std::minmax_element(from.begin(), from.end());
        const double low = *ends.first, high = *ends.second;
        require(low >= 0 && high <= kWidest, "sigmoid.table must be from 0 to 2^24");
        // A record is narrow if its pairs are, too.
        double steepest = 0;
        for (int64_t i = 1; i < count; ++i) {
            steepest = std::max(steepest, std::fabs(double(from[i]) - from[i - 1]));
        }
        r.narrow = fits(std::ldexp(steepest, int(r.shift)), r.shift) && high < 0x1p16
            && (steepest < 0x1p15 || !r.shift);
        r.table = table(r, from, segments);
        give(r, Holds::kVector, r.width, low, high);
    }

    // One for all records alike, which read the same constant.
    const Table* table(const Record& r, const std::vector<int32_t>& from, int64_t segments) {
        Table& made = model_.tables[{r.constant, r.shift, r.reverse}];
        if (!made.wide.empty()) return &made;
        const int64_t end = segments - !r.shift;        // of the last entry
        for (int64_t i = 0; i < segments; ++i) {
            const int64_t low = from[r.reverse ? end - i : i];
            const int64_t rise = r.shift ? from[r.reverse ? end - i - 1 : i + 1] - low : 0;
            made.wide.push_back(rise * (int64_t{1} << 32) + low);
            if (r.narrow) made.narrow.push_back(static_cast<int32_t>(rise * (1 << 16) + low));
        }
        return &made;
    }

    void recur(Record& r) {
        const Value& gate = vector(r.x, r.width);
        const Value& c = vector(r.y, r.width);
        require(r.shift >= 0 && r.shift <= 40, "frac must be from 0 to 40");
        const double one = std::ldexp(1, int(r.shift)), h = double(std::max(-r.low, r.high));
        require(h <= kWidest, "the state must have at most 24 bits");
        // Between h and c, unless the gate leaves 0 to 1.
        const bool between = gate.low >= 0 && gate.high <= one && c.low >= double(r.low)
            && c.high <= double(r.high);
        r.narrow = fits(one * h, r.shift) && between;
        fits((one + gate.reach()) * (h + c.reach()), r.shift);
        if (!model_.states) {
            model_.width = r.width;
            model_.state_low = r.low;
            model_.state_high = r.high;
        }
        require(r.width == model_.width && r.low == model_.state_low && r.high == model_.state_high,
                "all states must have one width and format");
        r.state = model_.states++;
        saturated(r);
    }

    void add(Record& r) {
        const Value& x = value(r.x, Holds::kVector, r.width);
        const Value& y = value(r.y, Holds::kVector, r.width);
        require(x.reach() + y.reach() < 0x1p31, "its sum needs more than 32 bits");
        give(r, Holds::kVector, r.width, std::max(x.low + y.low, double(r.low)),
             std::min(x.high + y.high, double(r.high)));
    }

    Model& model_;
    const std::function<Tensor(int64_t)>& constant_;
    std::string name_;
    std::vector<Value> values_;
};

}  // namespace

Matrix::Matrix(const uint8_t* tiles, int64_t height, int64_t width)
    : weight(tiles), rows(height), columns(width) {
    check(columns >= 1 && columns <= kMaxColumns,
          "a matrix must have 1 to 65536 columns, got " + to_string(columns));
    check(rows >= 1, "a matrix must have at least one row");
}

int64_t Tensor::count() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

const void* Tensor::expect(
    const std::string& name, int wanted, const std::vector<int64_t>& sizes) const {
    check(type == wanted && std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end(),
                                       [](int64_t size, int64_t must) {
                                           return must < 0 || size == must;
                                       }),
          name + " must be " + type_text(wanted) + " " + shape_text(sizes) + ", got "
          + type_text(type) + " " + shape_text(shape));
    return data;
}

Model::Model(const Tensor& program, const std::string& names,
             const std::function<Tensor(int64_t)>& constant) {
    const int64_t* const numbers = program.as<int64_t>("program", kInt64, {-1, kFields});
    const int64_t count = program.shape[0];
    check(count == std::count(names.begin(), names.end(), '\n') + 1,
          "the program must have a name for each of its records, got " + to_string(count));
    records.resize(static_cast<size_t>(count));
    Reader reader(*this, constant);
    size_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
        Record& record = records[i];
        std::memcpy(static_cast<Numbers*>(&record), numbers + i * kFields, sizeof(Numbers));
        const size_t end = std::min(names.find('\n', begin), names.size());
        const std::string name = names.substr(begin, end - begin);
        begin = end + 1;
        reader.read(record, name);
        if (record.kind == Kind::kRecur) last_recur = i;
        check((record.result == kLogits) == (i == count - 1),
              "record " + name + ": the logits must be the last result, and of a project");
    }
    check(logits && vocab && states, "there must be an embedding, a recurrence and logits");
    reader.place();
    for (const Record& record : records) {      // those that are not read, too
        const int64_t end = static_cast<int64_t>(slots.size());
        check(record.x >= 0 && record.x < end && record.y >= 0 && record.y < end,
              "slots must be from 0 to " + to_string(end - 1));
    }
}

}  // namespace sterna
