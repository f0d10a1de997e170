"""Mixing that does not compare tokens: weights of positions, or a Fourier transform."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.torch.mixers.attention import head_count, merge_heads, split_heads
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import Joint, MixerInit
from sterna.model.torch.network.registry import token_mixer

__all__ = ["GMLP", "DenseSynthesizer", "FNet", "MLPMixer", "RandomSynthesizer"]


class PositionMixer(TokenMixer):
    """A mixer whose weights belong to positions, and which keeps what it saw if it is causal.

    A shorter sequence uses the weights of its first positions. ``kept`` are the numbers that each
    part of the state of a causal one holds for each token.
    """

    def __init__(self, length: int, causal: bool, *kept: int) -> None:
        super().__init__()
        check_whole("length", length, 1, 65536)
        self.length = self.longest = length
        self.causal = causal
        self._kept = kept if causal else ()

    def initial_state(self, x: Tensor) -> State:
        return tuple(x.new_zeros(x.shape[-2], 0, width) for width in self._kept)

    def state_words(self, length: int) -> int:
        return length * sum(self._kept)

    def after(self, *parts: Tensor) -> State:
        """The state of these parts ``[batch, n, ...]``, none if it is not causal."""
        return parts if self.causal else ()

    def extended(self, past: State, x: Tensor) -> Tensor:
        """``x [time, batch, d]`` behind its part ``[batch, n, d]`` of the state, if there is one:
        ``[batch, n + time, d]``; refused if it is longer than the mixer can be."""
        rows = torch.cat([*past, x.transpose(0, 1)], dim=1)
        self.check_length(rows.shape[1])
        return rows

    def rows(self, weights: Tensor, time: int, total: int) -> Tensor:
        """The last ``time`` rows of the first ``total`` positions of ``weights [..., to, from]``:
        ``[..., time, total]``, 0 where a causal mixer must not see."""
        before = total - time
        part = weights[..., before:total, :total]
        return part.tril(before) if self.causal else part


class _Synthesizer(PositionMixer):
    """Values weighted by scores that no query and key have made; which, its classes say."""

    d: int
    heads: int
    v: nn.Module
    out: nn.Module

    @abstractmethod
    def score(self, x: Tensor, total: int) -> Tensor:
        """Scores ``[..., heads, time, total]`` of ``x [time, batch, d]``, the last of ``total``
        tokens."""

    def attention(self, x: Tensor, total: int) -> Tensor:
        """Their softmax over the positions that a token may see."""
        ones = torch.ones(x.shape[0], total, dtype=torch.bool, device=x.device)
        hidden = ones.triu(total - x.shape[0] + 1) if self.causal else ~ones
        return self.score(x, total).masked_fill(hidden, -torch.inf).softmax(-1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier values ``[batch, n, d]``."""
        values = self.extended(state[:1], self.v(x))
        mixed = self.attention(x, values.shape[1]) @ split_heads(
            values.transpose(0, 1), self.heads)
        return self.out(merge_heads(mixed)), self.after(values)

    def products(self, length: int) -> int:
        return length * self.d


@token_mixer("synthesizer_dense")
class DenseSynthesizer(_Synthesizer):
    """``softmax(W2 relu(W1 x_i)) V`` for each head (arXiv 2005.00743, section 3.1).

    No query meets a key: a row of ``length`` scores depends on its token alone, cut to the visible
    positions. Per token after n: 3 d^2 + d heads length MACs, n d products, n d words of state
    (values).
    """

    def __init__(
        self, init: MixerInit, *, length: int = 256, heads: int = 0, causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d)
        self.d, self.heads = init.d, head_count(init.d, heads)
        self.inner = init.linear(init.d, init.d)
        self.scores = init.linear(init.d, self.heads * length)
        self.v = init.linear(init.d, init.d)
        self.out = init.linear(init.d, init.d, residual=True)

    def score(self, x: Tensor, total: int) -> Tensor:
        return split_heads(self.scores(self.inner(x).relu()), self.heads)[..., :total]


@token_mixer("synthesizer_random")
class RandomSynthesizer(_Synthesizer):
    """``softmax(R) V`` for each head (arXiv 2005.00743, section 3.2), ``R = R1 R2^T`` with a rank
    (section 3.3).

    R ``[length, length]``, one per head, is trained and independent of the text, so the mixer is
    linear in V, and its softmax can be precomputed. Per token after n: 2 d^2 MACs, n d products, n
    d words of state (values).

    - ``rank``: columns of R1 and R2, ``[length, rank]``; 0 trains R itself.
    """

    def __init__(
        self, init: MixerInit, *, length: int = 256, heads: int = 0, rank: int = 0,
        causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d)
        check_whole("rank", rank, 0, length)
        self.d, self.heads, self.rank = init.d, head_count(init.d, heads), rank
        if rank:
            # The products then have the same deviation as R.
            std = (0.02 / rank ** 0.5) ** 0.5
            self.left = init.parameter(self.heads, length, rank, std=std)
            self.right = init.parameter(self.heads, length, rank, std=std)
        else:
            self.full = init.parameter(self.heads, length, length)
        self.v = init.linear(init.d, init.d)
        self.out = init.linear(init.d, init.d, residual=True)

    def score(self, x: Tensor, total: int) -> Tensor:
        before = total - x.shape[0]
        if self.rank:
            return self.left[:, before:total] @ self.right[:, :total].transpose(-1, -2)
        return self.full[:, before:total, :total]


@token_mixer("gmlp")
class GMLP(PositionMixer):
    """``y = out(u * (W n(v) + b))``, ``u, v = gelu(U x), gelu(V x)`` (arXiv 2105.08050, equations 1
    to 4, with d channels for u and v).

    n is a LayerNorm per token. W ``[length, length]`` mixes tokens alike for all channels; it
    starts near 0 and b at 1, so the gate starts open. It stays float: a ternary projection would
    normalise over time. If causal, W is lower triangular. Per token after n: 3 d^2 MACs, n d + d
    products, n d words of state.
    """

    def __init__(self, init: MixerInit, *, length: int = 256, causal: bool = True) -> None:
        super().__init__(length, causal, init.d)
        self.d = init.d
        self.uv = Joint(u=init.linear(init.d, init.d), v=init.linear(init.d, init.d))
        self.norm = nn.LayerNorm(init.d)
        self.weight = init.parameter(length, length, std=1e-3 / length)
        self.bias = nn.Parameter(torch.ones(length))
        self.out = init.linear(init.d, init.d, residual=True)

    def gated(self, u: Tensor, rows: Tensor) -> Tensor:
        """``u * (W rows + b)``: ``u [time, batch, d]`` are the last of ``rows [batch, n, d]``."""
        time, total = u.shape[0], rows.shape[1]
        mixed = self.rows(self.weight, time, total) @ rows              # [batch, time, d]
        bias = self.bias[total - time:total].unsqueeze(-1)
        return u * (mixed + bias).transpose(0, 1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is ``n(v)`` of earlier tokens
        ``[batch, n, d]``."""
        u, v = F.gelu(self.uv(x)).chunk(2, dim=-1)
        rows = self.extended(state[:1], self.norm(v))
        return self.out(self.gated(u, rows)), self.after(rows)

    def products(self, length: int) -> int:
        """A row of W with the tokens, and the gate."""
        return (length + 1) * self.d


@token_mixer("mlp_mixer")
class MLPMixer(PositionMixer):
    """``y = W2 gelu(W1 x + b1) + b2``, x being a channel over time (arXiv 2105.01601, equation 1,
    token mixing).

    If causal, W1 and W2 are lower triangular: a position's rows see earlier positions only. Both
    stay float, as a ternary projection would normalise over time. Per token after n, with e =
    expansion: no MACs, 2 e n d products, (1 + e) n d words of state (inputs and hidden values).

    - ``expansion``: rows of W1, hidden values, per position.
    """

    wants_norm = True

    def __init__(
        self, init: MixerInit, *, length: int = 256, expansion: int = 1, causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d, expansion * init.d)
        check_whole("expansion", expansion, 1, 64)
        self.d, self.expansion = init.d, expansion
        std = length ** -0.5
        self.w1 = init.parameter(expansion, length, length, std=std)
        self.b1 = nn.Parameter(torch.zeros(expansion, length))
        self.w2 = init.parameter(expansion, length, length, std=std / expansion ** 0.5)
        self.b2 = nn.Parameter(torch.zeros(length))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier inputs ``[batch, n, d]`` and hidden
        values ``[batch, n, expansion * d]``."""
        rows = self.extended(state[:1], x)
        time, total = x.shape[0], rows.shape[1]
        new = slice(total - time, total)
        inner = self.rows(self.w1, time, total) @ rows.unsqueeze(1)     # [batch, e, time, d]
        inner = F.gelu(inner + self.b1[:, new].unsqueeze(-1))
        hidden = self.extended(state[1:], inner.permute(2, 0, 1, 3).flatten(-2))
        by_row = hidden.unflatten(-1, (self.expansion, -1)).transpose(1, 2)
        mixed = (self.rows(self.w2, time, total) @ by_row).sum(1)       # [batch, time, d]
        y = (mixed + self.b2[new].unsqueeze(-1)).transpose(0, 1)
        return y, self.after(rows, hidden)

    def products(self, length: int) -> int:
        """The new rows of W1 and a row of W2."""
        return 2 * self.expansion * length * self.d


@token_mixer("fnet")
class FNet(TokenMixer):
    """``y = Re(F_time(F_channels(x)))`` (arXiv 2105.03824, equation 3).

    Both are discrete Fourier transforms; no parameters, no state, any length; every output depends
    on the whole sequence. Per token of N: no MACs, about 2 d (log2 N + log2 d) products.

    - ``unitary``: whether outputs are divided by ``sqrt(N d)``, to match inputs in size. The paper
      does not and normalises after adding; with only a norm before the mixer, the sum over all
      tokens would drown the residual stream.
    """

    causal = False
    wants_norm = True

    def __init__(self, init: MixerInit, *, unitary: bool = True) -> None:
        super().__init__()
        self.d = init.d
        self.norm = "ortho" if unitary else "backward"

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.fft.fft2(x, dim=(0, 2), norm=self.norm).real, ()

    def products(self, length: int) -> int:
        """2 n log2 n for a fast transform of n numbers, and as if n were a power of two."""
        return math.ceil(2 * self.d * (math.log2(self.d) + math.log2(max(length, 1))))
