"""Choose the next token from integer logits, in integers.

Greedy is the argmax, lowest index on ties. Temperature sampling draws one 32-bit number per
token: no noise per logit, no division. It is designed for hardware: every implementation of
these integers writes the same text for the same seed.
"""

from __future__ import annotations

import math

import numpy as np

from sterna.model.checks import real_number, whole_number
from sterna.model.quantized.integer import rs

__all__ = ["EXP_TABLE", "Sampler"]

EXP_TABLE = np.array([math.floor(2.0 ** (-j / 64) * (1 << 16) + 0.5) for j in range(64)])
"""``2^(-j/64)`` with 16 fraction bits."""

_BETA_FRAC = 10
_MAX_HALVINGS = 17     # 2^16 >> 17 is 0: such an unlikely token has probability 0


class Sampler:
    """Draws tokens from integer logits.

    Of two tokens with equal logits the lower index counts as more likely.

    Parameters
    ----------
    temperature
        0 is greedy; otherwise from 0.01 to 100. Higher is more random.
    seed
        Seed of the xorshift32 generator, 1 to 2**32 - 1.
    logit_frac
        Fraction bits of the logits.
    top_k
        Draw only from the k most likely tokens, from 1; None takes all.
    top_p
        Draw only from the fewest tokens, most likely first, that reach this share of the total
        weight, above 0 and up to 1; None takes all. In steps of 2**-16, after ``top_k``.

    Raises
    ------
    ValueError
        If an argument has the wrong type or is out of range.

    >>> Sampler(temperature=0)(np.array([3, 9, 9, 1]))
    1
    """

    def __init__(
        self, *, temperature: float = 0.0, seed: int = 1, logit_frac: int = 8,
        top_k: int | None = None, top_p: float | None = None,
    ) -> None:
        seed = whole_number("seed", seed, 1, (1 << 32) - 1)
        top_k = None if top_k is None else whole_number("top_k", top_k, 1)
        logit_frac = whole_number("logit_frac", logit_frac, 0, 24)
        temperature = real_number("temperature", temperature)
        if top_p is not None and not 0 < real_number("top_p", top_p) <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
        if temperature != 0 and not 0.01 <= temperature <= 100:
            raise ValueError(f"temperature must be 0 or from 0.01 to 100, got {temperature:g}")
        self.temperature = temperature
        self.state = seed
        self._top_k = top_k
        self._top_p = None if top_p is None else max(1, math.floor(top_p * (1 << 16) + 0.5))
        self._shift = logit_frac + _BETA_FRAC - 6
        self.beta = (0 if temperature == 0 else
                     math.floor(math.log2(math.e) / temperature * (1 << _BETA_FRAC) + 0.5))

    def weights(self, logits: np.ndarray) -> np.ndarray:
        """Unnormalised probabilities ``e``, int64; the largest logit has 2**16.

        Tokens excluded by ``top_k`` or ``top_p`` have 0.
        """
        logits = np.asarray(logits, dtype=np.int64)
        u = rs((logits.max() - logits) * self.beta, self._shift)
        e = EXP_TABLE[u & 63] >> np.minimum(u >> 6, _MAX_HALVINGS)
        if self._top_k is None and self._top_p is None:
            return e
        order = np.argsort(-logits, kind="stable")
        order, out = order[:self._top_k], order[self._top_k or len(order):]
        e[out] = 0
        if self._top_p is not None:
            before = np.cumsum(e[order]) - e[order]
            e[order[(before << 16) >= self._top_p * int(e.sum())]] = 0
        return e

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
