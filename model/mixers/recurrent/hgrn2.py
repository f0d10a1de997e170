"""HGRN2: the gated recurrence with a matrix as state, and MLGRU's gates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.recurrence import matrix_scan
from sterna.model.network.registry import token_mixer

__all__ = ["HGRN2"]


@token_mixer("hgrn2")
class HGRN2(TokenMixer):
    """``S = Diag(f) S + (1-f) v^T``, ``o = q^T S``, ``y = out(norm(o))`` (arXiv 2404.07904).

    ``q = silu(Q x)``, ``f = bound + (1 - bound) * sigmoid(F x)``, ``v = V x``, each cut into d/k
    heads of k channels; with k = 1 and q = 1 it is the recurrence of MLGRU. Per token: 4 d^2
    ternary MACs, 3 d k products (d more with a bound), d k words of state.

    The paper learns lower bounds of f that grow from layer to layer. A mixer knows no other layer:
    here the bound is a constant, which a pattern can give to each layer, such as
    ``hgrn2 + hgrn2(bound=0.5)``.

    Parameters
    ----------
    expand
        k, by how much the state is larger than a vector; d must be a multiple of it.
    bound
        Least value of the forget gate, from 0 to below 1.
    """

    def __init__(self, init: MixerInit, *, expand: int = 16, bound: float = 0.0) -> None:
        super().__init__()
        check_whole("expand", expand, 1)
        if init.d % expand:
            raise ValueError(f"d ({init.d}) must be a multiple of expand ({expand})")
        if not 0 <= bound < 1:
            raise ValueError(f"bound must be at least 0 and below 1, got {bound}")
        self.d, self.expand, self.bound = init.d, expand, bound
        query, forget, value = (init.linear(init.d, init.d) for _ in range(3))
        self.qfv = Joint(q=query, f=forget, v=value)
        self.norm = nn.Identity() if init.ternary else nn.RMSNorm(init.d, eps=1e-6)
        self.out = init.linear(init.d, init.d, residual=True)
        assert forget.bias is not None
        nn.init.constant_(forget.bias, 1.0)  # forget slowly until told otherwise

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, forget gate and value of ``x [time, batch, d]``, each
        ``[time, batch, d/k, k]``."""
        parts = self.qfv(x).unflatten(-1, (3, -1, self.expand))
        q, f, v = parts.unbind(-3)
        return F.silu(q), self.bound + (1 - self.bound) * torch.sigmoid(f), v

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d/k, k, k]``."""
        q, f, v = self.gates(x)
        o, last = matrix_scan(q, f, 1 - f, v, state[0])
        return self.out(self.norm(o.flatten(-2))), (last,)

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, d/k, k, k]``: heads, channels of f, channels of v."""
        return (x.new_zeros(x.shape[-2], self.d // self.expand, self.expand, self.expand),)

    def state_words(self, length: int) -> int:
        """d k, whatever the length."""
        return self.d * self.expand

    def products(self, length: int) -> int:
        """Forget gate with state, its complement with value, query with state; the bound."""
        return 3 * self.d * self.expand + (self.d if self.bound else 0)
