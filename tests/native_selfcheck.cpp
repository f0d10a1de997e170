// Runs every kernel of this processor on random layers and compares it with the portable one.
//
// Each argument holds the numbers of a profile. Prints a line for each kernel and a hash of all
// results. The hash is the same on every machine, so a run on another instruction set is held to
// one that is tested against the integer reference. Exit code 1 if anything differs.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "kernel.hpp"

using namespace sterna;

namespace {

struct Shape { int64_t d, dff, vocab, length, batch; };

const Shape kShapes[] = {{1, 1, 2, 3, 1}, {12, 21, 65, 4, 2}, {64, 100, 256, 9, 3},
                         {130, 352, 70, 5, 4}};
using Numbers = std::map<std::string, int64_t>;

// From "x_bits=16,x_frac=11" and so on.
Numbers read_numbers(const std::string& text) {
    Numbers numbers;
    std::istringstream in(text);
    for (std::string each; std::getline(in, each, ',');) {
        const size_t at = each.find('=');
        numbers[each.substr(0, at)] = std::stoll(each.substr(at + 1));
    }
    return numbers;
}

struct Random {
    std::mt19937_64 bits;
    int64_t below(int64_t end) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(end)); }
    int64_t format(int32_t width) { return below(int64_t{1} << width) - (int64_t{1} << (width - 1)); }
};

Projection projection(Random& random, const Profile& p, int64_t rows, int64_t columns,
                      int64_t parts, int32_t bits, int64_t group) {
    std::vector<int8_t> trits(static_cast<size_t>(rows * columns));
    for (int8_t& trit : trits) trit = static_cast<int8_t>(random.below(3) - 1);
    Projection made;
    made.weight = pack_int8(trits.data(), columns, rows, group);
    made.parts = parts;
    for (int64_t part = 0; part < parts; ++part) {
        made.k.push_back(static_cast<int32_t>(random.below(int64_t{1} << p.mantissa_bits)));
        made.shift.push_back(static_cast<int32_t>(p.scale_bits - 4 + random.below(8)));
    }
    for (int64_t row = 0; row < rows; ++row) {
        made.bias.push_back(static_cast<int32_t>(random.format(bits)));
    }
    return made;
}

// A sigmoid by straight lines; what matters is that all kernels read it alike.
Sigmoid sigmoid(const Profile& p) {
    int32_t step = 0;
    while ((p.sigmoid_segments << step) < 1 << p.z_bits) ++step;
    std::vector<int32_t> lows, rises;
    const int32_t end = (1 << p.sigmoid_frac) - 1;
    for (int64_t i = 0; i < p.sigmoid_segments; ++i) {
        const int64_t low = end * i / p.sigmoid_segments, next = end * (i + 1) / p.sigmoid_segments;
        lows.push_back(static_cast<int32_t>(low));
        rises.push_back(step ? static_cast<int32_t>(next - low) : 0);
    }
    return Sigmoid(step, lows, rises);
}

std::vector<double> run(const Kernel& kernel, const Profile& p, const Shape& s, uint64_t seed) {
    Random random{std::mt19937_64(seed)};
    const int64_t tokens = s.length * s.batch;
    const auto values = [&](int64_t count, int32_t bits) {
        std::vector<double> made(static_cast<size_t>(count));
        for (double& value : made) value = static_cast<double>(random.format(bits));
        return made;
    };
    Mlgru mlgru{p, projection(random, p, 3 * s.d, s.d, 3, p.z_bits, kernel.group),
                projection(random, p, s.d, s.d, 1, p.x_bits, kernel.group), {sigmoid(p), {}}};
    Glu glu{p, projection(random, p, 2 * s.dff, s.d, 2, p.z_bits, kernel.group),
            projection(random, p, s.d, s.dff, 1, p.x_bits, kernel.group), {sigmoid(p), {}}};
    Head head{p, projection(random, p, s.vocab, s.d, 1, p.logit_bits, kernel.group)};
    std::vector<double> x = values(tokens * s.d, p.x_bits), h = values(s.batch * s.d, p.h_bits);
    std::fill(x.begin(), x.begin() + s.d, 0.0);
    std::vector<double> y(x.size()), h_next(h.size()), z(x.size());
    std::vector<double> logits(static_cast<size_t>(tokens * s.vocab)), all;
    kernel.mlgru(mlgru, x.data(), h.data(), s.length, s.batch, y.data(), h_next.data());
    kernel.glu(glu, y.data(), tokens, z.data());
    kernel.head(head, z.data(), tokens, logits.data());
    for (const auto& part : {y, h_next, z, logits}) all.insert(all.end(), part.begin(), part.end());
    return all;
}

// Whether the product equals its definition.
bool products(const Kernel& kernel, int64_t rows, int64_t columns, int64_t tokens) {
    Random random{std::mt19937_64(static_cast<uint64_t>(rows * columns))};
    std::vector<int8_t> trits(static_cast<size_t>(rows * columns));
    for (int8_t& trit : trits) trit = static_cast<int8_t>(random.below(3) - 1);
    const Packed packed = pack_int8(trits.data(), columns, rows, kernel.group);
    const int64_t stride = packed.padded_columns(), width = packed.padded_rows();
    const Bytes acts(static_cast<size_t>(tokens * stride));
    const Bytes acc(static_cast<size_t>(tokens * width * 4));
    int8_t* const q = reinterpret_cast<int8_t*>(acts.data());
    int32_t* const out = reinterpret_cast<int32_t*>(acc.data());
    std::memset(q, 0, acts.size());
    std::vector<int32_t> sums(static_cast<size_t>(tokens), 0);
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
            q[t * stride + i] = static_cast<int8_t>(t == 0 ? 127 : random.below(255) - 127);
            sums[t] += q[t * stride + i];
        }
    }
    kernel.matmul(packed, q, sums.data(), tokens, out);
    bool right = true;
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t row = 0; row < rows; ++row) {
            int32_t sum = 0;
            for (int64_t i = 0; i < columns; ++i) sum += trits[i * rows + row] * q[t * stride + i];
            right = right && out[t * width + row] == sum;
        }
    }
    return right;
}

}  // namespace

int main(int count, char** given) {
    bool right = true;
    uint64_t hash = 14695981039346656037ull;
    for (const char* name : {"portable", "avx2", "avx512vnni", "neon", "neon-dot"}) {
        const Kernel* kernel = nullptr;
        try {
            kernel = &find_kernel(name);
        } catch (const std::exception&) {
            continue;
        }
        bool same = true;
        for (const int64_t rows : {1, 16, 63, 130}) {
            for (const int64_t columns : {1, 16, 130, 1030}) {
                for (const int64_t tokens : {1, 2, 5}) {
                    same = same && products(*kernel, rows, columns, tokens);
                }
            }
        }
        for (int i = 1; i < count; ++i) {
            const Numbers numbers = read_numbers(given[i]);
            const Profile profile = read_profile([&](const char* each) {
                return numbers.at(each);
            });
            for (const Shape& shape : kShapes) {
                const uint64_t seed = static_cast<uint64_t>(shape.d + profile.x_bits);
                const std::vector<double> expected = run(kPortable, profile, shape, seed);
                const std::vector<double> got = run(*kernel, profile, shape, seed);
                same = same && got == expected;
                if (kernel == &kPortable) {
                    for (const double value : got) {
                        hash = (hash ^ static_cast<uint64_t>(static_cast<int64_t>(value)))
                            * 1099511628211ull;
                    }
                }
            }
        }
        std::printf("%s %s\n", name, same ? "exact" : "differs");
        right = right && same;
    }
    std::printf("hash %016llx\n", static_cast<unsigned long long>(hash));
    return right ? 0 : 1;
}
