"""NormQuant: RMS normalisation and absmax quantisation of a vector in one."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import round_shift, square_of, square_parts
from sterna.hw.parts.digit_serial import ConstantDivider, IntegerRoot
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.parts.reciprocal_table import ReciprocalTable
from sterna.hw.units.norm_params import NormParams

__all__ = ["NormQuant"]


_LUT_DEPTH = 16
"""Words of a memory up to which it is made of LUTs."""


class NormFront(wiring.Component):
    """The buffer of one sequence, written word by word, and the running maximum of |y|.

    Takes a word per cycle until a vector is complete, and no more until ``release``. ``waiting``
    rises ``params.max_steps`` cycles after the last word, and falls after ``serve``.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "words": In(stream.Signature(params.word_layout)),
            "waiting": Out(1),      # a vector is complete, and its absolute maximum known
            "maximum": Out(unsigned(params.y_bits)),
            "serve": In(1),         # the maximum has been used; the next one starts from 0
            "release": In(1),       # the buffer has been read; two cycles after serve or later
            # The address of the vector's last chunk, and which banks have a word in it.
            "last_chunk": Out(range(params.depth)),
            "filled": Out(unsigned(params.banks)),
            # Step in the reading of a complete vector; not after release.
            "read": In(1),
            "address": In(range(params.depth)),
            # That of the address of two steps before.
            "chunk": Out(ArrayLayout(signed(params.y_bits), params.lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        full = Signal()
        taken = Signal()
        m.d.comb += [
            self.words.ready.eq(~full),
            taken.eq(self.words.valid & ~full),
        ]
        with m.If(taken & self.words.payload.last):
            m.d.sync += full.eq(1)
        with m.Elif(self.release):
            m.d.sync += full.eq(0)
        self._store(m, taken, full)
        self._find_maximum(m, taken)
        return m

    def _store(self, m, taken, full):
        """Word i of a vector goes to bank ``i % banks``, address ``i // banks``."""
        params, word = self.params, self.words.payload
        address = Signal(range(params.depth))
        # One-hot: the bank that is next.
        bank = Signal(params.banks, init=1)

        with m.If(taken):
            m.d.sync += bank.eq(Cat(bank[-1], bank)[:params.banks])
            with m.If(bank[-1]):
                m.d.sync += address.eq(address + 1)
            with m.If(word.last):
                # The banks up to this one: those above it are not among the negatives.
                m.d.sync += [
                    address.eq(0), bank.eq(1),
                    self.last_chunk.eq(address),
                    self.filled.eq(Cat(bank[i:].any() for i in range(params.banks))),
                ]

        # Written only while not full and read only while full. A shallow memory is cheaper
        # in LUTs than in blocks, which are wide and then mostly empty: that is left to the tool.
        attrs = {} if params.depth <= _LUT_DEPTH else BLOCK_RAM | NEVER_COLLIDES
        for index in range(params.banks):
            m.submodules[f"bank{index}"] = buffer = memory.Memory(
                shape=word.y.shape(), depth=params.depth, init=[], attrs=attrs)
            write = buffer.write_port()
            read = buffer.read_port()
            m.d.comb += [
                write.addr.eq(address),
                write.data.eq(word.y),
                write.en.eq(taken & bank[index]),
                read.addr.eq(self.address),
                read.en.eq(self.read & full),
            ]
            # A register of just the data can become the memory's own.
            steps = Pipeline(m, self.read & full)
            for row in range(params.rows):
                m.d.comb += self.chunk[index * params.rows + row].eq(
                    steps.register(read.data[row], f"y{index}_{row}"))

    def _find_maximum(self, m, taken):
        params, word = self.params, self.words.payload
        steps = Pipeline(m, Const(1))
        arrived = steps.flags(taken, params.max_steps - 1, "arrived")[-1]
        complete = steps.flags(taken & word.last, params.max_steps - 1, "complete")[-1]

        keys = [steps.register(_key(word.y[row]), f"key{row}") for row in range(params.rows)]
        for step in range(1, len(params.max_groups)):
            groups = [keys[i:i + 4] for i in range(0, len(keys), 4)]
            keys = [steps.register(_select(_largest(m, group), group), f"key{step}_{index}")
                    for index, group in enumerate(groups)]

        # The key of the maximum is kept beside it, so that only keys are compared. That it
        # stays is an enable, off the way of the data.
        key = Signal(params.y_bits)
        stays = Signal()
        m.d.comb += stays.eq(Cat(key >= each for each in keys).all())
        first = _largest(m, keys)
        magnitudes = [(each[1:] + each[0])[:params.y_bits] for each in keys]
        with m.If(self.serve):
            m.d.sync += [key.eq(0), self.maximum.eq(0)]
        with m.Elif(arrived & ~stays):
            m.d.sync += [key.eq(_select(first, keys)),
                         self.maximum.eq(_select(first, magnitudes))]
        with m.If(self.serve):
            m.d.sync += self.waiting.eq(0)
        with m.Elif(arrived):
            m.d.sync += self.waiting.eq(complete)


class NormDivide(wiring.Component):
    """``R = (127 << k) // max(m, 1)`` and ``V = (127 << (P + t)) // N``.

    Both are one function of two numbers, cut to different lengths, so a table gives both, one
    after the other; without it there is a divider for each.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "begin": In(1),         # divide by m
            "maximum": In(unsigned(params.y_bits)),
            "rooted": In(1),        # divide by N, once R is no longer needed
            "n": In(unsigned(params.norm_bits)),
            # From params.reciprocal_steps after begin until V is there.
            "r": Out(unsigned(params.r_bits)),
            "r_done": Out(1),
            # From params.quotient_steps after rooted until the next R is there.
            "v": Out(unsigned(params.scale_bits)),
            "v_done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        if self.params.digit_bits == 0:
            self._look_up(m)
        else:
            self._divide(m)
        return m

    def _look_up(self, m):
        table = self.params.table
        m.submodules.table = unit = ReciprocalTable(table)
        # Whether the scale is next, known long before the root is.
        scaling = Signal()
        with m.If(self.begin):
            m.d.sync += scaling.eq(1)
        with m.Elif(self.v_done):
            m.d.sync += scaling.eq(0)
        is_scale = Signal()
        with m.If(self.begin):
            m.d.sync += is_scale.eq(0)
        with m.Elif(self.rooted):
            m.d.sync += is_scale.eq(1)
        # floor(floor(a * 2^j / d) / 2^j) = floor(a / d)
        profile = self.params.profile
        m.d.comb += [
            unit.start.eq(self.begin | self.rooted),
            unit.divisor.eq(Mux(scaling, self.n, self.maximum)),
            self.r.eq(unit.quotient >> table.frac_bits - profile.reciprocal_bits),
            self.v.eq(unit.quotient >> table.frac_bits - profile.scale_frac - profile.root_frac),
            self.r_done.eq(unit.done & ~is_scale),
            self.v_done.eq(unit.done & is_scale),
        ]

    def _divide(self, m):
        m.submodules.reciprocal = divider = ConstantDivider(self.params.reciprocal)
        m.d.comb += [
            divider.start.eq(self.begin),
            divider.divisor.eq(self.maximum),
            self.r.eq(divider.quotient),
            self.r_done.eq(divider.done),
        ]
        m.submodules.scale = divider = ConstantDivider(self.params.scale)
        m.d.comb += [
            divider.start.eq(self.rooted),
            divider.divisor.eq(self.n),
            self.v.eq(divider.quotient),
            self.v_done.eq(divider.done),
        ]


class NormScale(wiring.Component):
    """``N = max(isqrt(S << 2t), 127 << t)``, S the sum of q * q.

    Takes a chunk in any cycle. S and N are there, and ``done`` high for one cycle,
    ``params.root_steps`` cycles after the last chunk was taken; they hold until those of the
    next vector are being made.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "begin": In(1),         # S starts from 0; before the first chunk
            "silent": In(1),        # read with begin: the vector is all zero
            "taken": In(1),         # a chunk
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
        # S is made tree_steps after q.
        sum_step = 1 + params.tree_steps
        arrived = steps.flags(self.taken, sum_step, "arrived")[-1]
        complete = steps.flags(self.taken & self.last, sum_step, "complete")[-1]

        # Neighbours are added level by level; a register follows the first, then every
        # second level, and the last.
        level = []
        for lane in range(params.lanes):
            q = steps.register(self.q[lane], f"q{lane}")
            # |q| <= 127
            parts = square_parts(q)
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
            root.value.eq(Mux(silent, 127 ** 2, total)),
            self.n.eq(root.root),
            self.done.eq(root.done),
        ]
        return m


class NormQuant(wiring.Component):
    """8-bit activations and scale of a vector: ``sterna.model.quantized.integer.norm_quant``.

    A vector arrives word by word into the buffer of its sequence, while its absolute maximum is
    found. ``params.max_steps`` cycles after its last word the unit begins with it, if it is
    free: one division gives the reciprocal of the maximum, and the first chunk of activations is
    offered ``params.first_chunk_steps`` cycles after ``service``, a further one in each cycle
    after one was taken. The sum of squares, its root and a second division follow; the scale is
    offered ``params.scale_steps`` cycles after the last chunk was taken. The unit is free again
    ``params.idle_steps`` cycles after the scale was taken.

    A sequence takes words unless it holds a complete vector that is still to be cut into chunks:
    its buffer is free again in the cycle in which the last chunk is first offered. One vector at
    a time is worked on; if both sequences wait, the one not served last comes first.

    Nothing can overflow: R * y is at most 127 << k in magnitude, so q is from -127 to 127;
    :class:`~sterna.hw.units.norm_params.NormParams` has the other bounds.

    Members
    -------
    words : ``In(stream.Signature(params.word_layout)).array(sequences)``
        For each sequence, ``y`` of each row (0 beyond the end of the vector) and ``last``.
    acts : ``Out(stream.Signature(params.act_layout))``
        ``q`` of each lane (0 beyond the last word), ``last`` with the vector's last chunk.
    scales : ``Out(stream.Signature(params.scale_layout))``
        ``v`` and, with ``trace``, ``m``, ``r``, ``s`` and ``n``.
    service, service_sequence : ``Out``
        High in the cycle in which the unit begins with a vector, and whose it is.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        members = {
            "words": In(stream.Signature(params.word_layout)).array(params.sequences),
            "acts": Out(stream.Signature(params.act_layout)),
            "scales": Out(stream.Signature(params.scale_layout)),
            "service": Out(1),
        }
        if params.sequences > 1:
            members["service_sequence"] = Out(unsigned(params.sequence_bits))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        params = self.params
        fronts = []
        for sequence in range(params.sequences):
            m.submodules[f"front{sequence}"] = front = NormFront(params)
            wiring.connect(m, wiring.flipped(self.words[sequence]), front.words)
            fronts.append(front)
        choice, serving, maximum = self._choose(m, fronts)

        m.submodules.divide = divide = NormDivide(params)
        m.d.comb += [divide.begin.eq(self.service), divide.maximum.eq(maximum)]
        for sequence, front in enumerate(fronts):
            m.d.comb += front.serve.eq(self.service & (choice == sequence))

        self._quantize(m, fronts, serving, divide.r)
        self._scale(m, serving, divide, maximum)
        return m

    def _choose(self, m, fronts):
        """Begin with a vector; return (its sequence, the sequence since then, its maximum)."""
        busy = Signal()
        with m.If(self.service):
            m.d.sync += busy.eq(1)
        with m.Elif(self.scales.valid & self.scales.ready):
            m.d.sync += busy.eq(0)

        waiting = Cat(front.waiting for front in fronts)
        m.d.comb += self.service.eq(~busy & waiting.any())
        if self.params.sequences == 1:
            return 0, 0, fronts[0].maximum

        serving = Signal(self.params.sequence_bits, init=1)
        choice = Mux(waiting.all(), ~serving, waiting[1])
        m.d.comb += self.service_sequence.eq(choice)
        with m.If(self.service):
            m.d.sync += serving.eq(choice)
        maximum = Mux(choice, fronts[1].maximum, fronts[0].maximum)
        return self.service_sequence, serving, maximum

    def _quantize(self, m, fronts, serving, r):
        """Read the buffer, multiply, add: all of it moves together.

        Reading begins so early that the first chunk meets R at the multipliers.
        """
        params, acts = self.params, self.acts
        advance = Signal()
        m.d.comb += advance.eq(advance_of(acts, stalls=True))
        steps = Pipeline(m, advance)

        address = Signal(range(params.depth))
        last_chunk = Signal()
        reading = Signal()
        first = Signal()
        delay = params.factor_steps - params.read_steps
        m.d.comb += [
            first.eq(Pipeline(m, Const(1)).flags(self.service, delay, "begun")[-1]),
            last_chunk.eq(address == Array(f.last_chunk for f in fronts)[serving]),
        ]
        with m.If(advance & (first | reading)):
            m.d.sync += [
                reading.eq(~last_chunk),
                address.eq(Mux(last_chunk, 0, address + 1))]
        valid = steps.flags(first | reading, params.read_steps + 1, "valid")
        last = steps.flags(last_chunk, params.read_steps + 1, "last")
        for sequence, front in enumerate(fronts):
            m.d.comb += [
                front.read.eq(advance),
                front.address.eq(address),
                front.release.eq(advance & valid[-1] & last[-1] & (serving == sequence)),
            ]
        with m.If(advance):
            m.d.sync += [acts.valid.eq(valid[-1]), acts.payload.last.eq(last[-1])]
        if params.sequences > 1:
            m.d.comb += acts.payload.sequence.eq(serving)

        # What lies beyond the last word is from another vector.
        filled = Array(front.filled for front in fronts)[serving]
        chunk = Array(front.chunk.as_value() for front in fronts)[serving]
        half = params.profile.reciprocal_bits - 1
        product_bits = params.profile.act_bits + params.profile.reciprocal_bits
        r = steps.register(r, "factor")
        for lane in range(params.lanes):
            kept = ~last[params.read_steps - 1] | filled[lane // params.rows]
            y = chunk.word_select(lane, params.y_bits)
            y = steps.register((y & kept.replicate(params.y_bits)).as_signed(), f"y{lane}")
            low = steps.register(y * r[:params.low_bits], f"low{lane}")
            high = None
            if params.low_bits < params.r_bits:
                high = steps.register(y * r[params.low_bits:], f"high{lane}")
            # A product is at most 127 << k in magnitude; below its half only k - 1 bits follow.
            total = low if high is None else low + Cat(Const(0, params.low_bits), high).as_signed()
            halves = steps.register(total[half:product_bits].as_signed(), f"halves{lane}")
            m.d.comb += acts.payload.q[lane].eq(round_shift(halves, 1))

    def _scale(self, m, serving, divide, maximum):
        """Make the scale and hold it until it is taken."""
        params, acts, scales = self.params, self.acts, self.scales
        m.submodules.scale = scale = NormScale(params)
        held = Signal()
        m.d.sync += held.eq(scales.valid & ~scales.ready)
        m.d.comb += [
            scale.begin.eq(self.service),
            scale.silent.eq(~maximum.any()),
            scale.taken.eq(acts.valid & acts.ready),
            scale.last.eq(acts.payload.last),
            scale.q.eq(acts.payload.q),
            divide.rooted.eq(scale.done),
            divide.n.eq(scale.n),
            scales.valid.eq(divide.v_done | held),
            scales.payload.v.eq(divide.v),
        ]
        if params.sequences > 1:
            m.d.comb += scales.payload.sequence.eq(serving)
        if params.trace:
            served_maximum = Signal(params.y_bits, reset_less=True)
            served_r = Signal(params.r_bits, reset_less=True)
            with m.If(self.service):
                m.d.sync += served_maximum.eq(maximum)
            with m.If(divide.r_done):
                m.d.sync += served_r.eq(divide.r)
            m.d.comb += [
                scales.payload.m.eq(served_maximum),
                scales.payload.r.eq(served_r),
                scales.payload.s.eq(scale.s),
                scales.payload.n.eq(scale.n),
            ]


def _key(value: Value) -> Value:
    """Return an unsigned number, as wide as the signed value, in the order of magnitudes.

    It is the one's complement magnitude, and the sign below it: no carry. The magnitude is
    the sum of the two, so a key is never below that of a smaller magnitude.
    """
    sign = value[-1]
    return Cat(sign, value[:-1] ^ sign.replicate(len(value) - 1))


def _largest(m: Module, values: list[Value]) -> Signal:
    """Return a flag for each value: whether it is the first that no other is above."""
    not_below = {(i, j): values[i] >= values[j]
                 for j in range(len(values)) for i in range(j)}
    largest = Signal(len(values), name="largest")
    m.d.comb += largest.eq(Cat(
        reduce(and_, [*(~not_below[i, place] for i in range(place)),
                      *(not_below[place, j] for j in range(place + 1, len(values)))], Const(1, 1))
        for place in range(len(values))))
    return largest


def _select(flags: Value, values: list[Value]) -> Value:
    """Return the value, all as wide, whose flag is high."""
    return reduce(or_, (value & flag.replicate(len(value))
                        for value, flag in zip(values, flags, strict=True)))
