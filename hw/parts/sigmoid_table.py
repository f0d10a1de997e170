"""Sigmoid by table, looked up directly or interpolated linearly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Array, Cat, Const, Module, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import rounded_sum, with_rounding_bit
from sterna.hw.parts.memory_attributes import LOGIC_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.profile import NumericProfile
from sterna.model.quantized.integer import rs

__all__ = ["SigmoidParams", "SigmoidTable", "checked_table"]


def checked_table(profile: NumericProfile, table: Sequence[int]) -> list[int]:
    """Return the entries of a sigmoid table as plain integers."""
    entries = [int(entry) for entry in table]
    expected = profile.sigmoid_segments + (1 if profile.sigmoid_step_bits else 0)
    if len(entries) != expected:
        raise ValueError(
            f"the sigmoid table of profile {profile.name} has {expected} entries, "
            f"got {len(entries)}")
    if min(entries) < 0 or max(entries) > profile.sigmoid_max:
        raise ValueError(
            f"sigmoid table entries must be from 0 to {profile.sigmoid_max}, "
            f"got {min(entries)} to {max(entries)}")
    if entries != sorted(entries):
        raise ValueError("the sigmoid table must not decrease from one entry to the next")
    return entries


@dataclass(frozen=True, slots=True)
class SigmoidParams:
    """Kind of a sigmoid table.

    >>> from sterna.model.profile import C12, S16
    >>> SigmoidParams(C12).latency, SigmoidParams(S16).latency
    (2, 4)
    """

    # formats; `sigmoid_segments` determines whether the table is looked up or interpolated
    profile: NumericProfile
    # whether the table holds `silu(z)`, the rounded product of z and its sigmoid, instead
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.weighted and self.profile.sigmoid_step_bits:
            raise ValueError(
                f"a table of silu needs an entry for each of the {1 << self.profile.z.bits} "
                f"values of z, got {self.profile.sigmoid_segments}")

    @property
    def latency(self) -> int:
        """Steps from z to its sigmoid: two for the entry, two to interpolate."""
        return 4 if self.profile.sigmoid_step_bits else 2


class SigmoidTable(wiring.Component):
    """The sigmoid of a pre-activation, as ``sterna.model.quantized.integer.sigmoid`` defines it.

    A pipeline of ``params.latency`` steps, one in every cycle in which ``advance`` is high.
    An entry gives the sigmoid at the lower end of a segment and, with interpolation, its rise
    within it. The rise is never negative, so nothing can overflow. The tables of the profiles in
    use fit in LUTs; a block memory would be nearly empty.
    """

    def __init__(self, params: SigmoidParams, table: Sequence[int]) -> None:
        self.params = params
        profile = params.profile
        self._entries = checked_table(profile, table)
        super().__init__({
            "advance": In(1),
            "z": In(signed(profile.z.bits)),
            # Of z params.latency steps ago. |silu(z)| <= |z|, so it fits.
            **({"silu": Out(signed(profile.z.bits))} if params.weighted
               else {"sigmoid": Out(unsigned(profile.sigmoid_frac))}),
        })

    def elaborate(self, platform):
        m = Module()
        steps = Pipeline(m, self.advance)
        if self.params.weighted:
            self._look_up_silu(m, steps)
            return m
        profile = self.params.profile
        segments, step_bits = profile.sigmoid_segments, profile.sigmoid_step_bits
        # As unsigned numbers, the bits of z count from zero up, then from the lowest segment up.
        bases = _from_zero(self._entries[:segments])
        rises = _from_zero([
            high - low for low, high in zip(self._entries, self._entries[1:], strict=False)])

        fields = {"base": self.sigmoid.shape()}
        if step_bits:
            fields["rise"] = unsigned(max(max(rises).bit_length(), 1))
        segment = StructLayout(fields)
        init = [dict(zip(fields, values, strict=False))
                for values in zip(bases, rises if step_bits else bases, strict=True)]
        entry = self._read(m, steps, segment, init, self.z[step_bits:])
        if step_bits == 0:
            m.d.comb += self.sigmoid.eq(entry.base)
            return m

        within = steps.delay(self.z[:step_bits], self.params.latency - 2, "within")
        product = steps.register(entry.rise * within, "product")
        # All terms are positive; rounded sums are signed.
        rounded = with_rounding_bit(Cat(product, Const(0)).as_signed(), step_bits)
        total = rounded_sum(rounded, Cat(steps.register(entry.base, "held"), Const(0)).as_signed())
        m.d.comb += self.sigmoid.eq(steps.register(total[:len(self.sigmoid)], "total"))
        return m

    def _look_up_silu(self, m, steps):
        z, frac = self.params.profile.z, self.params.profile.sigmoid_frac
        silus = [rs(value * entry, frac) for value, entry in
                 zip(range(z.min, z.max + 1), self._entries, strict=True)]
        layout = StructLayout({"silu": self.silu.shape()})
        entry = self._read(
            m, steps, layout, [{"silu": silu} for silu in _from_zero(silus)], self.z)
        m.d.comb += self.silu.eq(entry.silu)

    def _read(self, m, steps, segment, init, address):
        """Return the entry at an address, two steps later.

        Four quarters of the table are read, then one is selected: a level of logic or two before
        each register.
        """
        parts = 4 if len(init) >= 8 else 1
        depth = len(init) // parts
        choice = steps.register(address[(depth - 1).bit_length():], "choice")
        entries = []
        for part in range(parts):
            m.submodules[f"rom{part}"] = rom = memory.Memory(
                shape=segment, depth=depth, init=init[part * depth:][:depth],
                attrs=LOGIC_ROM)
            port = rom.read_port()
            m.d.comb += [
                port.addr.eq(address[:(depth - 1).bit_length()]), port.en.eq(self.advance)]
            entries.append(port.data.as_value())
        chosen = Array(entries)[choice] if parts > 1 else entries[0]
        return segment(steps.register(chosen, "entry"))


def _from_zero(entries: Sequence[int]) -> list[int]:
    """Order the entries of segments by the top bits of z, a two's complement number."""
    half = len(entries) // 2
    return [*entries[half:], *entries[:half]]
