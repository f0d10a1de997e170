// The clock loop of the C++ bench: a driver or a sink at every stream, and monitors.
//
// sterna.sim.bench.cpp_build compiles this file with what Verilator makes of a unit;
// sterna.sim.bench.cpp_bench looks for the ports, and calls the functions at the end.
//
// A cycle: set the inputs, settle with the clock low, sample everything, rising edge. Phases are
// those of cocotb_bench.py, cycle by cycle. Words are bytes, lowest first, which is how Verilator
// stores a signal of any width on a little-endian machine.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vcore.h"
#include "verilated.h"
#include "verilated_syms.h"
#include "waves.hpp"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are taken as bytes");

namespace {

struct Port {
    uint8_t* data;
    size_t size, bits;

    bool bit(size_t index) const { return data[index / 8] >> (index % 8) & 1; }
};

/// Words that were sent, taken or monitored, and the cycle of each.
struct Record {
    size_t size;                        // of a word
    std::vector<uint8_t> words;
    std::vector<uint64_t> cycles;
};

/// A driver or a sink.
struct End {
    bool sends;
    Port payload, valid, ready;
    size_t wanted;                      // words to send, or to receive
    Record record;

    bool done() const { return record.cycles.size() >= wanted; }
    bool surplus() const { return record.cycles.size() > wanted; }
    void drive() {
        *(sends ? valid : ready).data = !(sends && done());
        if (sends && !done())
            std::memcpy(payload.data, &record.words[record.cycles.size() * record.size],
                        record.size);
    }
    bool sample(uint64_t cycle) {
        if (!valid.bit(0) || !ready.bit(0)) return false;
        if (!sends)
            record.words.insert(record.words.end(), payload.data, payload.data + payload.size);
        record.cycles.push_back(cycle);
        return true;
    }
};

/// Keeps bits of a port in every cycle in which the lowest of them is 1.
struct Monitor {
    Port port;
    size_t low, width;
    Record record;

    void sample(uint64_t cycle) {
        if (!port.bit(low)) return;
        for (size_t bit = low; bit < low + width; bit += 8) {
            const size_t at = bit / 8;
            const unsigned above = at + 1 < port.size ? port.data[at + 1] : 0;
            const unsigned mask = (1u << std::min<size_t>(low + width - bit, 8)) - 1;
            record.words.push_back((port.data[at] | above << 8) >> bit % 8 & mask);
        }
        record.cycles.push_back(cycle);
    }
};

}  // namespace

/// A unit with an end at each of its streams.
struct Bench {
    enum Status { RUNNING, DONE, FAILED };

    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vcore> model{new Vcore{context.get(), ""}};
    Waves waves;
    std::vector<End> ends;
    std::vector<Monitor> monitors;
    // of the phase that runs: `left` cycles until it is cut, `drain` in which nothing may come
    uint64_t now, cycles, idle, patience, left, drain;
    bool cut, finished;

    ~Bench() {
        Verilated::threadContextp(context.get());
        model.reset();
    }
    void clock(bool level) {
        model->clk = level;
        model->eval();
        waves.dump();
    }
    void reset() {
        for (End& end : ends) {
            *(end.sends ? end.valid : end.ready).data = 0;
            if (end.sends) std::memset(end.payload.data, 0, end.payload.size);
        }
        for (const bool level : {true, true, false}) {
            model->rst = level;
            clock(false);
            clock(true);
        }
    }
    Status run(uint64_t count) {
        for (; count > 0; --count) {
            if (!finished && std::all_of(ends.begin(), ends.end(),
                                         [](const End& end) { return end.done(); }))
                finished = left-- == 0;
            if (finished && drain-- == 0) return DONE;
            for (End& end : ends) end.drive();
            clock(false);
            for (Monitor& monitor : monitors) monitor.sample(now);
            bool moved = false;
            for (End& end : ends) {
                moved |= end.sample(now);
                if (end.surplus() && !cut) return FAILED;
            }
            clock(true);
            ++now;
            if (finished) continue;
            cycles = now;
            idle = moved ? 0 : idle + 1;
            if (idle > patience) return FAILED;
        }
        return RUNNING;
    }
};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Bench* bench_new(const char* waves) {
    Bench* bench = new Bench;
    if (waves) bench->waves.open(*bench->context, *bench->model, waves);
    return bench;
}
EXPORT void bench_delete(Bench* bench) { delete bench; }
EXPORT void bench_reset(Bench* bench) { bench->reset(); }

/// Write a port to `port`, unless there is none of that name.
EXPORT void bench_port(const Bench* bench, const char* name, Port* port) {
    const VerilatedScope* top = bench->context->scopeFind("TOP");
    const VerilatedVar* found = top ? top->varFind(name) : nullptr;
    if (found)
        *port = {static_cast<uint8_t*>(found->datap()), found->entSize(), size_t(found->entBits())};
}

EXPORT void bench_end(
    Bench* bench, int sends, const Port* payload, const Port* valid, const Port* ready) {
    bench->ends.push_back({sends != 0, *payload, *valid, *ready, 0, {payload->size, {}, {}}});
}

EXPORT void bench_monitor(Bench* bench, const Port* port, size_t low, size_t width) {
    bench->monitors.push_back({*port, low, width, {(width + 7) / 8, {}, {}}});
}

/// Begin a phase; `bench_want` then gives each end its words.
EXPORT void bench_begin(Bench* bench, uint64_t patience, int cut, uint64_t cut_after,
                        uint64_t drain) {
    bench->now = bench->cycles = bench->idle = 0;
    bench->patience = patience;
    bench->cut = cut;
    bench->left = cut ? cut_after : 0;
    bench->drain = cut ? 0 : drain;
    bench->finished = false;
    for (Monitor& monitor : bench->monitors) monitor.record = {monitor.record.size, {}, {}};
}

EXPORT void bench_want(Bench* bench, size_t index, size_t count, const uint8_t* words) {
    End& end = bench->ends[index];
    const size_t size = end.record.size;
    end.wanted = count;
    end.record = {size, {words, words + (end.sends ? count * size : 0)}, {}};
}

EXPORT int bench_run(Bench* bench, uint64_t cycles) { return bench->run(cycles); }
EXPORT uint64_t bench_cycles(const Bench* bench) { return bench->cycles; }

/// What an end or, counted on from them, a monitor has sent or seen; how many words.
EXPORT size_t bench_record(
    Bench* bench, size_t index, size_t* size, const uint8_t** words, const uint64_t** cycles) {
    const size_t ends = bench->ends.size();
    const Record& record =
        index < ends ? bench->ends[index].record : bench->monitors[index - ends].record;
    *size = record.size;
    *words = record.words.data();
    *cycles = record.cycles.data();
    return record.cycles.size();
}
