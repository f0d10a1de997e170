"""Attention whose state does not grow, as its scores are products of features."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.torch.mixers.attention import Attention, merge_heads, rotate
from sterna.model.torch.network.kernels import Replaceable
from sterna.model.torch.network.mixer import State
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.recurrence import matrix_scan
from sterna.model.torch.network.registry import token_mixer

__all__ = ["CHUNK", "EPS", "FeatureAttention", "LinearAttention", "Performer",
           "ReluLinearAttention", "causal_by_sums", "elu_features", "log_features",
           "mixed_by_sums", "orthogonal_rows"]


CHUNK = 32
"""Tokens that are mixed by a product of scores before they are added to the sums."""

EPS = 1e-6
"""Added to the sum of the scores of a query, which may be 0 if all of them are tiny."""


def elu_features(x: Tensor) -> Tensor:
    """``elu(x) + 1``: ``x + 1`` above 0 and ``e^x`` below, so always positive."""
    return F.elu(x) + 1


def mixed_by_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``q (k^T v) / (q sum(k) + eps)``: every query sees every key. ``q`` and ``k`` are features
    ``[..., time, features]`` that are not negative, ``v`` and the result ``[..., time, width]``."""
    scores = q @ k.sum(-2).unsqueeze(-1)                    # [..., time, 1]
    return q @ (k.transpose(-1, -2) @ v) / (scores + EPS)


@Replaceable
def causal_by_sums(
    q: Tensor, k: Tensor, v: Tensor, values: Tensor, keys: Tensor, *, chunk: int = CHUNK,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where a query sees its own key and earlier ones, in chunks.

    Inside a chunk the scores are written out and masked; what came before it is in the sums. The
    time is linear in the number of tokens, and every chunk is computed at once.

    ``values`` and ``keys`` are the sums so far, of ``k^T v`` ``[..., features, width]`` and of
    ``k [..., features]``; returned are the mixed values and the sums after the last token. Nothing
    depends on ``chunk`` but the time.
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


class FeatureAttention(Attention):
    """What :class:`LinearAttention` computes, for the phi of the class that extends this one.

    Per token, with m features of a head: 2 m d + m heads products, m d + m heads words of state,
    and one that counts the tokens if there are rotary positions, which take 4 d products.
    """

    fading: Tensor

    def __init__(
        self, init: MixerInit, *, heads: int = 0, causal: bool = True, rope: bool = True,
        decay: int = 0,
    ) -> None:
        super().__init__(init, heads=heads, causal=causal, rope=rope)
        check_whole("decay", decay, 0)
        if decay and not causal:
            raise ValueError("decay is for causal attention, which has sums over earlier tokens")
        self.features, self.decay = self.width, decay
        if decay:
            fading = 1 - 0.5 ** torch.arange(float(decay), decay + self.heads)
            self.register_buffer("fading", fading, persistent=False)

    @abstractmethod
    def of_queries(self, q: Tensor) -> Tensor:
        """phi of queries ``[..., width]``, not negative: ``[..., features]``; each may be scaled by
        a factor of its own, which cancels."""

    def of_keys(self, k: Tensor) -> Tensor:
        """phi of keys, by default the same."""
        return self.of_queries(k)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the sum of ``phi(k)^T v``
        ``[batch, heads, features, width]``, that of ``phi(k)`` ``[batch, heads, features]``, and
        with positions the number of tokens so far ``[batch, 1]``."""
        q, k, v = self.heads_of(x)
        count: State = ()
        if self.rope:
            positions = torch.arange(x.shape[0], device=x.device)
            if self.causal:
                positions = positions + state[2]        # [batch, time]
                count = (state[2] + x.shape[0],)
            q, k = rotate(torch.stack([q, k]), positions.unsqueeze(-2)).unbind()
        q, k = self.of_queries(q), self.of_keys(k)
        if not self.causal:
            return self.out(merge_heads(mixed_by_sums(q, k, v))), ()
        mixed = self._decaying if self.decay else causal_by_sums
        y, values, keys = mixed(q, k, v, state[0], state[1])
        return self.out(merge_heads(y)), (values, keys, *count)

    def _decaying(
        self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, keys: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """:func:`causal_by_sums` where the sums fade. Another value, 1 for every token, gives the
        sum of the scores, and its state that of the keys."""
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        q, k, v = (each.movedim(2, 0) for each in (q, k, v))    # [time, batch, heads, ...]
        y, last = matrix_scan(q, self.fading.unsqueeze(-1).expand_as(k), k, v,
                              torch.cat([values, keys.unsqueeze(-1)], dim=-1))
        mixed = y[..., :-1] / (y[..., -1:] + EPS)
        return mixed.movedim(0, 2), last[..., :-1].clone(), last[..., -1].clone()

    def initial_state(self, x: Tensor) -> State:
        if not self.causal:
            return ()
        batch = x.shape[-2]
        count = (torch.zeros(batch, 1, dtype=torch.int64, device=x.device),) if self.rope else ()
        return (x.new_zeros(batch, self.heads, self.features, self.width),
                x.new_zeros(batch, self.heads, self.features), *count)

    def state_words(self, length: int) -> int:
        if not self.causal:
            return 0
        return self.heads * self.features * (self.width + 1) + int(self.rope)

    def products(self, length: int) -> int:
        """Into the sums, out of them, and the sum of the scores; with RoPE four for each pair of
        query and key."""
        return self.heads * self.features * (2 * self.width + 1) + 4 * self.d * self.rope


@token_mixer("linear")
class LinearAttention(FeatureAttention):
    """``y_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + 1e-6)`` for each head,
    with ``phi(x) = elu(x) + 1`` (arXiv 2006.16236, equations 7 and 18 to 20).

    Features are positive, so an output is a mean of values. The state is the sums over earlier
    tokens; long pieces are computed in chunks with explicit scores inside. Per token: 2 d^2/heads +
    d products and 4 d for positions, d^2/heads + d words of state and a count.

    - ``rope``: rotates queries and keys before phi, which keeps features positive; scores then are
      no function of distance alone.
    - ``decay``: if not 0, the sums of head h, from 0, fade by ``1 - 2^-(decay+h)`` a token (arXiv
      2307.08621, section 2.2, with 5); otherwise earlier tokens count alike.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        return elu_features(q)


@token_mixer("linear_relu")
class ReluLinearAttention(FeatureAttention):
    """``linear`` with ``phi(x) = relu(x)`` (Performer-ReLU of arXiv 2009.14794, section 4, without
    its random projection).

    Needs no exponential. A query whose features are all 0 gets 0. Options and costs as for
    ``linear``.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        return q.relu()


_WIDEST = 64
"""Widest head whose features stay in float32's range: see :class:`Performer`."""


def orthogonal_rows(
    rows: int, width: int, generator: torch.Generator | None = None,
) -> Tensor:
    """Random vectors ``[rows, width]``, each as if its numbers were independent and normal.

    Within ``width`` of them they are orthogonal to each other, which lowers the variance of the
    estimate. A QR decomposition alone gives directions that are not uniform, and so a bias: the
    columns of Q need the signs of the diagonal of R.
    """
    blocks = []
    for _ in range(-(-rows // width)):
        normal = torch.empty(width, width, dtype=torch.float64).normal_(generator=generator)
        q, r = torch.linalg.qr(normal)
        blocks.append((q * r.diagonal().sign()).t())
    # The length of a normal vector, independent of its direction.
    lengths = torch.empty(rows, width, dtype=torch.float64).normal_(generator=generator).norm(
        dim=1, keepdim=True)
    return (torch.cat(blocks)[:rows] * lengths).to(torch.get_default_dtype())


def log_features(x: Tensor, rows: Tensor) -> Tensor:
    """The logarithm of ``exp(w x - |x|^2 / 2) / sqrt(m)`` for each of m rows w: ``x [..., width]``
    to ``[..., m]``. The expectation over the rows of the product of those of x and of y is
    ``exp(x y)``."""
    return x @ rows.t() - (x.square().sum(-1, keepdim=True) + math.log(rows.shape[0])) / 2


@token_mixer("performer")
class Performer(FeatureAttention):
    """``linear`` with ``phi(x) = exp(W x - |x|^2/2) / sqrt(m)`` (FAVOR+, arXiv 2009.14794, lemma 1
    and section 2.4), x being a query or key over the fourth root of its width.

    ``E[phi(q) phi(k)] = exp(q k)``, so it estimates softmax attention. The m rows of W are drawn
    once, orthogonal where possible, and not trained. Per token: 4 m d + m heads + 2 d products and
    4 d for positions, m d + m heads words of state and a count.

    It stays in range: ``w x - |x|^2/2 = (|w|^2 - |x-w|^2)/2`` is at most ``|w|^2/2``, some 50 for
    the longest of m rows of width 64, the widest head allowed; float32 ends at e^88. Queries are
    also divided by their largest feature, which cancels; for keys this would reveal the size of
    later ones.

    - ``features``: m, features per head; 0 is twice its width.
    """

    rows: Tensor

    def __init__(
        self, init: MixerInit, *, features: int = 0, heads: int = 0, causal: bool = True,
        rope: bool = True, decay: int = 0,
    ) -> None:
        super().__init__(init, heads=heads, causal=causal, rope=rope, decay=decay)
        check_whole("features", features, 0)
        if self.width > _WIDEST:
            raise ValueError(
                f"a head of {self.width} channels has features beyond the range of float32: take "
                f"more heads than {self.heads}, of at most {_WIDEST} channels each")
        self.features = features or 2 * self.width
        self.register_buffer("rows", orthogonal_rows(self.features, self.width, init.generator))

    def of_queries(self, q: Tensor) -> Tensor:
        exponents = log_features(q * self.width ** -0.25, self.rows)
        return (exponents - exponents.amax(-1, keepdim=True)).exp()

    def of_keys(self, k: Tensor) -> Tensor:
        return log_features(k * self.width ** -0.25, self.rows).exp()

    def products(self, length: int) -> int:
        """Beside those of linear attention W x, and the square of x."""
        return super().products(length) + 2 * self.d * (self.features + 1)
