"""A small trainable recurrent network over sensor frames."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.profile import S16, NumericProfile, profile_of
from sterna.model.quantized import QuantizedModel
from sterna.model.torch.mixers.channel import GLU
from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.stack.convert import Input, Residual, from_module

__all__ = ["Network"]


class Network(nn.Module):
    """:class:`Input`, a projection to ``d``, ``layers`` pairs of MLGRU and GLU, each with a
    residual, and a projection to the outputs; all matrices ternary.

    Parameters
    ----------
    inputs, outputs
        Channels of a frame, and results of each: classes, for example.
    d, dff
        Width of the residual stream, and of the hidden vector of a GLU.
    layers
        Pairs of an MLGRU and a GLU.
    seed
        Of the initial weights.

    >>> network = Network(3, 2, d=8, layers=1, dff=16)
    >>> every, pooled = network(torch.zeros(5, 4, 3), lengths=torch.tensor([5, 3, 5, 1]))
    >>> every.shape, pooled.shape
    (torch.Size([5, 4, 2]), torch.Size([4, 2]))
    """

    def __init__(
        self, inputs: int, outputs: int, *, d: int = 32, layers: int = 2, dff: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("outputs", outputs), ("d", d),
                            ("layers", layers), ("dff", dff)):
            check_whole(name, value, 1, 1 << 16)
        init = MixerInit(d, dff, generator=torch.Generator().manual_seed(seed))
        mixers = [make(init) for _ in range(layers) for make in (MLGRU, GLU)]
        self.input = Input(inputs)
        self.layers = nn.Sequential(
            self.input, init.linear(inputs + 1, d, output="x"),
            *(Residual(mixer) for mixer in mixers), init.linear(d, outputs, output="logit"))

    def fit(self, frames: Tensor) -> Network:
        """Set the constants of the input from ``frames [..., inputs]`` by :meth:`Input.fit`; return
        itself."""
        self.input.fit(frames)
        return self

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run ``frames [time, batch, inputs]``; return the results of every frame, ``[time, batch,
        outputs]``, and their mean over the frames of each sequence, ``[batch, outputs]``.

        ``lengths [batch]`` are the valid frames of each sequence; None for all.
        """
        every = self.layers(frames)
        if lengths is None:
            return every, every.mean(dim=0)
        counts = torch.arange(len(every), device=every.device)[:, None, None] < lengths[:, None]
        return every, (every * counts).sum(dim=0) / lengths[:, None]

    def to_model(
        self, profile: NumericProfile | str = S16,
        provenance: Mapping[str, Any] = MappingProxyType({}),
    ) -> QuantizedModel:
        """The network in integers. ValueError if a weight is not finite."""
        profile = profile_of(profile)
        return from_module(
            self.layers, profile=profile, output=profile.logit).to_model(provenance)
