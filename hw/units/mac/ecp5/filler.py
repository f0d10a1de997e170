"""What loads the tables of style ``ecp5-table``."""

from __future__ import annotations

from amaranth.hdl import Mux, Signal, Value, signed

from sterna.hw.parts.trit_codes import TRIPLES
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.base.table_filler import TableFiller
from sterna.hw.units.mac.ecp5.ccu2c import SELECT, CarryChains, Half

__all__ = ["Ecp5TableFiller"]


class Ecp5TableFiller(TableFiller):
    """Makes the 14 sums of every three activations a, b, c, whose last one is never negative.

    Two adders for every three: c plus or minus b, then plus or minus a. A half of a carry
    cell selects, negates and adds; the +1 that a complement lacks enters as the carry. What
    is added is chosen three, two and one cycles before the entry is written: before the
    first one all is 0, as it should be.

    Parameters
    ----------
    params
        Geometry of the array. Members are those of
        :class:`~sterna.hw.units.mac.base.table_filler.TableFiller`.
    """

    def __init__(self, params: MacParams) -> None:
        super().__init__(params, range(len(TRIPLES)))

    def add_sums(self, m, filling, following):
        params = self.params

        def trits(which: int, ahead: int) -> list[int]:
            return [triple[which] for triple in (*TRIPLES[ahead:], *[TRIPLES[-1]] * ahead)]

        def control(name: str, values: list[bool]) -> Signal:
            return self.choose(m, following, [int(value) for value in values], name)

        uses_c = control("uses_c", [trit != 0 for trit in trits(2, 3)])
        uses_b = control("uses_b", [trit != 0 for trit in trits(1, 2)])
        minus_b = control("minus_b", [trit < 0 for trit in trits(1, 2)])
        uses_a = control("uses_a", [trit != 0 for trit in trits(0, 1)])
        minus_a = control("minus_a", [trit < 0 for trit in trits(0, 1)])

        # A chain for each three: shorter ones end in a spare half.
        chains = CarryChains(m, "carry", 24)
        zero = -1 << (params.entry_bits - 1)       # offset binary
        for triple in range(params.triples):
            a, b, c = self.triple_of_acts(triple)
            # A register that is its initial value but for one condition needs no gates.
            third = Signal(signed(params.act_bits), name=f"third{triple}", reset_less=True)
            pair = Signal(signed(params.act_bits + 1), name=f"pair{triple}", reset_less=True)
            three = Signal(
                signed(params.entry_bits), name=f"three{triple}", init=zero, reset_less=True)
            pair_sum = chains.add(_select(third, b, uses_b, minus_b), carry_in=minus_b)
            halves = _select(pair, a, uses_a, minus_a)
            halves[-1] = halves[-1].inverted()
            m.d.sync += [
                third.eq(Mux(filling & uses_c, c, 0)),
                pair.eq(Mux(filling, pair_sum, 0)),
                three.eq(Mux(filling, chains.add(halves, carry_in=minus_a), zero)),
            ]
            m.d.comb += self.entries[triple].eq(three)
        chains.finish()


def _select(x: Signal, act: Value, uses: Value, minus: Value) -> list[Half]:
    """Halves that add ``act``, nothing or its complement to x; one bit wider than x."""
    return [
        Half(SELECT, x[min(bit, len(x) - 1)], act[min(bit, len(act) - 1)], uses, minus)
        for bit in range(len(x) + 1)]
