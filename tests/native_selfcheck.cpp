// Runs every kernel of this processor on the models of a file and compares it with the reference.
//
// The file holds tensors one after the other: type, rank and sizes as int64, then the numbers. Of
// each case they are the program, the names of its records, tokens, the first position that is
// wanted, state, logits and state of the reference, and the constants, after their count. Prints a
// line for each kernel; exit code 1 if anything differs.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "kernel.hpp"

using namespace sterna;

namespace {

struct File {
    std::vector<char> bytes;
    size_t at = 0;

    explicit File(const char* path) {
        std::ifstream in(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    int64_t number() {
        int64_t value;
        std::memcpy(&value, bytes.data() + at, sizeof value);
        at += sizeof value;
        return value;
    }
    Tensor tensor() {
        Tensor made;
        made.type = static_cast<int>(number());
        made.shape.resize(static_cast<size_t>(number()));
        for (int64_t& size : made.shape) size = number();
        made.data = bytes.data() + at;
        const int64_t size = made.type == kInt32 ? 4 : made.type == kInt16 ? 2
            : made.type == kUint8 ? 1 : 8;
        at += static_cast<size_t>(round_up(made.count() * size, 8));
        return made;
    }
};

bool exact(const Kernel& kernel, File& file) {
    const Tensor program = file.tensor(), text = file.tensor();
    const std::string names(static_cast<const char*>(text.data), text.count());
    const Tensor tokens = file.tensor(), from = file.tensor(), state = file.tensor();
    const Tensor logits = file.tensor(), last = file.tensor();
    std::vector<Tensor> constants(static_cast<size_t>(file.number()));
    for (Tensor& constant : constants) constant = file.tensor();
    const Model model(program, names, [&](int64_t i) { return constants.at(i); });
    const int32_t* const before = static_cast<const int32_t*>(state.data);
    std::vector<int32_t> got(logits.count()), after(before, before + state.count());
    kernel.run(model, {static_cast<const int64_t*>(tokens.data), after.data(), got.data(),
                       tokens.shape[0], tokens.shape[1],
                       *static_cast<const int64_t*>(from.data),
                       [](int64_t count, const Part& part) {     // in any order
                           while (count) part(--count);
                       }});
    return !std::memcmp(got.data(), logits.data, got.size() * 4)
        && !std::memcmp(after.data(), last.data, after.size() * 4);
}

}  // namespace

int main(int, char** given) {
    bool right = true;
    for (const char* name : {"portable", "avx2", "avx512vnni", "neon", "neon-dot"}) {
        const Kernel* kernel = nullptr;
        try {
            kernel = &find_kernel(name);
        } catch (const std::invalid_argument&) {
            continue;
        }
        bool same = true;
        File file(given[1]);
        while (file.at < file.bytes.size()) same = exact(*kernel, file) && same;
        std::printf("%s %s\n", name, same ? "exact" : "differs");
        right = right && same;
    }
    return right ? 0 : 1;
}
