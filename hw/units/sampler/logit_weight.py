"""The weight of a logit: its unnormalised probability."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.fixed_point import round_shift
from sterna.hw.parts.memory_attributes import LOGIC_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.sampler.params import BETA_BITS, SamplerParams
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = ["LogitWeight"]

_HALVING_BITS = 5       # no table entry is left after 31 halvings
_FINE_BITS = 3          # of these: halvings that are no multiple of eight


class LogitWeight(wiring.Component):
    """``2^(-u/64)`` of a logit, with ``u`` its distance from the largest times beta.

    A pipeline of :attr:`latency` steps that moves in every cycle: difference, product,
    rounding, table, halvings in eights, the other halvings. The result is an element of
    ``Sampler.weights``.

    No bits are lost: a difference of two logits, the larger first, is not negative and
    fits the bits of a logit, and a weight halved 17 times or more is zero.

    Members
    -------
    best, logit : ``In(signed(logit.bits))``
        The largest logit and this one.
    beta : ``In(unsigned(BETA_BITS))``
        Inverse temperature, taken a step after the logits.
    is_void : ``In(1)``
        The weight is zero, whatever the logit: there is no such token. Taken at step
        :attr:`void_step`.
    weight : ``Out(unsigned(params.weight_bits))``
        Weight of the ``logit`` of :attr:`latency` cycles ago.
    """

    latency = 6
    void_step = 4

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        logit = signed(params.profile.logit.bits)
        super().__init__({
            "best": In(logit),
            "logit": In(logit),
            "beta": In(unsigned(BETA_BITS)),
            "is_void": In(1),
            "weight": Out(unsigned(params.weight_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))

        # Of a void logit, the difference may be negative: then it means nothing.
        difference = (self.best - self.logit)[:params.profile.logit.bits]
        difference = steps.register(difference, "difference")
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
