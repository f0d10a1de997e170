"""The norm of the activations of NormQuant: sum of squares and root."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.integer_root import IntegerRoot
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.square import square_of, square_parts
from sterna.hw.units.norm.params import NormParams

__all__ = ["NormScale"]


class NormScale(wiring.Component):
    """``N = max(isqrt(S << 2t), 127 << t)``, S the sum of q * q.

    Takes a chunk in any cycle. S and N are there, and ``done`` high for one cycle,
    ``params.root_steps`` cycles after the last chunk was taken; they hold until those of the
    next vector are being made. Widths are the exact bounds of
    :class:`~sterna.hw.units.norm.params.NormParams`.

    Members
    -------
    begin : ``In(1)``
        A new vector: S starts from 0. Before its first chunk, after the last ``done``.
    silent : ``In(1)``
        Read with ``begin``: whether the vector is all zero.
    taken, last, q : ``In(1)``, ``In(1)``, ``In(ArrayLayout(signed(act_bits), lanes))``
        A chunk, and whether it is the vector's last.
    s, n : ``Out(unsigned(params.sum_bits))``, ``Out(unsigned(params.norm_bits))``
        S and N.
    done : ``Out(1)``
        High in the first cycle of N.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "begin": In(1),
            "silent": In(1),
            "taken": In(1),
            "last": In(1),
            "q": In(ArrayLayout(signed(params.profile.act_bits), params.lanes)),
            "s": Out(unsigned(params.sum_bits)),
            "n": Out(unsigned(params.norm_bits)),
            "done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        # S is made tree_steps after the squares.
        far = params.routing_registers
        sum_step = params.square_steps + params.tree_steps
        arrived = steps.flags(self.taken, sum_step, "arrived")[-1]
        complete = steps.flags(self.taken & self.last, sum_step + far, "complete")[-1]

        # Neighbours are added level by level; a register follows the first, then every
        # second level, and the last.
        level = []
        for lane in range(params.lanes):
            q = steps.register(self.q[lane], f"q{lane}")
            # |q| <= 127
            squares, cross = square_parts(q)
            parts = (steps.delay(squares, far, f"squares{lane}"),
                     steps.delay(cross, far, f"cross{lane}"))
            level.append(steps.register(
                square_of(parts)[:params.square_bits], f"square{lane}"))
        for depth in range(1, params.tree_levels + 1):
            level = [sum(level[i + 1:i + 2], start=level[i]) for i in range(0, len(level), 2)]
            if depth % 2 or depth == params.tree_levels:
                level = [steps.register(total, f"total{depth}_{index}")
                         for index, total in enumerate(level)]
        # The bound of a whole vector holds for each of its sums.
        total = (self.s + level[0])[:params.sum_bits]
        with m.If(self.begin):
            m.d.sync += self.s.eq(0)
        with m.Elif(arrived):
            m.d.sync += self.s.eq(total)

        m.submodules.root = root = IntegerRoot(params.root)
        # The largest element of a vector quantises to +-127 (profiles guarantee it), so its
        # root is at least 127 << t, unless every element is 0: then that of 127^2 is taken.
        silent = Signal(reset_less=True)
        with m.If(self.begin):
            m.d.sync += silent.eq(self.silent)
        m.d.comb += [
            root.start.eq(complete),
            root.value.eq(Mux(silent, 127 ** 2, self.s if far else total)),
            self.n.eq(root.root),
            self.done.eq(root.done),
        ]
        return m
