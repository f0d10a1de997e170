// Scratch memory within one call. The calling thread keeps it, as new pages from the system cost
// more than the arithmetic on them.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <new>

namespace sterna {

class Scratch {
  public:
    // Reserve `words` of 32 bits: the sum of size() over all arrays taken. The previous contents
    // are lost.
    static Scratch of(int64_t words) {
        thread_local int64_t size = 0;
        thread_local std::unique_ptr<int32_t[], Free> memory;
        if (words > size) {
            memory.reset();
            size = 0;
            memory.reset(static_cast<int32_t*>(::operator new[](
                static_cast<size_t>(words) * sizeof(int32_t), std::align_val_t{kAlignment})));
            size = words;
        }
        return Scratch(memory.get(), words);
    }

    template <class Value>
    Value* take(int64_t count) {
        Value* taken = reinterpret_cast<Value*>(next_);
        next_ += size<Value>(count);
        assert(next_ <= end_);
        return taken;
    }

    // The words used by take(): those of the values, padded to a full cache line, plus one line,
    // so that no two arrays share one.
    template <class Value>
    static int64_t size(int64_t count) {
        static_assert(sizeof(Value) % sizeof(int32_t) == 0);
        const int64_t words = count * static_cast<int64_t>(sizeof(Value) / sizeof(int32_t));
        return (words + kLine - 1) / kLine * kLine + kLine;
    }

  private:
    struct Free {
        void operator()(int32_t* memory) const {
            ::operator delete[](memory, std::align_val_t{kAlignment});
        }
    };
    static constexpr int64_t kLine = 16;    // words, which are 64 bytes
    static constexpr size_t kAlignment = 64;
    Scratch(int32_t* first, int64_t words) : next_(first), end_(first + words) {}
    int32_t* next_;
    const int32_t* end_;
};

}  // namespace sterna
