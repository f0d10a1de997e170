"""FNet: tokens mixed by a Fourier transform, without a parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["FNet"]


@token_mixer("fnet")
class FNet(TokenMixer):
    """``y = Re(F_time(F_channels(x)))``  (arXiv 2105.03824, equation 3).

    Both transforms are discrete Fourier transforms; no parameter, no state, any length, and every
    output depends on the whole sequence. Per token of N: no MACs, about 2 d (log2 N + log2 d)
    products.

    Parameters
    ----------
    unitary
        Whether outputs are divided by ``sqrt(N d)``, so that they are as large as inputs. The
        paper does not, and normalises after adding; with a norm before the mixer only, the sum
        over all tokens would drown the residual stream.
    """

    causal = False
    wants_norm = True

    def __init__(self, init: MixerInit, *, unitary: bool = True) -> None:
        super().__init__()
        self.d = init.d
        self.norm = "ortho" if unitary else "backward"

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a whole sequence ``x [time, batch, d]``."""
        return torch.fft.fft2(x, dim=(0, 2), norm=self.norm).real, ()

    def products(self, length: int) -> int:
        """2 n log2 n for a fast transform of n numbers, and as if n were a power of two."""
        return math.ceil(2 * self.d * (math.log2(self.d) + math.log2(max(length, 1))))
