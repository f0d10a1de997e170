"""The recurrence of a state that is a matrix, ``S[t] = Diag(f[t]) S[t-1] + k[t] v[t]^T``.

What is read from it is ``o[t] = q[t]^T S[t]``. Sequences are time-major; ``query``, ``forget`` and
``key`` are ``[time, batch, heads, k]``, ``value`` is ``[time, batch, heads, v]``, the state before
the first step ``[batch, heads, k, v]``. Both forms return the outputs ``[time, batch, heads, v]``
and the last state.

- :func:`naive_matrix_scan`: the loop. What the other must equal, and the form of a single step.
- :func:`matrix_scan`: chunks side by side, so that Python takes about ``8 + time / 8`` steps
  and most of the work is in matrix products.

Both are exact for ``f = 0`` and ``f = 1``: no logarithms and no quotients of gates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.autocast import keeps_precision
from sterna.model.network.replaceable import Replaceable

__all__ = ["matrix_scan", "naive_matrix_scan"]

_CHUNK = 8
"""Tokens in a chunk: the work inside grows with it, the number of states to chain falls."""


def naive_matrix_scan(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """The recurrence as written, one step at a time."""
    state = initial
    outputs = []
    for q, f, k, v in zip(*(each.unbind(0) for each in (query, forget, key, value)), strict=True):
        state = f.unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs), state


@Replaceable
@keeps_precision
def matrix_scan(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """As :func:`naive_matrix_scan`, in chunks.

    Inside a chunk ``o[t] = sum_s (q[t] . reach[t, s] * k[s]) v[s]``, where ``reach[t, s]`` is the
    product of the gates after s up to t. The keys times their reach are kept while t advances,
    in all chunks at once; those at a chunk's end give what it adds to the state. Then the states
    between chunks are chained, and every token reads the one that its chunk began with.
    """
    steps = query.shape[0]
    if steps <= 2:
        return naive_matrix_scan(query, forget, key, value, initial)
    spare = -steps % _CHUNK
    q, f, k, v = (_chunks(each, spare, fill) for each, fill in (
        (query, 0.0), (forget, 1.0), (key, 0.0), (value, 0.0)))   # [chunks, batch, heads, 8, .]
    reaching = k[..., :0, :]
    scores = []
    for t in range(_CHUNK):
        reaching = torch.cat([reaching * f[..., t:t + 1, :], k[..., t:t + 1, :]], dim=-2)
        row = (reaching * q[..., t:t + 1, :]).sum(-1)
        scores.append(F.pad(row, (0, _CHUNK - 1 - t)))
    since_start = f.cumprod(dim=-2)
    added = reaching.transpose(-1, -2) @ v
    state, entering = initial, []
    for through, new in zip(since_start[..., -1:, :].transpose(-1, -2), added, strict=True):
        entering.append(state)
        state = through * state + new
    outputs = torch.stack(scores, dim=-2) @ v + (q * since_start) @ torch.stack(entering)
    flat = outputs.permute(0, 3, 1, 2, 4).flatten(0, 1)
    return flat[:steps], state


def _chunks(x: Tensor, spare: int, fill: float) -> Tensor:
    """``[time, batch, heads, n]`` to ``[chunks, batch, heads, 8, n]``, ``fill`` at the end."""
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, spare), value=fill)
    return padded.unflatten(0, (-1, _CHUNK)).permute(0, 2, 3, 1, 4)
