// The clock loop around a verilated core: feeds prompts, collects tokens and logits.
//
// sterna.sim.bench.cpp_build compiles this file with what Verilator makes of the core;
// sterna.sim.core.cpp_engine calls the functions at the end. Nothing here knows the model: ports
// are found by name when the core is made.
//
// A cycle: set the inputs, settle with the clock low, sample every handshake, rising edge. No stream
// ever waits here; benches in cocotb see to pauses. Payloads are bytes, lowest first, which is how
// Verilator stores a signal of any width on a little-endian machine.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "Vcore.h"
#include "verilated.h"
#include "verilated_syms.h"
#include "waves.hpp"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are taken as bytes");

namespace {

const uint64_t kDrainCycles = 64;       // after the end, in which nothing more may come

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

    bool passes() const { return valid.high() && ready.high(); }
};

/// Takes every word of a stream in the cycle in which it comes.
class Sink {
  public:
    Ends ends;
    Bytes words;                        // as many bytes each as the port has
    std::vector<uint64_t> taken_at;

    void begin() {
        words.clear();
        taken_at.clear();
    }
    void drive() { ends.ready.set(1); }
    bool sample(uint64_t cycle) {
        if (!ends.passes()) return false;
        const uint8_t* data = ends.payload.data;
        words.insert(words.end(), data, data + ends.payload.size);
        taken_at.push_back(cycle);
        return true;
    }
};

struct Request {
    uint64_t limit, stop, stop_token, beta, seed;
    std::vector<uint64_t> words;
};

/// A sequence: its requests, one after the other.
class Sequence {
  public:
    Port limit, stop, stop_token, beta, seed;
    Ends prompts;
    Sink tokens, logits;
    bool has_logits = false;
    std::vector<Request> requests;
    std::vector<uint64_t> taken_at;

    void begin() {
        requests.clear();
        taken_at.clear();
        tokens.begin();
        logits.begin();
        current_ = position_ = 0;
    }
    bool done() const { return current_ == requests.size(); }
    void drive() {
        tokens.drive();
        if (has_logits) logits.drive();
        // `ready` depends on registers and `go` only: it is known before the inputs are set.
        // It says that the sequence is idle, and only then may the control change.
        const bool offers = !done() && (position_ != 0 || prompts.ready.high());
        if (offers) {
            const Request& request = requests[current_];
            if (position_ == 0) {
                limit.set(request.limit);
                stop.set(request.stop);
                stop_token.set(request.stop_token);
                beta.set(request.beta);
                seed.set(request.seed);
            }
            prompts.payload.set(request.words[position_]);
        }
        prompts.valid.set(offers);
    }
    bool sample(uint64_t cycle) {
        bool moved = tokens.sample(cycle);
        if (has_logits && logits.sample(cycle)) moved = true;
        if (prompts.passes()) {
            moved = true;
            taken_at.push_back(cycle);
            if (++position_ == requests[current_].words.size()) {
                ++current_;
                position_ = 0;
            }
        }
        return moved;
    }
    std::string counts() const {
        size_t words = 0;
        for (const Request& request : requests) words += request.words.size();
        return std::to_string(taken_at.size()) + " of " + std::to_string(words)
               + " prompt tokens taken, " + std::to_string(tokens.taken_at.size())
               + " tokens and " + std::to_string(logits.taken_at.size())
               + " words of logits out";
    }

  private:
    size_t current_ = 0, position_ = 0;
};

/// Answers requests for runs of weight words from an array, in order.
class WeightSource {
  public:
    Ends requests, weights;
    unsigned first_bits = 0;
    Bytes words;

    void begin() { runs_.clear(); }
    bool idle() const { return runs_.empty(); }
    void drive() {
        requests.ready.set(1);
        const size_t size = weights.payload.size;
        if (!idle()) std::memcpy(weights.payload.data, &words[runs_.front().next * size], size);
        weights.valid.set(!idle());
    }
    bool sample() {
        bool moved = false;
        if (weights.passes()) {
            moved = true;
            if (++runs_.front().next == runs_.front().end) runs_.pop_front();
        }
        if (requests.passes()) {
            moved = true;
            const uint64_t request = requests.payload.get();
            const uint64_t first = request & ((uint64_t(1) << first_bits) - 1);
            const uint64_t count = request >> first_bits;
            const size_t all = words.size() / weights.payload.size;
            if (count == 0 || first + count > all)
                throw std::runtime_error(
                    "weight words " + std::to_string(first) + " to "
                    + std::to_string(first + count) + " were asked for; there are "
                    + std::to_string(all));
            runs_.push_back({first, first + count});
        }
        return moved;
    }

  private:
    struct Run {
        uint64_t next, end;
    };
    std::deque<Run> runs_;
};

}  // namespace

/// A core and both ends of all its streams.
class Core {
  public:
    enum Stream { PROMPTS, TOKENS, LOGITS };
    enum Status { RUNNING, DONE, FAILED };

    std::string error;
    std::vector<Sequence> sequences;
    WeightSource source;
    uint64_t cycle = 0, patience = 0;
    Port cycles;

    Core(unsigned sequence_count, bool logits, bool external_weights)
        : external_{external_weights} {
        clk_ = port("clk");
        rst_ = port("rst");
        go_ = port("go");
        busy_ = port("busy");
        cycles = port("cycles");
        sequences.resize(sequence_count);
        for (unsigned index = 0; index < sequence_count; ++index) {
            Sequence& sequence = sequences[index];
            const std::string at = "__" + std::to_string(index);
            const std::string control = "control" + at + "__";
            sequence.limit = port(control + "limit");
            sequence.stop = port(control + "stop");
            sequence.stop_token = port(control + "stop_token");
            if (has("TOP", control + "beta")) {     // it can draw tokens
                sequence.beta = port(control + "beta");
                sequence.seed = port(control + "seed");
            }
            sequence.prompts = ends("prompts" + at);
            sequence.tokens.ends = ends("tokens" + at);
            sequence.has_logits = logits;
            if (logits) sequence.logits.ends = ends("logits" + at);
        }
        if (external_) {
            source.requests = ends("weight_requests");
            source.weights = ends("weights");
        }
        begin(1);
    }
    ~Core() {
        Verilated::threadContextp(context_.get());
        model_.reset();
    }

    bool has(const std::string& scope, const std::string& name) {
        const VerilatedScope* found = context_->scopeFind(scope.c_str());
        return found && found->varFind(name.c_str());
    }
    const VerilatedVar* variable(const std::string& scope, const std::string& name) {
        const VerilatedScope* found = context_->scopeFind(scope.c_str());
        const VerilatedVar* variable = found ? found->varFind(name.c_str()) : nullptr;
        if (!variable) throw std::runtime_error("the design has no " + scope + "." + name);
        return variable;
    }

    /// Reset the core, and forget what it was asked for.
    void begin(uint64_t patience_cycles) {
        cycle = idle_ = drained_ = 0;
        finished_ = false;
        patience = patience_cycles;
        go_.set(1);
        rst_.set(1);
        for (Sequence& sequence : sequences) {
            sequence.begin();
            sequence.prompts.valid.set(0);
            sequence.tokens.ends.ready.set(0);
            if (sequence.has_logits) sequence.logits.ends.ready.set(0);
        }
        source.begin();
        if (external_) {
            source.weights.valid.set(0);
            source.requests.ready.set(0);
        }
        settle();
        rise();
        rst_.set(0);
        clk_.set(0);
        model_->eval();
    }

    void open_waves(const char* path) { waves_.open(*context_, *model_, path); }

    Status run(uint64_t count) {
        for (; count > 0; --count) {
            finished_ = finished_ || is_idle();
            if (finished_ && drained_++ == kDrainCycles) return DONE;
            for (Sequence& sequence : sequences) sequence.drive();
            if (external_) source.drive();
            settle();
            bool moved = false;
            for (Sequence& sequence : sequences)
                if (sequence.sample(cycle)) moved = true;
            if (external_ && source.sample()) moved = true;
            if (finished_ && (moved || !is_idle()))
                throw std::runtime_error("something came out after the end" + counts());
            idle_ = moved ? 0 : idle_ + 1;
            if (idle_ > patience)
                throw std::runtime_error(
                    "nothing moved for " + std::to_string(patience) + " cycles" + counts());
            rise();
            if (!finished_) ++cycle;
        }
        return RUNNING;
    }

  private:
    Port port(const std::string& name) {
        const VerilatedVar* found = variable("TOP", name);
        return {static_cast<uint8_t*>(found->datap()), found->entSize()};
    }
    Ends ends(const std::string& name) {
        return {port(name + "__payload"), port(name + "__valid"), port(name + "__ready")};
    }
    void settle() {
        clk_.set(0);
        model_->eval();
        waves_.dump();
    }
    void rise() {
        clk_.set(1);
        model_->eval();
        waves_.dump();
    }
    bool is_idle() const {
        return !busy_.high() && (!external_ || source.idle())
               && std::all_of(sequences.begin(), sequences.end(), [](const Sequence& each) {
                      return each.done() && !each.tokens.ends.valid.high()
                             && !(each.has_logits && each.logits.ends.valid.high());
                  });
    }
    std::string counts() const {
        std::string text = " (cycle " + std::to_string(cycle) + ")";
        for (size_t index = 0; index < sequences.size(); ++index)
            text += "; sequence " + std::to_string(index) + ": " + sequences[index].counts();
        return text;
    }

    const bool external_;
    std::unique_ptr<VerilatedContext> context_{new VerilatedContext};
    std::unique_ptr<Vcore> model_{new Vcore{context_.get(), ""}};
    Waves waves_;
    Port clk_, rst_, go_, busy_;
    uint64_t idle_ = 0, drained_ = 0;
    bool finished_ = false;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// Calls what may throw; the reason is kept, and `failed` returned.
template <typename Result, typename Call>
Result guard(Core* core, Result failed, Call call) {
    try {
        return call();
    } catch (const std::exception& exception) {
        core->error = exception.what();
        return failed;
    }
}

}  // namespace

EXPORT Core* core_new(
    unsigned sequence_count, int logits, int external_weights, char* error, size_t error_size) {
    try {
        return new Core{sequence_count, logits != 0, external_weights != 0};
    } catch (const std::exception& exception) {
        std::strncpy(error, exception.what(), error_size - 1);
        return nullptr;
    }
}

EXPORT void core_delete(Core* core) { delete core; }

EXPORT const char* core_error(const Core* core) { return core->error.c_str(); }

EXPORT void core_waves(Core* core, const char* path) { core->open_waves(path); }

EXPORT void core_begin(Core* core, uint64_t patience) { core->begin(patience); }

EXPORT void core_request(
    Core* core, unsigned sequence, uint64_t limit, int stop, uint64_t stop_token, uint64_t beta,
    uint64_t seed, const uint64_t* words, size_t count) {
    core->sequences[sequence].requests.push_back(
        {limit, uint64_t(stop), stop_token, beta, seed, {words, words + count}});
}

EXPORT size_t core_weight_bytes(const Core* core) {
    return core->source.weights.payload.size;
}

EXPORT void core_weights(
    Core* core, unsigned first_bits, const uint8_t* words, size_t bytes) {
    core->source.first_bits = first_bits;
    core->source.words.assign(words, words + bytes);
}

EXPORT int core_run(Core* core, uint64_t cycles) {
    return guard(core, int(Core::FAILED), [&]() { return int(core->run(cycles)); });
}

EXPORT uint64_t core_cycle(const Core* core) { return core->cycle; }

EXPORT uint64_t core_busy_cycles(const Core* core) { return core->cycles.get(); }

/// Words taken from a stream, the cycle of each, and the bytes of a word (0 for prompts,
/// of which the cycles alone are kept). Good until the next call that runs the core.
EXPORT size_t core_taken(
    const Core* core, int stream, unsigned index, const uint8_t** words,
    const uint64_t** cycles, size_t* word_bytes) {
    const Sequence& sequence = core->sequences[index];
    if (stream == Core::PROMPTS) {
        *words = nullptr;
        *cycles = sequence.taken_at.data();
        *word_bytes = 0;
        return sequence.taken_at.size();
    }
    const Sink& sink = stream == Core::TOKENS ? sequence.tokens : sequence.logits;
    *words = sink.words.data();
    *cycles = sink.taken_at.data();
    *word_bytes = sink.ends.payload.size;
    return sink.taken_at.size();
}

/// A memory of the design: its bytes, and how many words of how many bytes; null if none.
EXPORT const uint8_t* core_memory(
    Core* core, const char* scope, const char* name, size_t* count, size_t* word_bytes) {
    return guard(core, static_cast<const uint8_t*>(nullptr), [&]() {
        const VerilatedVar* found = core->variable(scope, name);
        if (found->udims() != 1)
            throw std::runtime_error(std::string{scope} + "." + name + " is no memory");
        *count = found->unpackedRanges()[0].elements();
        *word_bytes = found->entSize();
        return static_cast<const uint8_t*>(found->datap());
    });
}
