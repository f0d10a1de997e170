"""From the sums of an engine to fixed-point numbers: scale, shift and bias of every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.hdl import Array, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.engine import EngineParams
from sterna.hw.parts.arithmetic import round_shift
from sterna.hw.parts.memory_attributes import rom_of
from sterna.hw.parts.requantize import Requantize, RequantizeParams
from sterna.hw.units.norm_params import NormParams
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection

__all__ = ["LayerScales", "Post", "PostParams", "Slot", "bias_words", "interleaved"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the matrices whose groups of rows take turns: mantissa of its scale, right shift, and
    format of its results."""

    k: int
    shift: int
    output: FixedPoint


@dataclass(frozen=True, slots=True)
class PostParams:
    """Geometry of a :class:`~sterna.hw.layers.post.Post`.

    Parameters
    ----------
    engine
        The engine whose sums it takes.
    slots
        For each matrix of the engine its slots: their groups of rows take turns.
    scale_bits
        Unsigned bits of a scale.
    biased
        Whether any bias is not zero.
    """

    engine: EngineParams
    slots: tuple[tuple[Slot, ...], ...]
    scale_bits: int
    biased: bool

    @property
    def most_slots(self) -> int:
        """Slots of the matrix that has the most."""
        return max(map(len, self.slots))

    @property
    def requantize(self) -> RequantizeParams:
        """Widths of the requantiser."""
        every = [slot for slots in self.slots for slot in slots]
        widest, *narrower = sorted({slot.output.bits for slot in every}, reverse=True)
        return RequantizeParams(
            self.engine.mac.sum_bits, self.scale_bits, widest + 1, widest,
            tuple(sorted({slot.shift for slot in every})), self.engine.mac.rows,
            tuple(narrower), self.tag_layout.size)

    @property
    def bias_layout(self) -> ArrayLayout:
        """A word of the memory of the biases: those of a group."""
        return ArrayLayout(signed(self.requantize.bias_bits), self.requantize.lanes)

    @property
    def tag_layout(self) -> StructLayout:
        """What travels with a group: whether it is the last of its matrix; if there are several,
        its slot, and its matrix."""
        slot = {"slot": unsigned((self.most_slots - 1).bit_length())}
        return StructLayout({
            **(slot if self.most_slots > 1 else {}), "last": 1, **self.engine.matrix_field})

    def first_group(self, matrix: int) -> int:
        """Where the biases of a matrix begin in their memory."""
        return sum(self.engine.groups(index) for index in range(matrix))

    @property
    def groups(self) -> int:
        """Groups of all matrices: words of the memory of the biases."""
        return self.first_group(len(self.slots))


def interleaved(parts: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Arrays of one shape whose groups of ``rows`` rows take turns, each filled up with zeros.

    >>> interleaved([np.array([1, 2, 3]), np.array([7, 8, 9])], 2).tolist()
    [1, 2, 7, 8, 3, 0, 9, 0]
    """
    groups = -(-len(parts[0]) // rows)
    padded = np.zeros((len(parts), groups * rows, *parts[0].shape[1:]), dtype=np.int64)
    padded[:, :len(parts[0])] = parts
    turns = padded.reshape(len(parts), groups, rows, *parts[0].shape[1:]).swapaxes(0, 1)
    return turns.reshape(-1, *parts[0].shape[1:])


def bias_words(projections: Sequence[Projection], rows: int) -> list[list[int]]:
    """Words of the memory of the biases of a matrix: ``rows`` integers for each group."""
    biases = interleaved([each.bias for each in projections], rows)
    words: list[list[int]] = biases.reshape(-1, rows).tolist()
    return words


class Post(wiring.Component):
    """Requantises the sums of an engine, a group of rows a cycle.

    Sums wait until their scales are known. Results appear four cycles after their sums were
    taken, plus the cycles in which they waited to be taken. ``biases`` are ``rows`` integers for
    each group of each matrix; none if ``params.biased`` is false.

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


class LayerScales(wiring.Component):
    """``A = rs(V * K, combine_shift)``: ``sterna.model.quantized.integer.combine_scale``.

    One multiplier makes the scales of a matrix's slots one after the other: they are known
    two cycles and one for each slot after V was offered. They are kept until ``done``; V of the
    next matrix waits until then.

    Members
    -------
    norms : ``In(stream.Signature(norm.scale_layout))``
    done : ``In(1)``
        The scales are not needed any more.
    scales : ``Out(ArrayLayout(unsigned(scale_bits), most_slots))``
    known : ``Out(1)``
    """

    def __init__(self, params: PostParams, norm: NormParams) -> None:
        self.params, self._norm = params, norm
        super().__init__({
            "norms": In(stream.Signature(norm.scale_layout)),
            "done": In(1),
            "scales": Out(ArrayLayout(unsigned(params.scale_bits), params.most_slots)),
            "known": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile = self.params, self._norm.profile
        matrices = len(params.slots)
        matrix = Signal(range(max(matrices, 2)))
        step = Signal(range(params.most_slots + 1))
        last_step = Array(len(slots) for slots in params.slots)[matrix]
        mantissa = Array(
            Array(slots[min(i, len(slots) - 1)].k for i in range(params.most_slots + 1))
            for slots in params.slots)[matrix][step]
        product = Signal(unsigned(self._norm.scale_bits + profile.mantissa_bits), reset_less=True)
        m.d.sync += product.eq(self.norms.payload.v * mantissa)
        m.d.comb += self.norms.ready.eq(~self.known & (step == last_step))
        with m.If(self.norms.valid & ~self.known):
            m.d.sync += step.eq(step + 1)
            for slot in range(params.most_slots):
                with m.If(step == slot + 1):
                    m.d.sync += self.scales[slot].eq(
                        round_shift(product, profile.combine_shift)[:params.scale_bits])
            with m.If(self.norms.ready):
                m.d.sync += [step.eq(0), self.known.eq(1)]
        with m.If(self.done):
            m.d.sync += [
                self.known.eq(0), matrix.eq(Mux(matrix == matrices - 1, 0, matrix + 1))]
        return m
