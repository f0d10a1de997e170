"""Mixers with a weight for every pair of positions: they have a longest sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.network.mixer import State, TokenMixer

__all__ = ["PositionMixer"]


class PositionMixer(TokenMixer):
    """A mixer whose weights belong to positions, and which keeps what it saw if it is causal.

    A shorter sequence uses the weights of its first positions.

    Parameters
    ----------
    length
        Most tokens of a sequence.
    causal
        Whether a token sees earlier ones only.
    kept
        Numbers that each part of the state holds for each token, if it is causal.
    """

    def __init__(self, length: int, causal: bool, *kept: int) -> None:
        super().__init__()
        check_whole("length", length, 1, 65536)
        self.length = self.longest = length
        self.causal = causal
        self._kept = kept if causal else ()

    def initial_state(self, x: Tensor) -> State:
        """No tokens."""
        return tuple(x.new_zeros(x.shape[-2], 0, width) for width in self._kept)

    def state_words(self, length: int) -> int:
        """What is kept of every token."""
        return length * sum(self._kept)

    def after(self, *parts: Tensor) -> State:
        """The state of these parts ``[batch, n, ...]``, none if it is not causal."""
        return parts if self.causal else ()

    def extended(self, past: State, x: Tensor) -> Tensor:
        """``x [time, batch, d]`` behind its part ``[batch, n, d]`` of the state, if there is one:
        ``[batch, n + time, d]``.

        Raises
        ------
        ValueError
            If that is longer than the mixer can be.
        """
        rows = torch.cat([*past, x.transpose(0, 1)], dim=1)
        self.check_length(rows.shape[1])
        return rows

    def rows(self, weights: Tensor, time: int, total: int) -> Tensor:
        """The last ``time`` rows of the first ``total`` positions of ``weights [..., to, from]``.

        What a causal mixer must not see is 0: ``[..., time, total]``.
        """
        before = total - time
        part = weights[..., before:total, :total]
        return part.tril(before) if self.causal else part

    def hidden(self, time: int, total: int, device: torch.device) -> Tensor:
        """Where a score must be minus infinity: bool ``[time, total]``."""
        ones = torch.ones(time, total, dtype=torch.bool, device=device)
        return ones.triu(total - time + 1) if self.causal else ~ones
