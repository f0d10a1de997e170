// The ends of streams that a clock loop holds: a driver offers words, a sink takes them.
//
// Payloads are bytes, lowest first, which is how Verilator stores a signal of any width on a
// little-endian machine. Nothing here knows what flows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are taken as bytes");

namespace {

using Bytes = std::vector<uint8_t>;

struct Port {
    uint8_t* data = nullptr;
    size_t size = 0;

    bool high() const { return data[0] != 0; }
    void set(uint64_t value) {
        if (size == 0) return;
        std::memset(data, 0, size);
        std::memcpy(data, &value, std::min(size, sizeof value));
    }
    uint64_t get() const {
        uint64_t value = 0;
        std::memcpy(&value, data, std::min(size, sizeof value));
        return value;
    }
};

struct Ends {
    Port payload, valid, ready;
};

/// Cycles in which an end of a stream does nothing: some at random, some where a hold says so.
class Pauses {
  public:
    struct Hold {
        uint64_t first, end;
    };

    void seed(uint64_t seed) {
        state_ = seed;
        holds_.clear();
    }
    void hold(uint64_t first, uint64_t cycles) { holds_.push_back({first, first + cycles}); }
    bool held(uint64_t cycle) const {
        return std::any_of(holds_.begin(), holds_.end(), [cycle](const Hold& hold) {
            return hold.first <= cycle && cycle < hold.end;
        });
    }
    bool now(uint64_t cycle) {
        if (state_ == 0) return held(cycle);
        state_ ^= state_ << 13;         // xorshift64 (Marsaglia 2003)
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return (state_ >> 40) % 4 == 0 || held(cycle);
    }

  private:
    uint64_t state_ = 0;
    std::vector<Hold> holds_;
};

/// Takes the words of a stream, and sees that one that waits stays as it is.
class Sink {
  public:
    std::string name;
    Ends ends;
    Pauses pauses;
    Bytes words;                        // as many bytes each as the port has
    std::vector<uint64_t> taken_at;

    void begin() {
        words.clear();
        taken_at.clear();
        waiting_.clear();
    }
    void drive(uint64_t cycle) {
        taking_ = !pauses.now(cycle);
        ends.ready.set(taking_);
    }
    bool sample(uint64_t cycle) {
        if (!ends.valid.high()) {
            if (!waiting_.empty()) throw std::runtime_error(what() + " was withdrawn");
            return false;
        }
        const uint8_t* data = ends.payload.data;
        const size_t size = ends.payload.size;
        if (!waiting_.empty() && std::memcmp(waiting_.data(), data, size) != 0)
            throw std::runtime_error(what() + " changed while it waited to be taken");
        if (!taking_) {
            waiting_.assign(data, data + size);
            return false;
        }
        waiting_.clear();
        words.insert(words.end(), data, data + size);
        taken_at.push_back(cycle);
        return true;
    }

  private:
    std::string what() const { return "word " + std::to_string(taken_at.size()) + " of " + name; }

    bool taking_ = false;
    Bytes waiting_;
};

/// The handshake of the end that offers words; once offered, a word stays until it is taken.
class Driver {
  public:
    Ends ends;
    Pauses pauses;

    void begin() { offering_ = false; }
    bool wants(uint64_t cycle) {
        if (!offering_) offering_ = !pauses.now(cycle);
        return offering_;
    }
    void offer(bool valid) { ends.valid.set(valid); }
    bool sample() {
        if (!offering_ || !ends.valid.high() || !ends.ready.high()) return false;
        offering_ = false;
        return true;
    }

  private:
    bool offering_ = false;
};

}  // namespace
