"""What the rows of every style share: their ports, and the control that loads tables."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["ArrayRow", "TableFiller"]


class ArrayRow(wiring.Component):
    """One row of the array; each style builds its own.

    ``fill`` writes an entry of every triple's table at ``fill_index``, whether or not the
    pipeline advances; it takes effect with the next cycle. ``first``, ``filled`` and the start
    value belong to the beat that reaches the accumulator, ``params.row_steps`` steps after its
    operands.

    A ``bare`` row has no accumulator: its sum is what a beat adds to one, and it has no ports for
    what only that reads.
    """

    start_port = "start"

    def __init__(self, params: MacParams, *, bare: bool = False) -> None:
        self.params = params
        self._bare = bare
        operands: dict[str, In] = (
            {"codes": In(params.weight_layout),
             "fill": In(1),
             "fill_index": In(unsigned(params.index_bits)),
             "entries": In(ArrayLayout(params.entry_shape, params.triples))}
            if params.style.has_tables else
            {"weights": In(params.weight_layout),
             "acts": In(ArrayLayout(signed(params.act_bits), params.cols))})
        super().__init__({
            "advance": In(1),
            **operands,
            **({} if bare else {
                "first": In(1),     # the beat starts a row
                "filled": In(1),    # there is a beat at all
                **({self.start_port: In(params.start_shape)} if params.start_name else {})}),
            "sum": Out(signed(params.operand_bits(params.cols) if bare else params.sum_bits)),
        })

    def accumulate(self, m, make, operand):
        """Have an accumulator, which ``make`` makes, gather what each beat adds."""
        if self._bare:
            m.d.comb += self.sum.eq(operand)
            return
        m.submodules.accumulator = accumulator = make()
        m.d.comb += [
            accumulator.advance.eq(self.advance),
            accumulator.filled.eq(self.filled),
            accumulator.first.eq(self.first),
            getattr(accumulator, self.start_port).eq(getattr(self, self.start_port)),
            accumulator.operand.eq(operand),
            self.sum.eq(accumulator.sum),
        ]


class TableFiller(wiring.Component):
    """Writes all entries of all tables, an entry of every table in each cycle, at ``addresses``
    in their order. A style derives its own from this one, and makes the entries in
    :meth:`add_sums`.
    """

    def __init__(self, params: MacParams, addresses: Sequence[int]) -> None:
        self.params = params
        self.addresses = tuple(addresses)
        super().__init__({
            "request": In(1),   # activations wait to be loaded, and stay until done
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            # To the rows: write entries to all tables at fill_index.
            "fill": Out(1),
            "fill_index": Out(unsigned(params.index_bits)),
            "entries": Out(ArrayLayout(params.entry_shape, params.triples)),
            # In the cycle of the last entry, the last of fill_steps from request on.
            "done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        count = len(self.addresses)
        filling = Signal()
        position = Signal(range(count))
        following = Signal.like(position)
        m.d.comb += self.done.eq(filling & (position == count - 1))
        with m.If(filling & ~self.done):
            m.d.comb += following.eq(position + 1)
        m.d.sync += [filling.eq(Mux(filling, ~self.done, self.request)), position.eq(following)]

        m.d.comb += [
            self.fill.eq(filling),
            self.fill_index.eq(self.choose(m, following, self.addresses, "address"))]
        self.add_sums(m, filling, following)
        return m

    def choose(self, m: Module, following: Value, values: Sequence[int], name: str) -> Signal:
        """Return a register that holds ``values[p]`` while entry p is written, 0 being idle."""
        register = Signal(range(max(values) + 1), name=name, reset_less=True)
        with m.Switch(following):
            for index, value in enumerate(values):
                with m.Case(index) if index < len(values) - 1 else m.Default():
                    m.d.sync += register.eq(value)
        return register

    def triple_of_acts(self, triple: int) -> list[Value]:
        """Return the three activations of a table; those past the last column are 0."""
        return [
            Value.cast(self.acts[column]) if column < self.params.cols
            else Const(0, signed(self.params.act_bits))
            for column in range(3 * triple, 3 * triple + 3)]

    def add_sums(self, m: Module, filling: Value, following: Value) -> None:
        """Make ``entries``: while entry p is written, what belongs at ``addresses[p]``."""
        raise NotImplementedError(f"{type(self).__name__} must say what its tables hold")
