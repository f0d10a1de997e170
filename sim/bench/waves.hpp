// Waves of a verilated model; without them, if it was compiled so, nothing.
//
// A half cycle is 5 ns, as in cocotb.

#ifndef STERNA_WAVES_HPP
#define STERNA_WAVES_HPP

#include <cstdint>
#include <memory>

#include "verilated.h"

#if VM_TRACE
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using WaveFile = VerilatedFstC;
#else
#include "verilated_vcd_c.h"
using WaveFile = VerilatedVcdC;
#endif

class Waves {
  public:
    ~Waves() {
        if (file_) file_->close();
    }
    template <class Model>
    void open(VerilatedContext& context, Model& model, const char* path) {
        context.traceEverOn(true);
        file_ = std::make_unique<WaveFile>();
        file_->set_time_unit("ns");
        file_->set_time_resolution("ps");
        model.trace(file_.get(), 99);
        file_->open(path);
    }
    /// Note every signal as it is now, half a cycle after the last time.
    void dump() {
        if (file_) file_->dump(kHalfCycle * halves_++);
    }

  private:
    static const uint64_t kHalfCycle = 5000;
    std::unique_ptr<WaveFile> file_;
    uint64_t halves_ = 0;
};
#else
class Waves {
  public:
    template <class Model>
    void open(VerilatedContext&, Model&, const char*) {}
    void dump() {}
};
#endif

#endif
