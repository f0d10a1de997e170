// A verilated board top behind its pins: a clock, and a serial line to type and to read on.
//
// sterna.sim.bench.cpp_build compiles this file with what Verilator makes of the top module;
// sterna.sim.board calls the functions at the end. The host's UART keeps time of its own: a
// bit lasts clock / baud cycles, which need not be a whole number.

#include <cstdint>
#include <deque>
#include <memory>

#include "Vcore.h"
#include "verilated.h"
#include "waves.hpp"

namespace {

const int kDataBits = 8;
const int kFrameBits = kDataBits + 2;      // with start and stop bit

/// Sends bytes: a start bit, eight data bits from the lowest up, a stop bit.
class Sender {
  public:
    explicit Sender(double bit_cycles) : bit_cycles_(bit_cycles) {}
    void send(uint8_t byte) { queue_.push_back(byte); }
    size_t left() const { return queue_.size() + (sending_ ? 1 : 0); }
    bool level(uint64_t cycle) {
        const double now = static_cast<double>(cycle);
        if (sending_ && now >= start_ + kFrameBits * bit_cycles_) sending_ = false;
        if (!sending_) {
            if (queue_.empty()) return true;
            // Bytes that wait follow each other without a gap.
            const double free = start_ + kFrameBits * bit_cycles_;
            start_ = now - free < 1 ? free : now;
            frame_ = 1u << (kFrameBits - 1) | static_cast<unsigned>(queue_.front()) << 1;
            queue_.pop_front();
            sending_ = true;
        }
        return frame_ >> static_cast<int>((now - start_) / bit_cycles_) & 1;
    }

  private:
    const double bit_cycles_;
    std::deque<uint8_t> queue_;
    unsigned frame_ = 0;
    bool sending_ = false;
    double start_ = -1e9;
};

/// Receives bytes: samples each bit in its middle.
class Receiver {
  public:
    explicit Receiver(double bit_cycles) : bit_cycles_(bit_cycles) {}
    std::deque<uint8_t> bytes;
    uint64_t framing_errors = 0;

    void sample(uint64_t cycle, bool line) {
        const double now = static_cast<double>(cycle);
        if (bit_ < 0) {
            if (line) is_idle_ = true;
            if (line || !is_idle_) return;
            is_idle_ = false;
            bit_ = 0;
            byte_ = 0;
            next_ = now + bit_cycles_ / 2;
        }
        if (now < next_) return;
        next_ += bit_cycles_;
        if (bit_ == 0) {
            bit_ = line ? -1 : 1;
        } else if (bit_ <= kDataBits) {
            byte_ |= static_cast<unsigned>(line) << (bit_ - 1);
            ++bit_;
        } else {
            if (line) bytes.push_back(static_cast<uint8_t>(byte_));
            else ++framing_errors;
            is_idle_ = line;
            bit_ = -1;
        }
    }

  private:
    const double bit_cycles_;
    unsigned byte_ = 0;
    int bit_ = -1;
    bool is_idle_ = false;
    double next_ = 0;
};

struct Board {
    explicit Board(double bit_cycles) : sender(bit_cycles), receiver(bit_cycles) {
        context = std::make_unique<VerilatedContext>();
        top = std::make_unique<Vcore>(context.get(), "");
        top->rx = 1;
        top->eval();    // now, as it reads its memories from the current folder
    }
    ~Board() { top->final(); }

    void step() {
        top->rx = sender.level(cycle);
        top->clk = 0;
        top->eval();
        waves.dump();
        receiver.sample(cycle, top->tx);
        top->clk = 1;
        top->eval();
        waves.dump();
        busy_cycles += top->led != led_off;
        ++cycle;
    }

    std::unique_ptr<VerilatedContext> context;
    std::unique_ptr<Vcore> top;
    Waves waves;
    Sender sender;
    Receiver receiver;
    uint64_t cycle = 0, busy_cycles = 0;
    bool led_off = false;
};

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API void* board_new(double bit_cycles, int led_off) {
    auto* board = new Board(bit_cycles);
    board->led_off = led_off != 0;
    return board;
}

API void board_delete(void* board) { delete static_cast<Board*>(board); }

API void board_waves(void* board, const char* path) {
    auto& self = *static_cast<Board*>(board);
    self.waves.open(*self.context, *self.top, path);
}

API void board_send(void* board, const uint8_t* bytes, size_t count) {
    for (size_t index = 0; index < count; ++index)
        static_cast<Board*>(board)->sender.send(bytes[index]);
}

/// Run until so many bytes wait to be read, or for so many cycles; return how many wait.
API size_t board_run(void* board, size_t wanted, uint64_t cycles) {
    auto& self = *static_cast<Board*>(board);
    for (uint64_t left = cycles; left && self.receiver.bytes.size() < wanted; --left)
        self.step();
    return self.receiver.bytes.size();
}

API size_t board_receive(void* board, uint8_t* bytes, size_t count) {
    auto& queue = static_cast<Board*>(board)->receiver.bytes;
    size_t taken = 0;
    for (; taken < count && !queue.empty(); ++taken) {
        bytes[taken] = queue.front();
        queue.pop_front();
    }
    return taken;
}

API size_t board_unsent(void* board) { return static_cast<Board*>(board)->sender.left(); }
API uint64_t board_cycle(void* board) { return static_cast<Board*>(board)->cycle; }
API uint64_t board_busy_cycles(void* board) { return static_cast<Board*>(board)->busy_cycles; }
API uint64_t board_framing_errors(void* board) {
    return static_cast<Board*>(board)->receiver.framing_errors;
}
