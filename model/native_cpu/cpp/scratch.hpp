// Memory between two parts of one call. It is kept by the thread that calls, as pages from the
// system cost more than the arithmetic on them.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace sterna {

class Scratch {
  public:
    // Where `words` of 32 bits and then more may stand; what was there before is lost.
    static Scratch of(int64_t words) {
        thread_local int64_t size = 0;
        thread_local std::unique_ptr<int32_t[], Free> memory;
        words += kSpare;
        if (words > size) {
            memory.reset();
            size = 0;
            memory.reset(static_cast<int32_t*>(::operator new[](
                static_cast<size_t>(words) * sizeof(int32_t), std::align_val_t{kAlignment})));
            size = words;
        }
        return Scratch(memory.get());
    }

    template <class Value>
    Value* take(int64_t count) {
        Value* taken = reinterpret_cast<Value*>(next_);
        next_ += padded(count * static_cast<int64_t>(sizeof(Value)) / 4 + 1);
        return taken;
    }

    // What take() needs for so many words.
    static int64_t padded(int64_t words) { return (words + kLine - 1) / kLine * kLine + kLine; }

  private:
    struct Free {
        void operator()(int32_t* memory) const {
            ::operator delete[](memory, std::align_val_t{kAlignment});
        }
    };
    static constexpr int64_t kLine = 16, kSpare = 64;
    static constexpr size_t kAlignment = 64;
    explicit Scratch(int32_t* next) : next_(next) {}
    int32_t* next_;
};

}  // namespace sterna
