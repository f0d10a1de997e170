// The clock loop around a verilated core: feeds prompts, collects tokens and logits.
//
// sterna.sim.bench.cpp_build compiles this file with what Verilator makes of the core;
// sterna.sim.core.cpp_engine calls the functions at the end. Nothing here knows the model: ports
// are found by name when the core is made.
//
// A cycle: set the inputs, settle with the clock low, sample every handshake, rising edge.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "Vcore.h"
#include "core_ends.hpp"
#include "verilated.h"
#include "verilated_syms.h"
#include "waves.hpp"

namespace {

const uint64_t kDrainCycles = 64;       // after the end, in which nothing more may come

}  // namespace

/// A core and both ends of all its streams.
class Core {
  public:
    enum Stream { PROMPTS, TOKENS, LOGITS, REQUESTS, WEIGHTS };
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
            sequence.prompts.ends = ends("prompts" + at);
            sequence.tokens.name = "tokens" + at;
            sequence.tokens.ends = ends("tokens" + at);
            sequence.has_logits = logits;
            sequence.logits.name = "logits" + at;
            if (logits) sequence.logits.ends = ends("logits" + at);
        }
        if (external_) {
            source.requests.name = "weight_requests";
            source.requests.ends = ends("weight_requests");
            source.weights.ends = ends("weights");
        }
        reset();
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

    void reset() {
        begin(0, 1);
        go_.set(1);
        rst_.set(1);
        for (Sequence& sequence : sequences) {
            sequence.prompts.offer(false);
            sequence.tokens.ends.ready.set(0);
            if (sequence.has_logits) sequence.logits.ends.ready.set(0);
        }
        if (external_) {
            source.weights.offer(false);
            source.requests.ends.ready.set(0);
        }
        step();
        rst_.set(0);
        clk_.set(0);
        model_->eval();
    }

    void open_waves(const char* path) { waves_.open(*context_, *model_, path); }

    void begin(uint64_t seed, uint64_t patience_cycles) {
        cycle = idle_ = drained_ = 0;
        finished_ = false;
        patience = patience_cycles;
        uint64_t next = seed;
        // Every end has dice of its own: their seeds by splitmix64. Without a seed, no pauses.
        const auto draw = [&next, seed]() -> uint64_t {
            if (seed == 0) return 0;
            next += 0x9e3779b97f4a7c15u;
            uint64_t mixed = (next ^ (next >> 30)) * 0xbf58476d1ce4e5b9u;
            mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
            return (mixed ^ (mixed >> 31)) | 1;
        };
        for (Sequence& sequence : sequences) {
            sequence.begin();
            sequence.prompts.pauses.seed(draw());
            sequence.tokens.pauses.seed(draw());
            sequence.logits.pauses.seed(draw());
        }
        source.begin();
        source.requests.pauses.seed(draw());
        source.weights.pauses.seed(draw());
    }

    Pauses& pauses(int stream, unsigned index) {
        switch (stream) {
            case PROMPTS: return sequences.at(index).prompts.pauses;
            case TOKENS: return sequences.at(index).tokens.pauses;
            case LOGITS: return sequences.at(index).logits.pauses;
            case REQUESTS: return source.requests.pauses;
            case WEIGHTS: return source.weights.pauses;
            default: throw std::runtime_error("there is no such stream");
        }
    }

    Status run(uint64_t count) {
        for (; count > 0; --count) {
            finished_ = finished_ || is_idle();
            if (finished_ && drained_++ == kDrainCycles) return DONE;
            for (Sequence& sequence : sequences) sequence.drive(cycle);
            if (external_) source.drive(cycle);
            settle();
            bool moved = false;
            bool held = false;
            for (Sequence& sequence : sequences) {
                if (sequence.sample(cycle)) moved = true;
                held = held || sequence.held(cycle);
            }
            if (external_) {
                if (source.sample(cycle)) moved = true;
                held = held || source.held(cycle);
            }
            if (finished_ && (moved || !is_idle()))
                throw std::runtime_error("something came out after the end" + counts());
            idle_ = moved || held ? 0 : idle_ + 1;
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
    void step() {
        settle();
        rise();
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

EXPORT void core_reset(Core* core) { core->reset(); }

EXPORT void core_begin(Core* core, uint64_t seed, uint64_t patience) {
    core->begin(seed, patience);
}

EXPORT void core_request(
    Core* core, unsigned sequence, uint64_t limit, int stop, uint64_t stop_token, uint64_t beta,
    uint64_t seed, const uint64_t* words, size_t count) {
    core->sequences[sequence].requests.push_back(
        {limit, uint64_t(stop), stop_token, beta, seed, {words, words + count}});
}

EXPORT void core_hold(
    Core* core, int stream, unsigned sequence, uint64_t first, uint64_t cycles) {
    core->pauses(stream, sequence).hold(first, cycles);
}

EXPORT size_t core_weight_bytes(const Core* core) {
    return core->source.weights.ends.payload.size;
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
