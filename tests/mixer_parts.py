"""What the tests of mixers share: numbers, mixers of which nothing is zero, and a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sterna.model.torch.mixers  # noqa: F401  (registers them)
from sterna.model.pattern import parse_pattern
from sterna.model.torch.network.bitlinear import naive_bit_linear
from sterna.model.torch.network.mixer import TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.study.contract import shaken

__all__ = ["DFF", "KINDS", "LENGTH", "D", "assert_same", "built", "gates", "init", "is_formula",
           "normal", "pattern_of", "redrawn", "run", "through", "values_and_gradients"]

D, DFF, LENGTH = 16, 24, 24
KINDS = pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
_SMALL = {"size": 5, "sinks": 2, "block": 4, "stride": 4, "length": LENGTH, "k": 6, "bucket": 6}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gates(*shape: int, seed: int) -> Tensor:
    """Forget gates, a third of them exactly 0 or 1."""
    kind = torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(seed))
    forget = torch.sigmoid(2 * normal(*shape, seed=seed))
    return forget.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)


def init(*, ternary: bool = False, d: int = D, seed: int = 1) -> MixerInit:
    return MixerInit(d, DFF, ternary, torch.Generator().manual_seed(seed))


def pattern_of(name: str, **more: str) -> str:
    """A mixer with options under which its limits come into play within short sequences."""
    known = TOKEN_MIXERS.options(name)
    options = {each: str(_SMALL[each]) for each in known if each in _SMALL}
    options |= {each: value for each, value in more.items() if each in known}
    inside = ", ".join(f"{each}={value}" for each, value in options.items())
    return f"{name}({inside})" if inside else name


def built(pattern: str, *, ternary: bool = False, d: int = D, seed: int = 0) -> Any:
    """The mixer of a pattern in float64, every parameter drawn so that nothing is zero."""
    generator = torch.Generator().manual_seed(seed)
    mixer = TOKEN_MIXERS.build(
        parse_pattern(pattern)[0], MixerInit(d, ternary=ternary, generator=generator))
    return shaken(mixer.double(), generator)


def redrawn(module: nn.Module, std: float = 0.4) -> Any:
    """The module in float64 with parameters drawn anew."""
    with torch.no_grad():
        for at, parameter in enumerate(module.double().parameters()):
            parameter.copy_(std * normal(*parameter.shape, seed=100 + at))
    return module


def run(mixer: TokenMixer, x: Tensor) -> Tensor:
    y: Tensor = mixer(x, mixer.initial_state(x))[0]
    return y


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """A projection by its formula, whether it is ternary or not."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, layer.weight, layer.bias)
    return naive_bit_linear(x, [layer.latent], [layer.bias])


Form = Callable[..., Tensor | Sequence[Tensor]]


def values_and_gradients(
    function: Form, inputs: Sequence[Tensor], parameters: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Outputs, and the gradients of inputs and parameters for fixed gradients of the outputs."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    found = function(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    toward = [torch.linspace(-1.0, 2.0, each.numel(), dtype=each.dtype).view_as(each)
              for each in outputs]
    return [*(each.detach() for each in outputs),
            *torch.autograd.grad(outputs, [*leaves, *parameters], toward)]


def assert_same(
    ours: Form, twin: Form, inputs: Tensor | Sequence[Tensor], parameters: Iterable[Tensor] = (),
    *, within: float = 1e-9,
) -> None:
    """The same values, not all zeros, and the same gradients of inputs and parameters."""
    given = [inputs] if isinstance(inputs, Tensor) else inputs
    trained = list(parameters)
    got, expected = (values_and_gradients(form, given, trained) for form in (ours, twin))
    torch.testing.assert_close(got, expected, rtol=within, atol=within)
    assert all(bool(each.any()) for each in got[:len(got) - len(trained)])


def is_formula(mixer: TokenMixer, formula: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """:func:`assert_same` of a mixer that starts from its initial state."""
    assert_same(lambda x: run(mixer, x), formula, x, mixer.parameters())
