"""From the sums of an engine to fixed-point numbers: scale, shift and bias of every row."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Const, Module, Mux, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.post_params import PostParams
from sterna.hw.parts.memory_attributes import rom_of
from sterna.hw.parts.requantize import Requantize

__all__ = ["Post"]


class Post(wiring.Component):
    """Requantises the sums of an engine, a group of rows a cycle.

    Sums wait until their scales are known. Results appear four cycles after their sums were
    taken, plus the cycles in which they waited to be taken.

    Parameters
    ----------
    params
        Geometry.
    biases
        For each group of each matrix ``rows`` integers; empty if ``params.biased`` is false.

    Members
    -------
    sums : ``In(stream.Signature(engine.sum_layout))``
    coming : ``In(unsigned(engine.index_bits))``
        Both of the engine, the second if there are several matrices.
    scales : ``In(ArrayLayout(unsigned(scale_bits), most_slots))``
        Scale of each slot of the matrix whose sums come.
    known : ``In(1)``
        They are there.
    done : ``Out(1)``
        In this cycle the last sums of a matrix are taken.
    results : ``Out(stream.Signature(requantize.result_layout))``
        ``value`` of each row, ``tag`` of ``params.tag_layout``, and ``fits`` if outputs differ
        in width.
    """

    def __init__(self, params: PostParams, biases: Sequence[Sequence[int]]) -> None:
        self.params = params
        self._biases = biases
        super().__init__({
            "sums": In(stream.Signature(params.engine.sum_layout)),
            **({"coming": In(unsigned(params.engine.index_bits))}
               if params.engine.index_bits else {}),
            "scales": In(ArrayLayout(unsigned(params.scale_bits), params.most_slots)),
            "known": In(1),
            "done": Out(1),
            "results": Out(stream.Signature(params.requantize.result_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, numbers = self.params, self.params.requantize
        m.submodules.requantize = requantize = Requantize(numbers)
        wiring.connect(m, requantize.results, wiring.flipped(self.results))
        sums, accs = self.sums, requantize.accs
        matrix = sums.payload.matrix if params.engine.index_bits else Const(0)

        taken = Signal()
        slot = Signal(range(max(params.most_slots, 2)))
        last_slot = Array(len(slots) - 1 for slots in params.slots)[matrix]
        m.d.comb += [
            accs.valid.eq(sums.valid & self.known),
            sums.ready.eq(accs.ready & self.known),
            taken.eq(accs.valid & accs.ready),
            self.done.eq(taken & sums.payload.last),
        ]
        with m.If(taken):
            m.d.sync += slot.eq(Mux(slot == last_slot, 0, slot + 1))

        tag = Signal(params.tag_layout)
        m.d.comb += [
            tag.last.eq(sums.payload.last),
            *([tag.slot.eq(slot)] if params.most_slots > 1 else []),
            *([tag.matrix.eq(matrix)] if params.engine.index_bits else []),
            accs.payload.acc.eq(sums.payload.sum),
            accs.payload.scale.eq(Array(self.scales[i] for i in range(params.most_slots))[slot]),
            accs.payload.tag.eq(tag),
        ]
        if numbers.select_bits:
            m.d.comb += accs.payload.shift.eq(Array(
                Array(numbers.shifts.index(slots[min(i, len(slots) - 1)].shift)
                      for i in range(params.most_slots))
                for slots in params.slots)[matrix][slot])
        if params.biased:
            m.d.comb += accs.payload.bias.eq(self._bias(m, taken))
        return m

    def _bias(self, m, taken):
        """The biases of the group that comes: read while the one before it is taken."""
        params = self.params
        m.submodules.biases = store = memory.Memory(
            shape=params.bias_layout, depth=max(params.groups, 2), init=self._biases,
            attrs=rom_of(params.groups))
        port = store.read_port()
        address, first, now_first = Signal.like(port.addr), Signal(init=1), Signal()
        matrices = len(params.slots)
        coming = self.coming if params.engine.index_bits else 0
        m.d.comb += [
            now_first.eq(Mux(taken, self.sums.payload.last, first)),
            port.addr.eq(Mux(
                now_first, Array(params.first_group(i) for i in range(matrices))[coming],
                address + taken)),
            port.en.eq(1),
        ]
        m.d.sync += [first.eq(now_first), address.eq(port.addr)]
        return port.data
