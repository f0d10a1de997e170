// The interpreter of records. What each computes is defined in model/quantized/integer.py.
//
// Compiled once for each instruction set: a kernel_*.cpp opens a namespace, defines `dot`, and
// includes this file. Loops are written so that the compiler turns them into vector code; a
// result may take the slot of a value that it is made of, which the pragma tells the compiler.
#pragma once

#include "matmul.hpp"

// Rows that go through a record together; the weights are read once for all of them.
constexpr int64_t kTile = 64;
// Sums of a product that are scaled while they are in the nearest cache.
constexpr int64_t kSums = kTile * kBlocks * kBlockRows;
// Tiles of weights times rows, about 4 microseconds, that a thread computes at a time.
constexpr int64_t kPart = 1024;

inline int64_t half_of(int64_t shift) { return shift > 0 ? (int64_t{1} << shift) >> 1 : 0; }

// rs(value, shift); to the left if the shift is negative.
inline int64_t round_shift(int64_t value, int64_t shift) {
    return shift < 0 ? value << -shift : (value + half_of(shift)) >> shift;
}

// sat(rs(value(i), shift)) for every i. Wide is int32_t where all of it fits. GCC and clang shift
// negative numbers to the left as C++20 says.
template <class Wide, class Value>
inline void each(const Record& record, int32_t* out, Value value) {
    const int32_t left = static_cast<int32_t>(record.shift < 0 ? -record.shift : 0);
    const int32_t right = static_cast<int32_t>(record.shift < 0 ? 0 : record.shift);
    const Wide half = static_cast<Wide>(half_of(right));
    const Wide low = static_cast<Wide>(record.low), high = static_cast<Wide>(record.high);
    const int64_t n = record.width;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        const Wide shifted = ((value(i) << left) + half) >> right;
        out[i] = static_cast<int32_t>(std::clamp(shifted, low, high));
    }
}

template <class Wide>
inline void narrow(const Record& record, const int32_t* x, int32_t* out) {
    each<Wide>(record, out, [=](int64_t i) { return Wide{x[i]}; });
}

// Of a scale, y is the stored vector.
template <class Wide>
inline void multiply(const Record& record, const int32_t* x, const int32_t* y, int32_t* out) {
    each<Wide>(record, out, [=](int64_t i) { return Wide{x[i]} * y[i]; });
}

inline void add(const Record& record, const int32_t* x, const int32_t* y, int32_t* out) {
    const int32_t low = static_cast<int32_t>(record.low), high = static_cast<int32_t>(record.high);
    const int64_t n = record.width;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = std::clamp(x[i] + y[i], low, high);
}

// Wide is also the type of a pair in the table.
template <class Wide>
inline void sigmoid(const Record& record, const int32_t* x, int32_t* out) {
    constexpr int kHalfBits = 4 * sizeof(Wide);
    constexpr Wide kLow = (Wide{1} << kHalfBits) - 1;
    const Wide* const pairs = record.table->pairs<Wide>().data();
    const int32_t step = static_cast<int32_t>(record.shift), mask = (1 << step) - 1;
    const int32_t z_min = static_cast<int32_t>(record.low);
    const Wide half = static_cast<Wide>(half_of(step));
    const int64_t n = record.width;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        const int32_t index = x[i] - z_min;
        const Wide pair = pairs[index >> step], rise = pair >> kHalfBits;
        out[i] = static_cast<int32_t>((pair & kLow) + ((rise * (index & mask) + half) >> step));
    }
}

// h = rs(f * h + (1 - f) * c, frac), which is h + rs((1 - f) * (c - h), frac).
template <class Wide>
inline void recur(const Record& record, const int32_t* gate, const int32_t* c, int32_t* h,
                  int32_t* out) {
    const int32_t frac = static_cast<int32_t>(record.shift);
    const Wide half = static_cast<Wide>(half_of(frac)), one = static_cast<Wide>(Wide{1} << frac);
    const bool reverse = record.reverse;
    const Wide low = static_cast<Wide>(record.low), high = static_cast<Wide>(record.high);
    const int64_t n = record.width;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        const Wide f = reverse ? one - gate[i] : Wide{gate[i]};
        const Wide next = (f * h[i] + (one - f) * c[i] + half) >> frac;
        h[i] = out[i] = static_cast<int32_t>(std::clamp(next, low, high));
    }
}

// What lies in a slot behind activations of `columns`, and alone in that of a number.
struct Scale {
    int64_t value;
    int32_t sum;        // of the activations
};

inline int32_t largest(const int32_t* y, int64_t n) {
    int32_t m = 0;
    for (int64_t i = 0; i < n; ++i) m = std::max(m, std::abs(y[i]));
    return m;
}

// Activations of 8 bits with their sum; returns the sum of their squares.
template <class Wide>
inline int32_t quantize(const int32_t* __restrict y, int32_t m, int32_t k, int64_t n,
                        int8_t* __restrict acts, int32_t& sum) {
    // |y * r| <= 127 << k, so it and its half fit in 32 bits while k <= 24.
    const Wide r = static_cast<Wide>((int64_t{127} << k) / (m > 1 ? m : 1));
    const Wide half = static_cast<Wide>(half_of(k));
    int32_t total = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t q = static_cast<int32_t>((y[i] * r + half) >> k);
        acts[i] = static_cast<int8_t>(q);
        total += q;
        squares += q * q;           // 127 * 127 * 65,536 < 2^31
    }
    for (int64_t i = n; i < round_up(n, kStepColumns); ++i) acts[i] = 0;
    sum = total;
    return squares;
}

inline int64_t sum_of_squares(const int32_t* x, int64_t n) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += int64_t{x[i]} * x[i];
    return total;
}

// Below 2^52 float64 and its root are exact.
inline int64_t isqrt(int64_t value) {
    return static_cast<int64_t>(__builtin_sqrt(static_cast<double>(value)));
}

// out = sat(rs(acc * a, shift) + bias).
inline void requantize(const Record& record, const int32_t* __restrict acc, int64_t a,
                       const int32_t* __restrict bias, int64_t n, int32_t* __restrict out) {
    const int32_t shift = static_cast<int32_t>(record.shift);
    const int32_t scale = static_cast<int32_t>(a);
    const int64_t half = half_of(shift), low = record.low, high = record.high;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t value = ((int64_t{acc[i]} * scale + half) >> shift) + bias[i];
        out[i] = static_cast<int32_t>(std::clamp(value, low, high));
    }
}

// A tile of rows, with the values of all slots.
struct Tile {
    const Model& model;
    const Call& call;
    Line* lines;
    int64_t first, rows;        // of the call

    uint8_t* at(int64_t slot, int64_t row) const {
        const Slot& place = model.slots[static_cast<size_t>(slot)];
        return lines[place.first_line * rows + row * place.lines].bytes;
    }
    int32_t* vector(int64_t slot, int64_t row) const {
        return reinterpret_cast<int32_t*>(at(slot, row));
    }
    int8_t* acts(int64_t slot, int64_t row) const {
        return reinterpret_cast<int8_t*>(at(slot, row));
    }
    Scale& scale(int64_t slot, int64_t row, int64_t columns) const {
        return *reinterpret_cast<Scale*>(at(slot, row) + round_up(columns, sizeof(Line)));
    }
    int64_t& number(int64_t slot, int64_t row) const { return scale(slot, row, 0).value; }
    int32_t* logits(int64_t row) const {
        const int64_t position = (first + row) / call.batch - call.from;
        const int64_t sequence = (first + row) % call.batch;
        return call.logits + (sequence * (call.length - call.from) + position) * model.logits;
    }
};

// Blocks first to first + count of a ternary product, for rows `begin` and later.
inline void project(const Record& record, const Tile& tile, int64_t begin, int64_t first,
                    int64_t count) {
    alignas(64) int32_t acc[kSums];
    int32_t sums[kTile];
    const int64_t rows = tile.rows - begin, from = first * kBlockRows, width = count * kBlockRows;
    for (int64_t row = 0; row < rows; ++row) {
        sums[row] = tile.scale(record.x, begin + row, record.columns).sum;
    }
    const int64_t stride = tile.acts(record.x, 1) - tile.acts(record.x, 0);
    multiply_blocks(record.matrix, first, count, tile.acts(record.x, begin), stride, sums, rows,
                    acc, width);
    for (int64_t row = 0; row < rows; ++row) {
        int32_t* const out = record.result == kLogits ? tile.logits(begin + row)
                                                      : tile.vector(record.result, begin + row);
        const int64_t scale = round_shift(
            tile.scale(record.x, begin + row, record.columns).value * record.mantissa,
            record.combine_shift);
        requantize(record, acc + row * width, scale, record.vector.data() + from,
                   std::min(width, record.width - from), out + from);
    }
}

// Products in a row do not read each other's results: all their parts may run at the same time.
inline void project_all(const Record* record, const Record* end, const Tile& tile, int64_t begin) {
    const int64_t rows = tile.rows - begin;
    if (rows <= 0) return;
    // Blocks of a part: as many as its sums allow, and no more than pay for a thread.
    const auto group = [rows](const Record& each) {
        const int64_t most = std::min(kSums / kBlockRows, kPart / each.matrix.steps()) / rows;
        return std::max<int64_t>(most / kBlocks, 1) * kBlocks;
    };
    const auto parts = [group](const Record& each) {
        return round_up(each.matrix.blocks(), group(each)) / group(each);
    };
    int64_t count = 0;
    for (const Record* each = record; each != end; ++each) count += parts(*each);
    const auto compute_part = [&](int64_t part) {
        const Record* each = record;
        for (; part >= parts(*each); ++each) part -= parts(*each);
        const int64_t first = part * group(*each);
        project(*each, tile, begin, first,
                std::min(group(*each), each->matrix.blocks() - first));
    };
    if (count == 1) return compute_part(0);
    tile.call.parallel(count, std::cref(compute_part));
}

inline void embed(const Record& record, const Tile& tile, int64_t row, int32_t* out) {
    const Call& call = tile.call;
    const int64_t at = tile.first + row, n = record.width;
    const int64_t token = call.tokens[at % call.batch * call.length + at / call.batch];
    const auto copy = [=](const auto* rows) {
        for (int64_t i = 0; i < n; ++i) out[i] = rows[token * n + i];
    };
    if (tile.model.short_embedding) {
        copy(static_cast<const Int16*>(tile.model.embedding));
    } else {
        copy(static_cast<const Int32*>(tile.model.embedding));
    }
}

// Any record but a product, for one row.
inline void compute(const Record& r, const Tile& tile, int64_t row) {
    int32_t* const out = tile.vector(r.result, row);
    const int32_t* const x = tile.vector(r.x, row);     // slot 0 where nothing is read
    const int32_t* const y = tile.vector(r.y, row);
    switch (r.kind) {
        case Kind::kEmbedding:
            return embed(r, tile, row, out);
        case Kind::kNarrow:
            return r.narrow ? narrow<int32_t>(r, x, out) : narrow<int64_t>(r, x, out);
        case Kind::kScale:
            return r.narrow ? multiply<int32_t>(r, x, r.vector.data(), out)
                            : multiply<int64_t>(r, x, r.vector.data(), out);
        case Kind::kMultiply:
            return r.narrow ? multiply<int32_t>(r, x, y, out) : multiply<int64_t>(r, x, y, out);
        case Kind::kAdd:
            return add(r, x, y, out);
        case Kind::kSigmoid:
            return r.narrow ? sigmoid<int32_t>(r, x, out) : sigmoid<int64_t>(r, x, out);
        case Kind::kRecur: {
            const int64_t sequence = (tile.first + row) % tile.call.batch;
            int32_t* const h =
                tile.call.state + (r.state * tile.call.batch + sequence) * r.width;
            return r.narrow ? recur<int32_t>(r, x, y, h, out) : recur<int64_t>(r, x, y, h, out);
        }
        case Kind::kEnergy:
            tile.number(r.result, row) =
                round_shift(sum_of_squares(x, r.width) * r.mantissa, r.shift);
            return;
        case Kind::kRoot: {
            const int64_t extra = r.y == r.x ? 0 : tile.number(r.y, row);
            const int64_t s = sum_of_squares(x, r.width) + r.epsilon + extra;
            const int64_t root = isqrt(s << (2 * r.root_frac));
            tile.number(r.result, row) = std::max<int64_t>(root, 1);
            return;
        }
        case Kind::kNorm:
        case Kind::kQuantize: {
            Scale& scale = tile.scale(r.result, row, r.width);
            int8_t* const acts = tile.acts(r.result, row);
            const int32_t m = largest(x, r.width), k = static_cast<int32_t>(r.reciprocal_bits);
            const int32_t squares = r.narrow ? quantize<int32_t>(x, m, k, r.width, acts, scale.sum)
                                             : quantize<int64_t>(x, m, k, r.width, acts, scale.sum);
            if (r.kind == Kind::kNorm) {
                const int64_t least = int64_t{127} << r.root_frac;
                const int64_t root = isqrt(int64_t{squares} << (2 * r.root_frac));
                scale.value = (int64_t{127} << (r.scale_frac + r.root_frac))
                    / std::max(root, least);
            } else {
                const uint64_t most = (uint64_t{1} << r.scale_frac) - 1;
                const uint64_t value = (static_cast<uint64_t>(m) << r.shift)
                    / static_cast<uint64_t>(tile.number(r.y, row));
                scale.value = static_cast<int64_t>(std::min(value, most));
            }
            return;
        }
        default:        // a product
            return;
    }
}

void run(const Model& model, const Call& call) {
    static thread_local std::vector<Line> lines;    // kept by each thread from call to call
    const int64_t rows = call.length * call.batch, wanted = call.from * call.batch;
    const int64_t tile_rows = std::min(rows, kTile);
    if (lines.size() < static_cast<size_t>(model.lines * tile_rows)) {
        lines = std::vector<Line>(static_cast<size_t>(model.lines * tile_rows));
    }
    const std::vector<Record>& records = model.records;
    const int64_t count = static_cast<int64_t>(records.size());
    for (int64_t first = 0; first < rows; first += kTile) {
        const Tile tile{model, call, lines.data(), first, std::min(kTile, rows - first)};
        // Rows before this one need no logits: no record after the last recurrence.
        const int64_t begin = std::max<int64_t>(wanted - first, 0);
        for (int64_t at = 0, product = 0, end = 0; at < count; at = end) {
            product = at;
            while (records[product].kind != Kind::kProject) ++product;
            end = product;
            while (end < count && records[end].kind == Kind::kProject) ++end;
            // Between products row by row, so that a value is still near when it is read.
            for (int64_t row = 0; row < tile.rows; ++row) {
                const int64_t last =
                    row < begin ? std::min(product, model.last_recur + 1) : product;
                for (int64_t i = at; i < last; ++i) compute(records[i], tile, row);
            }
            project_all(&records[product], records.data() + end, tile,
                        product > model.last_recur ? begin : 0);
        }
    }
}
