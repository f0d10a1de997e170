"""Parameters of the sampler: every width and cycle count."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import signed
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.model.profile import NumericProfile
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = ["BETA_BITS", "SEED_BITS", "SamplerParams"]

SEED_BITS = 32
"""Bits of the seed of the random numbers."""

_BETA_FRAC = 10     # fraction bits of ``Sampler.beta``
BETA_BITS = 18
"""Bits of the inverse temperature, log2(e) / T with 10 fraction bits, for T down to 0.01."""


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """Geometry and cycle counts of a sampler.

    >>> from sterna.model.profile import S16
    >>> params = SamplerParams(S16, rows=8, vocab=256)
    >>> params.words, params.greedy_steps, params.sampled_steps
    (32, 5, 89)
    """

    profile: NumericProfile  # formats; `profile.logit` is that of the logits
    rows: int  # logits taken per word
    vocab: int  # logits of a vector
    sampling: bool = True  # whether tokens can be drawn with a temperature; greedy only otherwise

    @property
    def words(self) -> int:
        """Words of a vector of logits."""
        return -(-self.vocab // self.rows)

    @property
    def depth(self) -> int:
        """Words of the memories: one without an address is no valid Verilog."""
        return max(self.words, 2)

    @property
    def levels(self) -> int:
        """Levels of the trees over the lanes of a word, a register after each."""
        return (self.rows - 1).bit_length()

    @property
    def used_lanes(self) -> int:
        """Lanes of the last word that hold a logit."""
        return self.vocab - (self.words - 1) * self.rows

    @property
    def token_bits(self) -> int:
        return (self.vocab - 1).bit_length()

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
        """Bits of an unnormalised probability, 0 to 2^16."""
        return int(EXP_TABLE[0]).bit_length()

    @property
    def total_bits(self) -> int:
        """Bits of a sum of all probabilities."""
        return (self.vocab * int(EXP_TABLE[0])).bit_length()

    @property
    def weight_latency(self) -> int:
        """Cycles from the read of a logit to its weight: memory, its output register, and a
        :class:`~sterna.hw.units.sampler.LogitWeight`.
        """
        return 8

    @property
    def probes(self) -> int:
        """Probes of the binary search for the word of the token."""
        return (self.words - 1).bit_length()

    # Cycles, counted from the one in which the last word is taken ------------------

    @property
    def greedy_steps(self) -> int:
        """Cycles to the first of ``tokens.valid`` without temperature: a register, the tree and
        a comparison. From then on the largest logit is known.
        """
        return self.levels + 2

    @property
    def sum_step(self) -> int:
        """Cycle in which the sum of the first word's weights is known.

        Its logits come out of the memory's output register a cycle after the maximum is known.
        """
        return self.greedy_steps - 1 + self.weight_latency + self.levels

    @property
    def draw_step(self) -> int:
        """Cycle in which the sum of all weights is known."""
        return self.sum_step + self.words

    @property
    def search_step(self) -> int:
        """Cycle of the first probe: after operands, two products of parts, and their sums."""
        return self.draw_step + 5

    @property
    def word_step(self) -> int:
        """Cycle in which the word of the token is known; four for a probe but the first,
        whose address is a constant."""
        return self.search_step + max(4 * self.probes - 2, 0)

    @property
    def descent_step(self) -> int:
        """Cycle of the first step down the tree of that word's weights, read once more."""
        return self.word_step + self.weight_latency + self.levels - 1

    @property
    def sampled_steps(self) -> int:
        """Cycles to the first of ``tokens.valid`` with a temperature; three for a level."""
        return self.descent_step + 3 * self.levels if self.levels else self.word_step

    @property
    def logits_layout(self) -> StructLayout:
        return StructLayout({
            "logits": ArrayLayout(signed(self.profile.logit.bits), self.rows)})
