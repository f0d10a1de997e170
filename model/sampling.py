"""Choosing the next token from integer logits, in integers.

Greedy is the argmax, lowest index on ties. Temperature sampling draws one 32-bit number a
token: no noise per logit, no division. It is made for hardware: whatever computes these
integers writes the same text for the same seed.
"""

from __future__ import annotations

import math

import numpy as np

from sterna.model.integer import rs

__all__ = ["EXP_TABLE", "Sampler"]

EXP_TABLE = np.array([math.floor(2.0 ** (-j / 64) * (1 << 16) + 0.5) for j in range(64)])
"""``2^(-j/64)`` with 16 fraction bits."""

_BETA_FRAC = 10
_MAX_HALVINGS = 17     # 2^16 >> 17 is 0: a token that unlikely has no chance at all


class Sampler:
    """Draws tokens from integer logits.

    Parameters
    ----------
    temperature
        0 is greedy; otherwise from 0.01 to 100. Higher is more random.
    seed
        Seed of the xorshift32 generator, 1 to 2**32 - 1.
    logit_frac
        Fraction bits of the logits.

    Raises
    ------
    ValueError
        If an argument is out of range.

    >>> Sampler(temperature=0)(np.array([3, 9, 9, 1]))
    1
    """

    def __init__(self, *, temperature: float = 0.0, seed: int = 1, logit_frac: int = 8) -> None:
        if temperature != 0 and not 0.01 <= temperature <= 100:
            raise ValueError(f"temperature must be 0 or from 0.01 to 100, got {temperature}")
        if logit_frac < 0:
            raise ValueError(f"logit_frac must not be negative, got {logit_frac}")
        if not 1 <= seed < 1 << 32:
            raise ValueError(f"seed must be from 1 to {(1 << 32) - 1}, got {seed}")
        self.temperature = temperature
        self.state = seed
        self._shift = logit_frac + _BETA_FRAC - 6
        self.beta = (0 if temperature == 0 else
                     math.floor(math.log2(math.e) / temperature * (1 << _BETA_FRAC) + 0.5))

    def weights(self, logits: np.ndarray) -> np.ndarray:
        """Unnormalised probabilities ``e``, int64; the largest logit has 2**16."""
        logits = np.asarray(logits, dtype=np.int64)
        u = rs((logits.max() - logits) * self.beta, self._shift)
        return EXP_TABLE[u & 63] >> np.minimum(u >> 6, _MAX_HALVINGS)

    def __call__(self, logits: np.ndarray) -> int:
        """Return the next token for ``logits [vocab]`` (integers)."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        cumulative = np.cumsum(self.weights(logits))
        threshold = (self._next() * int(cumulative[-1])) >> 32
        return int(np.searchsorted(cumulative, threshold, side="right"))

    def _next(self) -> int:
        """Advance the xorshift32 generator (Marsaglia 2003, triple 13, 17, 5)."""
        s = self.state
        s ^= (s << 13) & 0xFFFF_FFFF
        s ^= s >> 17
        s ^= (s << 5) & 0xFFFF_FFFF
        self.state = s
        return s
