"""What can be set in the line protocol, and which cores it can drive."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.board.token_letters import MAX_VOCAB
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.units.sampler_params import BETA_BITS, SEED_BITS
from sterna.model.checks import check_whole

__all__ = ["COUNT_BITS", "LineDefaults", "check_core"]

COUNT_BITS = 16
"""Bits of the number of tokens to write."""

_MIN_VOCAB = 128


@dataclass(frozen=True, slots=True)
class LineDefaults:
    """Settings after a reset.

    Parameters
    ----------
    tokens
        Tokens to write after a line.
    beta
        Inverse temperature, :attr:`sterna.model.quantized.sampling.Sampler.beta`; 0 is greedy.
    seed
        Seed of the sampler.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    tokens: int = 64
    beta: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 0, (1 << COUNT_BITS) - 1)
        check_whole("beta", self.beta, 0, (1 << BETA_BITS) - 1)
        check_whole("seed", self.seed, 0, (1 << SEED_BITS) - 1)


def check_core(params: CoreParams) -> None:
    """Check that one can talk to a core: it knows ASCII at least, and its tokens have letters.

    Raises
    ------
    ValueError
        If not, or if there are several sequences.
    """
    vocab = params.config.vocab
    if not _MIN_VOCAB <= vocab <= MAX_VOCAB:
        raise ValueError(
            f"over a serial line the vocabulary must be from {_MIN_VOCAB} (ASCII) to "
            f"{MAX_VOCAB}, got {vocab}")
    if params.sequences != 1:
        raise ValueError(f"a serial line has one sequence, the core {params.sequences}")
