"""The weight of a logit when a token is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Const, Module, Mux, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import round_shift
from sterna.hw.parts.memory_attributes import LOGIC_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.profile import NumericProfile
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = ["BETA_BITS", "SEED_BITS", "LogitWeight", "WeightParams"]

SEED_BITS = 32
"""Bits of the seed of the random numbers."""

_BETA_FRAC = 10     # fraction bits of ``Sampler.beta``
BETA_BITS = 18
"""Bits of the inverse temperature, log2(e) / T with 10 fraction bits, for T down to 0.01."""


@dataclass(frozen=True, slots=True)
class WeightParams:
    """Formats of weights, which are unnormalised probabilities."""

    profile: NumericProfile  # `profile.logit` is the format of the logits
    vocab: int  # logits of a vector

    @property
    def exponent_shift(self) -> int:
        """Shift that leaves six fraction bits of ``(max - logit) * beta``."""
        return self.profile.logit.frac + _BETA_FRAC - self.index_bits

    @property
    def index_bits(self) -> int:
        """Fraction bits of an exponent: they select one of the entries of ``EXP_TABLE``."""
        return (len(EXP_TABLE) - 1).bit_length()

    @property
    def weight_bits(self) -> int:
        """Bits of a weight, 0 to 2^16."""
        return int(EXP_TABLE[0]).bit_length()

    @property
    def total_bits(self) -> int:
        """Bits of the sum of all weights."""
        return (self.vocab * int(EXP_TABLE[0])).bit_length()


_HALVING_BITS = 5       # every table entry is 0 after 31 halvings
_FINE_BITS = 3          # of these: halvings modulo eight


class LogitWeight(wiring.Component):
    """``2^(-u/64)`` of a logit, with ``u`` its distance from the largest times beta: an element
    of ``Sampler.weights``.

    A pipeline of :attr:`latency` steps: difference, routing, product, rounding, table, halvings in
    eights, the other halvings. No bits are lost: the largest logit minus another fits the bits of
    a logit, and a weight halved 17 times or more is zero.
    """

    latency = 7
    void_step = 5

    def __init__(self, params: WeightParams) -> None:
        self.params = params
        logit = signed(params.profile.logit.bits)
        super().__init__({
            "best": In(logit),
            "logit": In(logit),
            "beta": In(unsigned(BETA_BITS)),    # two steps after the logits
            "is_void": In(1),       # at void_step: there is no such token, its weight is zero
            "weight": Out(unsigned(params.weight_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))

        # The difference of a void logit may be negative; it is then ignored.
        difference = (self.best - self.logit)[:params.profile.logit.bits]
        difference = steps.delay(difference, 2, "difference")
        product = steps.register(difference * self.beta, "product")
        exponent = steps.register(round_shift(product, params.exponent_shift), "exponent")

        m.submodules.rom = rom = memory.Memory(
            shape=unsigned(params.weight_bits), depth=len(EXP_TABLE),
            init=[int(entry) for entry in EXP_TABLE], attrs=LOGIC_ROM)
        port = rom.read_port()
        m.d.comb += [port.addr.eq(exponent[:params.index_bits]), port.en.eq(1)]

        halvings = exponent[params.index_bits:]
        is_small = steps.register(halvings[_HALVING_BITS:].any(), "is_small")
        halvings = steps.register(halvings[:_HALVING_BITS], "halvings")
        coarse = Mux(is_small | self.is_void, 0, port.data >> (halvings[_FINE_BITS:] << _FINE_BITS))
        fine = steps.register(halvings[:_FINE_BITS], "fine")
        weight = steps.register(coarse, "coarse") >> fine
        m.d.comb += self.weight.eq(steps.register(weight, "halved"))
        return m
