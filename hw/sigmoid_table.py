"""Sigmoid by table, looked up directly or interpolated linearly."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.fixed_point import round_shift
from sterna.hw.memory_attributes import BLOCK_ROM
from sterna.hw.params import sigmoid_latency
from sterna.hw.pipeline import Pipeline
from sterna.model.profile import NumericProfile

__all__ = ["SigmoidTable", "checked_table"]


def checked_table(profile: NumericProfile, table: Sequence[int]) -> list[int]:
    """Return the entries of a sigmoid table as plain integers.

    Raises
    ------
    ValueError
        If the table has the wrong length for the profile, leaves its range or decreases.
    """
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


class SigmoidTable(wiring.Component):
    """The sigmoid of a pre-activation, as ``sterna.model.integer.sigmoid`` defines it.

    A pipeline of :attr:`latency` steps that takes one pre-activation per step. It steps in
    every cycle in which ``advance`` is high and holds in the others, so that it can be
    a part of a larger pipeline.

    A memory of one entry per segment gives the sigmoid at the lower end of the segment and,
    in a table that interpolates, its rise within the segment. The rise is never negative,
    so the interpolated value lies between two entries and cannot overflow.

    Parameters
    ----------
    profile
        Formats; ``sigmoid_segments`` says which kind of table it is.
    table
        The entries, as ``profile.sigmoid_table()`` defines them.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    z : ``In(signed(profile.z.bits))``
        Pre-activation.
    sigmoid : ``Out(unsigned(profile.sigmoid_frac))``
        Sigmoid of the ``z`` of :attr:`latency` steps ago.

    Raises
    ------
    ValueError
        If the table has the wrong length for the profile, leaves its range or decreases.
    """

    def __init__(self, profile: NumericProfile, table: Sequence[int]) -> None:
        self.profile = profile
        self.latency = sigmoid_latency(profile)
        self._entries = checked_table(profile, table)
        super().__init__({
            "advance": In(1),
            "z": In(signed(profile.z.bits)),
            "sigmoid": Out(unsigned(profile.sigmoid_frac)),
        })

    def elaborate(self, platform):
        m = Module()
        segments, step_bits = self.profile.sigmoid_segments, self.profile.sigmoid_step_bits
        bases = self._entries[:segments]
        rises = [high - low for low, high in zip(bases, self._entries[1:], strict=False)]

        # An inverted sign bit turns z into its distance from the lower end of the range.
        distance = Cat(self.z[:-1], ~self.z[-1])
        address = distance[step_bits:]

        if step_bits == 0:
            m.submodules.rom = rom = memory.Memory(
                shape=self.sigmoid.shape(), depth=segments, init=bases, attrs=BLOCK_ROM)
            port = rom.read_port()
            m.d.comb += [port.addr.eq(address), port.en.eq(self.advance)]
            m.d.comb += self.sigmoid.eq(port.data)
            return m

        segment = StructLayout({
            "base": self.sigmoid.shape(), "rise": unsigned(max(max(rises).bit_length(), 1))})
        m.submodules.rom = rom = memory.Memory(
            shape=segment, depth=segments, attrs=BLOCK_ROM,
            init=[{"base": b, "rise": r} for b, r in zip(bases, rises, strict=True)])
        port = rom.read_port()
        m.d.comb += [port.addr.eq(address), port.en.eq(self.advance)]

        steps = Pipeline(m, self.advance)
        within = steps.register(distance[:step_bits], "within")
        product = steps.register(port.data.rise * within, "product")
        base = steps.register(port.data.base, "base")
        total = base + round_shift(product, step_bits)
        m.d.comb += self.sigmoid.eq(steps.register(total[:len(self.sigmoid)], "total"))
        return m
