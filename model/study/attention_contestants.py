"""What ``sterna bench attention`` times: the ways to mix the tokens of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.mixers.linear.elu import LinearAttention
from sterna.model.mixers.linear.sums import causal_by_sums, elu_features, mixed_by_sums
from sterna.model.mixers.recurrent.mlgru import MLGRU
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.recurrence import mlgru_scan

__all__ = ["CONTESTANTS", "FUSED", "MATERIALISED", "PARTS", "Call", "contestant",
           "contestants_of", "materialised"]

Call: TypeAlias = Callable[[], object]

MATERIALISED, FUSED = "softmax", "softmax fused"
CONTESTANTS = {
    MATERIALISED: "softmax(Q K^T / sqrt(width)) V, the matrix written to memory",
    FUSED: "the same by torch's scaled_dot_product_attention",
    "softmax causal": "the same, every token sees earlier ones only",
    "linear": "linear attention, features elu + 1",
    "linear causal": "the same, every token sees earlier ones only",
    "mlgru": "gates, recurrence and output gate of the MLGRU, which is causal",
    "mlgru scan": "its recurrence alone",
}
"""Names of the contestants, and what each is."""

PARTS = {
    "core": "what lies between the projections",
    "float": "the whole mixer, with float projections",
    "ternary": "the whole mixer, with ternary projections",
}


def contestants_of(part: str) -> list[str]:
    """The names that a part has: a recurrence alone is no mixer."""
    return [name for name in CONTESTANTS if part == "core" or name != "mlgru scan"]


def materialised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention as its formula is written: ``[batch, heads, time, width]`` all."""
    return (q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)).softmax(-1) @ v


class _Materialised(Attention):
    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return materialised(q, k, v)


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mixed_by_sums(elu_features(q), elu_features(k), v)


def _linear_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    width = q.shape[-1]
    sums = q.new_zeros(*q.shape[:2], width, width)
    return causal_by_sums(elu_features(q), elu_features(k), v, sums, sums[..., 0])[0]


def _mlgru(f: Tensor, c: Tensor, g: Tensor) -> Tensor:
    return g.sigmoid() * mlgru_scan(f.sigmoid(), F.silu(c), f.new_zeros(f.shape[1:]))


def _mlgru_scan(f: Tensor, c: Tensor) -> Tensor:
    return mlgru_scan(f, c, f.new_zeros(f.shape[1:]))


_CORES: dict[str, Callable[..., Tensor]] = {
    MATERIALISED: materialised,
    FUSED: F.scaled_dot_product_attention,
    "softmax causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "linear": _linear, "linear causal": _linear_causal,
    "mlgru": _mlgru, "mlgru scan": _mlgru_scan,
}


def contestant(
    name: str, part: str, shape: tuple[int, int, int], *, heads: int, backward: bool,
    device: str, seed: int,
) -> Call:
    """A call that mixes random tokens once, forward or forward and backward.

    Parameters
    ----------
    name, part
        One of :data:`CONTESTANTS`, and which part of it: one of :data:`PARTS`.
    shape
        (time, batch, d) of the tokens, float32.
    heads
        Heads of attention; a recurrence has none.
    backward
        Whether gradients are computed as well: of the inputs, and of the weights if there are.
    device, seed
        Where, and of which random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    if part == "core":
        return _core(name, _inputs(name, shape, heads, device, generator), backward)
    mixer = _mixer(name, MixerInit(
        shape[-1], ternary=part == "ternary", generator=generator), heads).to(device)
    x = torch.randn(shape, generator=generator).to(device).requires_grad_(backward)
    state = mixer.initial_state(x)
    return _call(lambda: mixer(x, state)[0], [x, *mixer.parameters()], backward)


def _inputs(
    name: str, shape: tuple[int, int, int], heads: int, device: str, generator: torch.Generator,
) -> list[Tensor]:
    """As projections would give them: queries, keys and values ``[batch, heads, time, width]``,
    or the three inputs of a recurrence ``[time, batch, d]``."""
    time, batch, d = shape
    size = shape if name.startswith("mlgru") else (batch, heads, time, d // heads)
    return [torch.randn(size, generator=generator).to(device) for _ in range(3)]


def _core(name: str, inputs: list[Tensor], backward: bool) -> Call:
    if name == "mlgru scan":    # of gates and candidates
        inputs = [inputs[0].sigmoid(), inputs[1]]
    leaves = [each.requires_grad_(backward) for each in inputs]
    return _call(lambda: _CORES[name](*leaves), leaves, backward)


def _mixer(name: str, init: MixerInit, heads: int) -> TokenMixer:
    """Without positions, which not all of them have."""
    match name:
        case "softmax":
            return _Materialised(init, heads=heads, causal=False, rope=False)
        case "softmax fused" | "softmax causal":
            return Attention(init, heads=heads, causal=name == "softmax causal", rope=False)
        case "linear" | "linear causal":
            return LinearAttention(init, heads=heads, causal=name == "linear causal", rope=False)
    return MLGRU(init)


def _call(form: Callable[[], Tensor], wanted: list[Tensor], backward: bool) -> Call:
    if not backward:
        return torch.no_grad()(form)

    def both() -> object:
        y = form()
        return torch.autograd.grad(y, wanted, torch.ones_like(y))

    return both
