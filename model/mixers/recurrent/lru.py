"""The linear recurrent unit: a recurrence with constant complex gates (LRUMML of Keras-MML)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.network.dense_mml import make_dense
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.recurrence import complex_scan
from sterna.model.network.registry import token_mixer

__all__ = ["LRU"]


@token_mixer("lru")
class LRU(TokenMixer):
    """``x = L x + exp(gamma) * (B u)``, ``y = Re(C x) + D u`` (arXiv 2303.06349, section 3.4;
    keras-matmulless 0.1.2, ``LRUMML``).

    ``u`` is the input, ``x`` the complex state of n channels, ``L = exp(-exp(nu) + i exp(theta))``
    element by element. All is done in real numbers: ``Re(C x) = C_re(x_re) - C_im(x_im)``. Without
    biases, as in the package. Per token: 4 n d + d^2 ternary MACs, 6 n products, 2 n state words.

    Parameters
    ----------
    state_dim
        n; 0 is d.
    r_min, r_max, max_phase
        L begins uniform on the ring between these radii, with phases from 0 to this.
    fully_mml
        Whether C and D are ternary as B is; the default of the package is that they are not.
    """

    def __init__(
        self, init: MixerInit, *, state_dim: int = 0, r_min: float = 0.0, r_max: float = 1.0,
        max_phase: float = 2 * math.pi, fully_mml: bool = True,
    ) -> None:
        super().__init__()
        check_whole("state_dim", state_dim, 0)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"0 <= r_min < r_max <= 1 must hold, got {r_min} and {r_max}")
        if not 0 < max_phase < math.inf:
            raise ValueError(f"max_phase must be above 0 and finite, got {max_phase}")
        d, n = init.d, state_dim or init.d
        self.state_dim = n
        self.wants_norm = not fully_mml
        # Apart from 0 and 1, whose logarithms are not finite.
        area, turn = torch.rand(2, n, generator=init.generator).clamp(1e-6, 1 - 1e-6)
        square = (area * (r_max**2 - r_min**2) + r_min**2).clamp(max=1 - 1e-6)
        self.nu = nn.Parameter((-0.5 * square.log()).log())
        self.theta = nn.Parameter((max_phase * turn).log())
        self.gamma = nn.Parameter(0.5 * (1 - square).log())
        self.b_re = make_dense(init, d, n, bias=False)
        self.b_im = make_dense(init, d, n, bias=False)
        after = init if fully_mml else replace(init, ternary=False)
        self.c_re = make_dense(after, n, d, bias=False, residual=True)
        self.c_im = make_dense(after, n, d, bias=False, residual=True)
        self.direct = make_dense(after, d, d, bias=False, residual=True)

    def multiplier(self) -> tuple[Tensor, Tensor]:
        """L, its real and imaginary part ``[n]``."""
        radius, phase = torch.exp(-self.nu.exp()), self.theta.exp()
        return radius * phase.cos(), radius * phase.sin()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map the inputs ``x [time, batch, d]`` from real and imaginary state ``[batch, n]``."""
        gain = self.gamma.exp()
        re, im = complex_scan(
            self.multiplier(), (gain * self.b_re(x), gain * self.b_im(x)), (state[0], state[1]))
        y = self.c_re(re) - self.c_im(im) + self.direct(x)
        return y, (re[-1].clone(), im[-1].clone())   # not all of re and im

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, n]``, real and imaginary part."""
        zeros = x.new_zeros(x.shape[-2], self.state_dim)
        return zeros, zeros.clone()

    def state_words(self, length: int) -> int:
        """2 n, whatever the length."""
        return 2 * self.state_dim

    def products(self, length: int) -> int:
        """Complex multiplier with state, gain with input."""
        return 6 * self.state_dim
