"""A cocotb test of your own for emitted Verilog; `python my_cocotb_test.py` runs it."""
import cocotb
import numpy as np

from sterna import emit_matrix, run_cocotb
from sterna.sim import StreamDriver, StreamSink, start

WEIGHTS = np.random.default_rng(0).integers(-1, 2, (16, 64))  # -1, 0 and 1: yours go here

@cocotb.test()
async def sums_are_the_products_of_numpy(dut):
    await start(dut)  # clock and reset
    acts, sums = StreamDriver(dut, "acts", pause=0.3), StreamSink(dut, "sums", pause=0.3, seed=2)
    for x in np.random.default_rng(1).integers(-128, 128, (20, 64)):
        await acts.send({"q": x})
        await sums.expect("sums", WEIGHTS @ x, field="sum")

if __name__ == "__main__":
    emit_matrix(WEIGHTS, "matrix", rows=2, cols=8)
    print(*run_cocotb("matrix", __file__, simulator="icarus").tests, "passed")
