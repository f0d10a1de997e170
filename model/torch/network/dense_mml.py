"""DenseMML, the ternary layer of Keras-MML (keras-matmulless 0.1.2), with a gained norm.

Unlike in :class:`~sterna.model.torch.network.bitlinear.BitLinear` the norm precedes the quantiser
and has a trained gain, so that the size of a vector matters. Values and the gradients of ``x``,
gain and bias equal those of the package; gradients of the weights do not: the package also
differentiates the scale ``s = mean|W|`` and passes through the codes instead of the weights, which
gives ``s * g + sign(W) * sum(g * T) / n`` where ours is ``g``, with codes T and n weights.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.projection import MixerInit, Projection
from sterna.model.torch.network.quantizers import round_codes, ternarize

__all__ = ["ACTIVATIONS", "Activation", "DenseMML", "activation_named", "dense_mml", "gained",
           "make_dense"]

Activation: TypeAlias = Callable[[Tensor], Tensor]


def _linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "linear": _linear, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": F.relu,
    "gelu": F.gelu, "silu": F.silu, "selu": F.selu,
}
"""The functions by their Keras names; ``gelu`` is the exact one."""


def activation_named(name: str) -> Activation:
    """The function called ``name``.

    >>> activation_named("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(ACTIVATIONS)}"
        raise ValueError(f"no activation is called {name!r}; {hint}")
    return ACTIVATIONS[name]


_EPS = 1e-6
"""Added to a mean square in published checkpoints."""
_SMALLEST_PEAK = 1e-5
"""Lower limit of a vector's largest magnitude; a zero vector is quantised to zeros."""


@keeps_precision
def dense_mml(
    x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor | None, eps: float = 0.0,
) -> Tensor:
    """``Q(sqrt(d) x / |x| * gain) @ ternarize(weight).T + bias``, Q rounding to 8 bits.

    ``x [..., d]``, ``weight [rows, d]``, ``gain [d]``, ``bias [rows]``; returns
    ``[..., rows]``. ``eps`` is added to the mean square of x. Gradients pass straight through both
    quantisers.
    """
    size = x.shape[-1]
    normalised = gain * (F.rms_norm(x, [size], eps=eps) if eps else
                         F.normalize(x, dim=-1) * math.sqrt(size))
    exact = normalised.detach()
    unit = exact.abs().amax(-1, keepdim=True).clamp_min(_SMALLEST_PEAK) / 127
    error = round_codes(exact / unit) * unit - exact
    return F.linear(normalised + error, ternarize(weight), bias)


class DenseMML(nn.Module):
    """:func:`dense_mml` with trained weights ``[rows, columns]``, initialised as in a
    ``BitLinear``, gains, initialised to one, and a bias."""

    def __init__(
        self, columns: int, rows: int, *, bias: bool = True,
        generator: torch.Generator | None = None, eps: float = 0.0,
    ) -> None:
        super().__init__()
        # Holds weight and bias, and counts as ternary; its norm is not used.
        self.linear = BitLinear(columns, rows, bias=bias, gain=False, generator=generator)
        self.gain = nn.Parameter(torch.ones(columns))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., columns]``, not normalised, to ``[..., rows]``."""
        return dense_mml(x, self.linear.weight, self.gain, self.linear.bias, self.eps)


def gained(
    init: MixerInit, gains: bool = True,
) -> tuple[Callable[..., DenseMML | Projection], nn.Module]:
    """The factory of a mixer's projections with gains, and the norm in front of them, also with
    gains; a float mixer has its norm in its block. Without ``gains``: ``init.linear`` and no norm.
    """
    if not gains:
        return init.linear, nn.Identity()
    norm = nn.RMSNorm(init.d, eps=_EPS) if init.ternary else nn.Identity()
    return partial(make_dense, init, eps=_EPS), norm


def make_dense(
    init: MixerInit, columns: int, rows: int, *, bias: bool = True, residual: bool = False,
    eps: float = 0.0,
) -> DenseMML | nn.Linear:
    """The ``init.linear`` of mixers with gains: a ``DenseMML``, or in float a plain ``nn.Linear``.
    """
    if init.ternary:
        return DenseMML(columns, rows, bias=bias, generator=init.generator, eps=eps)
    linear = init.linear(columns, rows, bias=bias, residual=residual)
    assert isinstance(linear, nn.Linear)
    return linear
