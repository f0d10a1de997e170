"""What loads the tables of style ``xc7-table``."""

from __future__ import annotations

import numpy as np
from amaranth.hdl import Cat, Const, Mux, Signal, signed

from sterna.hw.parts.trit_codes import pack_triples
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.base.table_filler import TableFiller

__all__ = ["Xc7TableFiller"]

_WALK = "ABCbbccBBaCCbbccBaBCCbcbCcc"
"""Steps from 0 through all 27 sums of a, b and c: +a is ``a``, -a is ``A``. One comes twice,
for no shorter walk begins at 0."""


class Xc7TableFiller(TableFiller):
    """Makes the 27 sums of every three activations a, b, c.

    One adder for every three: each sum is the one before plus or minus one activation.

    Parameters
    ----------
    params
        Geometry of the array. Members are those of
        :class:`~sterna.hw.units.mac.base.table_filler.TableFiller`.
    """

    def __init__(self, params: MacParams) -> None:
        # The first step is chosen while 0 is written for the first time.
        trits = [[0, 0, 0], [0, 0, 0]]
        for step in _WALK:
            following = list(trits[-1])
            following["abc".index(step.lower())] += 1 if step.islower() else -1
            trits.append(following)
        super().__init__(params, [int(pack_triples(np.array(each))[0]) for each in trits])

    def add_sums(self, m, filling, following):
        params = self.params
        # While entry p is written, the step from p + 1 to p + 2 is chosen.
        walk = _WALK + _WALK[-1] * 2
        is_a, is_b = (
            self.choose(m, following, [int(step.lower() == name) for step in walk], f"is_{name}")
            for name in "ab")
        minus = self.choose(m, following, [int(step.isupper()) for step in walk], "minus")
        carry = Signal(reset_less=True)
        m.d.sync += carry.eq(filling & minus)
        for triple in range(params.triples):
            a, b, c = self.triple_of_acts(triple)
            step = Signal(signed(params.act_bits), name=f"step{triple}", reset_less=True)
            total = Signal(signed(params.entry_bits), name=f"total{triple}", reset_less=True)
            chosen = Mux(is_a, a, Mux(is_b, b, c))
            # The +1 that a complement lacks comes in as a carry, one bit below.
            added = Cat(Const(1, 1), total).as_signed() + Cat(carry, step).as_signed()
            m.d.sync += [
                step.eq(Mux(filling, chosen ^ minus.replicate(params.act_bits), 0)),
                total.eq(Mux(filling, added[1:params.entry_bits + 1], 0)),
            ]
            m.d.comb += self.entries[triple].eq(total)
