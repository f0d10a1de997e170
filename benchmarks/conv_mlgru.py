"""Whether MLGRU benefits from a short convolution of each channel in front of it.

    sterna mixers --task text --budget 4 --lr 0.01 -o runs/conv \
        --mixer mlgru --mixer 'benchmarks/conv_mlgru.py:ConvMLGRU(weights=power)'
"""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import token_mixer


@token_mixer("conv_mlgru")
class ConvMLGRU(TokenMixer):
    """``mlgru(y)``, ``y_t = sum_i k_i * x_(t-i)``, with one kernel ``k`` of ``taps`` per channel.

    Parameters
    ----------
    taps
        Kernel length; initially the newest tap is 1 and all others 0.
    weights
        Kind of kernel weights: ``float``, ``power`` of two, or ``ternary``; rounded in the forward
        pass, with a straight-through gradient.
    """

    def __init__(self, init: MixerInit, *, taps: int = 4, weights: str = "float") -> None:
        super().__init__()
        self.d, self.taps, self.round = init.d, taps, _ROUNDED[weights]
        self.mlgru = MLGRU(init)
        self.kernel = init.parameter(taps, init.d, std=0.0)
        with torch.no_grad():
            self.kernel[-1] = 1

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]`` from the state of MLGRU ``[batch, d]`` and the last inputs
        ``[batch, taps - 1, d]``."""
        past = torch.cat([state[1].transpose(0, 1), x])
        kernel = self.kernel + (self.round(self.kernel) - self.kernel).detach()
        mixed = sum(kernel[i] * past[i:i + len(x)] for i in range(self.taps))
        y, hidden = self.mlgru(mixed, state[:1])
        return y, (*hidden, past[len(x):].transpose(0, 1).clone())

    def initial_state(self, x: Tensor) -> State:
        """Zeros."""
        return *self.mlgru.initial_state(x), x.new_zeros(x.shape[-2], self.taps - 1, self.d)

    def state_words(self, length: int) -> int:
        """d and the last inputs."""
        return self.taps * self.d

    def products(self, length: int) -> int:
        """Those of MLGRU, and one per tap and channel."""
        return self.mlgru.products(length) + self.taps * self.d


def _power(kernel: Tensor) -> Tensor:
    least = 2.0**-5
    power = kernel.abs().clamp(min=least).log2().round().exp2()
    return torch.where(kernel.abs() < least, 0.0, kernel.sign() * power)


def _ternary(kernel: Tensor) -> Tensor:
    scale = kernel.abs().mean()
    return (kernel / scale).round().clamp(-1, 1) * scale


_ROUNDED = {"float": torch.clone, "power": _power, "ternary": _ternary}
