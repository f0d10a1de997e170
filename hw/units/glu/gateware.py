"""The GLU product in gateware: ``silu(gate) * up``."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.fixed_point import round_shift
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.parts.rounded_sum import saturated_shift
from sterna.hw.parts.sigmoid_table import SigmoidTable, checked_table
from sterna.hw.units.glu.params import GluParams

__all__ = ["GluUnit"]


class GluUnit(wiring.Component):
    """``p = sat(rs(silu(gate) * up, 2 Fz - Fp))``: ``sterna.model.quantized.integer.glu_product``.

    One beat per cycle; the pipeline moves as a whole and stops only while a product waits
    to be taken, or never without ``stalls``. Products appear ``params.latency`` steps after
    their beat; ``last`` and ``sequence`` travel with them and change nothing.

    No intermediate value can overflow: each is as wide as its operands make it, save
    ``silu(gate)``, whose magnitude is at most that of the gate.

    Parameters
    ----------
    params
        Geometry and formats.
    table
        Entries of the sigmoid table, as ``profile.sigmoid_table()`` defines them.

    Members
    -------
    preacts : ``In(stream.Signature(params.preact_layout))``
        ``gate`` and ``up`` of each lane, ``last``, and ``sequence`` if there are several.
    products : ``Out(stream.Signature(params.product_layout))``
        ``p`` of each lane, ``last``, ``sequence`` if there are several, and ``silu`` of
        each lane if there is a trace.

    Raises
    ------
    ValueError
        If the table does not fit the profile.
    """

    def __init__(self, params: GluParams, table: Sequence[int]) -> None:
        self.params = params
        self._table = checked_table(params.profile, table)
        super().__init__({
            "preacts": In(stream.Signature(params.preact_layout)),
            "products": Out(stream.Signature(
                params.product_layout, always_ready=not params.stalls)),
        })

    def elaborate(self, platform):
        m = Module()
        params, preact, product = self.params, self.preacts.payload, self.products.payload
        advance = advance_of(self.products, stalls=params.stalls)
        steps = Pipeline(m, advance)

        m.d.comb += [
            self.preacts.ready.eq(advance),
            self.products.valid.eq(
                steps.flags(self.preacts.valid, params.latency, "filled")[-1]),
            product.last.eq(steps.delay(preact.last, params.latency, "last")),
        ]
        if params.sequences > 1:
            m.d.comb += product.sequence.eq(
                steps.delay(preact.sequence, params.latency, "sequence"))

        for lane in range(params.lanes):
            silu, p = self._lane(m, steps, advance, lane)
            m.d.comb += product.p[lane].eq(p)
            if params.trace:
                m.d.comb += product.silu[lane].eq(
                    steps.delay(silu, params.latency - params.silu_step, f"silu{lane}"))
        return m

    def _lane(self, m, steps, advance, lane):
        """One channel: ``silu`` at step ``params.silu_step``, ``p`` at ``params.latency``."""
        profile, preact, far = (
            self.params.profile, self.preacts.payload, self.params.routing_registers)
        m.submodules[f"sigmoid{lane}"] = table = SigmoidTable(
            self.params.sigmoid, self._table)
        m.d.comb += [table.advance.eq(advance), table.z.eq(preact.gate[lane])]

        if self.params.looks_up_silu:
            wait = self.params.silu_step - table.params.latency
            silu = steps.delay(table.silu, wait, f"silu{lane}")
        else:
            gate = steps.delay(preact.gate[lane], table.params.latency + far, f"gate{lane}")
            sigmoid = steps.delay(table.sigmoid, far, f"far_sigmoid{lane}")
            weighted = steps.register(gate * sigmoid, f"weighted{lane}")
            # A sigmoid is from 0 to below 1, so |silu(gate)| <= |gate|: the bits of z suffice.
            rounded = round_shift(weighted, profile.sigmoid_frac)[:profile.z.bits].as_signed()
            silu = steps.register(rounded, f"rounded{lane}")
        up = steps.delay(preact.up[lane], self.params.silu_step + far, f"up{lane}")
        gated = steps.register(steps.delay(silu, far, f"far_silu{lane}") * up, f"gated{lane}")
        p = saturated_shift(gated, profile.product_shift, profile.p)
        return silu, steps.register(p, f"p{lane}")
