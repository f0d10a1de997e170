"""The gated product of the channel mixer: ``silu(gate) * up``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Module, Shape, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import round_shift, saturated_shift
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.parts.sigmoid_table import SigmoidParams, SigmoidTable, checked_table
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["GluParams", "GluUnit"]


@dataclass(frozen=True, slots=True)
class GluParams:
    """Geometry and formats of a GLU unit.

    >>> from sterna.model.profile import C12, S16
    >>> GluParams(C12, lanes=8).latency, GluParams(S16, lanes=8).latency
    (6, 8)
    """

    profile: NumericProfile  # formats of every number
    lanes: int  # channels taken per beat
    trace: bool = False  # whether the beats of `products` include `silu(gate)`, for verification
    # Whether `silu(gate)` is looked up in a table like the sigmoid's, without a product. No
    # effect unless the profile has a sigmoid for every value of z.
    silu_table: bool = False

    def __post_init__(self) -> None:
        check_whole("lanes", self.lanes, 1, 4096)

    @property
    def looks_up_silu(self) -> bool:
        return self.silu_table and not self.profile.sigmoid_step_bits

    @property
    def sigmoid(self) -> SigmoidParams:
        """The table of the gate's sigmoid, or of ``silu(gate)``."""
        return SigmoidParams(self.profile, self.looks_up_silu)

    @property
    def silu_step(self) -> int:
        """Step at which ``silu(gate)`` is available: sigmoid, product, rounding."""
        return self.sigmoid.latency + 2

    @property
    def latency(self) -> int:
        """Steps from ``preacts`` to ``products``: silu, product, saturation."""
        return self.silu_step + 2

    @property
    def preact_layout(self) -> StructLayout:
        lanes = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout({"gate": lanes, "up": lanes, "last": 1})

    @property
    def product_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {
            "p": ArrayLayout(signed(self.profile.p.bits), self.lanes), "last": 1}
        if self.trace:
            fields["silu"] = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout(fields)


class GluUnit(wiring.Component):
    """``p = sat(rs(silu(gate) * up, 2 Fz - Fp))``:
    ``sterna.model.quantized.records.glu_cell``.

    One beat per cycle; the pipeline advances as a whole and stalls only while a product waits to
    be taken. Products appear ``params.latency`` steps after their beat; ``last`` is passed along
    and has no effect. No intermediate value can overflow: each has the full width of its operation,
    except ``silu(gate)``, which never exceeds the gate in magnitude.
    """

    def __init__(self, params: GluParams, table: Sequence[int]) -> None:
        self.params = params
        self._table = checked_table(params.profile, table)
        super().__init__({
            "preacts": In(stream.Signature(params.preact_layout)),
            "products": Out(stream.Signature(params.product_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, preact, product = self.params, self.preacts.payload, self.products.payload
        advance = advance_of(self.products)
        steps = Pipeline(m, advance)

        m.d.comb += [
            self.preacts.ready.eq(advance),
            self.products.valid.eq(
                steps.flags(self.preacts.valid, params.latency, "filled")[-1]),
            product.last.eq(steps.delay(preact.last, params.latency, "last")),
        ]

        for lane in range(params.lanes):
            silu, p = self._lane(m, steps, advance, lane)
            m.d.comb += product.p[lane].eq(p)
            if params.trace:
                m.d.comb += product.silu[lane].eq(
                    steps.delay(silu, params.latency - params.silu_step, f"silu{lane}"))
        return m

    def _lane(self, m, steps, advance, lane):
        """One channel: ``silu`` at step ``params.silu_step``, ``p`` at ``params.latency``."""
        profile, preact = self.params.profile, self.preacts.payload
        m.submodules[f"sigmoid{lane}"] = table = SigmoidTable(
            self.params.sigmoid, self._table)
        m.d.comb += [table.advance.eq(advance), table.z.eq(preact.gate[lane])]

        if self.params.looks_up_silu:
            wait = self.params.silu_step - table.params.latency
            silu = steps.delay(table.silu, wait, f"silu{lane}")
        else:
            gate = steps.delay(preact.gate[lane], table.params.latency, f"gate{lane}")
            weighted = steps.register(gate * table.sigmoid, f"weighted{lane}")
            # 0 <= sigmoid < 1, so |silu(gate)| <= |gate|: the bits of z suffice.
            rounded = round_shift(weighted, profile.sigmoid_frac)[:profile.z.bits].as_signed()
            silu = steps.register(rounded, f"rounded{lane}")
        up = steps.delay(preact.up[lane], self.params.silu_step, f"up{lane}")
        gated = steps.register(silu * up, f"gated{lane}")
        p = saturated_shift(gated, profile.product_shift, profile.p)
        return silu, steps.register(p, f"p{lane}")
