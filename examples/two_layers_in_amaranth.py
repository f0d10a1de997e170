"""Two matrices of your own in an Amaranth design: simulated, then written as one Verilog module."""

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import wiring

from sterna import FixedPoint, TernaryMatrix, matrix_component, write_verilog
from sterna.hw import run_bench

rng = np.random.default_rng(0)  # -1, 0 and 1: yours go here
W1, W2 = rng.integers(-1, 2, (8, 20)), rng.integers(-1, 2, (4, 8))

class Two(wiring.Component):
    def __init__(self):
        weights = TernaryMatrix(W1, scale=1 / 16)
        self.first = matrix_component(weights, output=FixedPoint(8, 0), rows=4, lanes=4)
        self.second = matrix_component(W2, rows=4, lanes=4)
        super().__init__({"acts": self.first.signature.members["acts"],
                          "sums": self.second.signature.members["sums"]})

    def elaborate(self, platform):
        m = Module()
        m.submodules.first, m.submodules.second = first, second = self.first, self.second
        wiring.connect(m, wiring.flipped(self.acts), first.acts)
        wiring.connect(m, second.sums, wiring.flipped(self.sums))
        m.d.comb += [second.acts.payload.q.eq(first.results.payload.y), second.acts.valid.eq(
            first.results.valid), first.results.ready.eq(second.acts.ready)]
        return m

async def bench(context):
    context.set(two.acts.valid, 1)
    for word in x.reshape(-1, 4).tolist():
        context.set(two.acts.payload.q, word)
        await context.tick().until(two.acts.ready)
    (sums,) = await context.tick().sample(two.sums.payload.sum).until(two.sums.valid)
    print([*sums], "by numpy", (W2 @ np.floor(W1 @ x / 16 + 0.5).astype(int)).tolist())
two, x = Two(), rng.integers(-128, 128, 20)
run_bench(two, bench)
write_verilog(Two(), "two", ".")
