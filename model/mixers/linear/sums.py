"""Attention by sums: scores are products of features, so keys and values add up beforehand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.kernels import Replaceable

__all__ = ["CHUNK", "EPS", "causal_by_sums", "elu_features", "mixed_by_sums"]

CHUNK = 32
"""Tokens that are mixed by a product of scores before they are added to the sums."""

EPS = 1e-6
"""Added to the sum of the scores of a query, which may be 0 if all of them are tiny."""


def elu_features(x: Tensor) -> Tensor:
    """``elu(x) + 1``: ``x + 1`` above 0 and ``e^x`` below, so always positive."""
    return F.elu(x) + 1


def mixed_by_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``q (k^T v) / (q sum(k) + eps)``: every query sees every key.

    ``q`` and ``k`` are features ``[..., time, features]`` that are not negative, ``v`` is
    ``[..., time, width]``, and so is the result.
    """
    scores = q @ k.sum(-2).unsqueeze(-1)                    # [..., time, 1]
    return q @ (k.transpose(-1, -2) @ v) / (scores + EPS)


@Replaceable
def causal_by_sums(
    q: Tensor, k: Tensor, v: Tensor, values: Tensor, keys: Tensor, *, chunk: int = CHUNK,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where a query sees its own key and earlier ones, in chunks.

    Inside a chunk the scores are written out and masked; what came before it is in the sums. The
    time is linear in the number of tokens, and every chunk is computed at once.

    Parameters
    ----------
    q, k, v
        As in :func:`mixed_by_sums`; time may be any number from 1.
    values, keys
        The sums so far: of ``k^T v`` ``[..., features, width]`` and of ``k [..., features]``.
    chunk
        Tokens of a chunk; the result does not depend on it.

    Returns
    -------
    The mixed values ``[..., time, width]``, and the sums after the last token.
    """
    time = q.shape[-2]
    chunk = min(chunk, time)
    spare = -time % chunk
    # Tokens of zeros at the end add nothing to the sums.
    q, k, v = (F.pad(each, (0, 0, 0, spare)).unflatten(-2, (-1, chunk)) for each in (q, k, v))
    scores = (q @ k.transpose(-1, -2)).tril()               # [..., chunks, chunk, chunk]
    before = torch.cat(
        [values.unsqueeze(-3), k.transpose(-1, -2) @ v], dim=-3).cumsum(-3)
    keys_before = torch.cat([keys.unsqueeze(-2), k.sum(-2)], dim=-2).cumsum(-2)
    above = scores @ v + q @ before[..., :-1, :, :]
    below = scores.sum(-1, keepdim=True) + q @ keys_before[..., :-1, :].unsqueeze(-1)
    y = (above / (below + EPS)).flatten(-3, -2)[..., :time, :]
    # Copies: a part of a tensor would keep all of it.
    return y, before[..., -1, :, :].clone(), keys_before[..., -1, :].clone()
