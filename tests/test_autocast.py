"""Under autocast, what is exact stays exact: sums, scales, quantisers, recurrences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import gates, normal
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.torch.network.bitlinear import BitLinear, bit_linear, naive_bit_linear
from sterna.model.torch.network.dense_mml import dense_mml
from sterna.model.torch.network.projection import Joint
from sterna.model.torch.network.quantizers import absmax_quantize, ternarize
from sterna.model.torch.network.recurrence import (
    complex_scan,
    matrix_scan,
    mlgru_scan,
    scan_chunked,
    scan_sequential,
)
from sterna.model.torch.stack.language_model import LanguageModel

VECTORS, MATRIX = normal(6, 3, 200, seed=1), normal(40, 200, seed=2)
SEQUENCE = gates(40, 2, 8, seed=3), normal(40, 2, 8, seed=4), normal(2, 8, seed=5)
HEADS = (*(gates(20, 2, 3, 4, seed=seed) for seed in range(4)), normal(2, 3, 4, 4, seed=5))

EXACT: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], tuple[Tensor, ...]]] = {
    "bit_linear": (lambda x, w, b: bit_linear(x, [w], [b], 2.0),
                   (VECTORS, MATRIX, normal(40, seed=6))),
    "two joint": (lambda x, w, v: bit_linear(x, [w, v], None),
                  (VECTORS, MATRIX, normal(9, 200, seed=7))),
    "naive": (lambda x, w: naive_bit_linear(x, [w], None), (VECTORS, MATRIX)),
    "absmax_quantize": (absmax_quantize, (VECTORS,)),
    "ternarize": (ternarize, (MATRIX,)),
    "dense_mml": (lambda x, w, g: dense_mml(x, w, g, None),
                  (VECTORS, MATRIX, normal(200, seed=8))),
    "mlgru_scan": (mlgru_scan, SEQUENCE), "sequential": (scan_sequential, SEQUENCE),
    "chunked": (scan_chunked, SEQUENCE), "matrix_scan": (matrix_scan, HEADS),
    "complex_scan": (lambda a, b, c, d, e, f: complex_scan((a, b), (c, d), (e, f)),
                     (*(gates(8, seed=seed) for seed in (1, 2)),
                      *(normal(9, 2, 8, seed=seed) for seed in (3, 4)),
                      *(normal(2, 8, seed=seed) for seed in (5, 6)))),
}


OWN_BACKWARD = ("bit_linear", "two joint", "absmax_quantize", "ternarize", "mlgru_scan",
                "sequential", "chunked", "complex_scan")
"""Exact even if the backward pass is under autocast, where torch advises not to have it: there the
products of torch's own backward passes take their inputs in bfloat16."""


def values_and_gradients(name: str, given: tuple[Tensor, ...], *, autocast: bool) -> list[Tensor]:
    form = EXACT[name][0]
    leaves = [each.clone().requires_grad_() for each in given]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = form(*leaves)
        out = out if isinstance(out, tuple) else (out,)
    inside = autocast and name in OWN_BACKWARD
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
        gradients = torch.autograd.grad(
            out, leaves, [torch.linspace(-1, 1, each.numel()).view_as(each).to(each.dtype)
                          for each in out])
    return [*(each.detach() for each in out), *gradients]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", EXACT)
def test_values_and_gradients_are_the_same_bits(name: str, dtype: torch.dtype) -> None:
    """Of bfloat16 as of its float32 value, with gradients in its own type."""
    given = tuple(each.to(dtype) for each in EXACT[name][1])
    wide = torch.promote_types(dtype, torch.float32)
    plain = values_and_gradients(name, tuple(each.to(wide) for each in given), autocast=False)
    found = values_and_gradients(name, given, autocast=True)
    count = len(found) - len(given)
    assert {each.dtype for each in found[:count]} == {wide}
    assert {each.dtype for each in found[count:]} == {dtype}
    for ours, expected in zip(found, plain, strict=True):
        assert torch.equal(ours, expected.to(ours.dtype))


def test_prepared_projections_too() -> None:
    joint = Joint(only=BitLinear(200, 40, generator=torch.Generator().manual_seed(1)))
    vectors = VECTORS.float()
    expected = joint.prepared()(vectors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(joint.prepared()(vectors), expected)
        assert nn.Linear(200, 40)(vectors).dtype is torch.bfloat16     # autocast is on


@pytest.mark.parametrize("mixer", ["mlgru", "hgrn2", "gru", "lru"])
def test_a_ternary_model_trains_to_the_same_bits(mixer: str) -> None:
    tokens = torch.randint(0, 30, (33, 2), generator=torch.Generator().manual_seed(0))
    results = []
    for autocast in (False, True):
        model = LanguageModel(ModelConfig(d=32, layers=2, dff=48, vocab=30, mixer=mixer))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits, _ = model.forward_time_major(tokens[:-1], model.initial_state(2))
        with torch.autocast(
                "cpu", dtype=torch.bfloat16, enabled=autocast and mixer == "mlgru"):
            F.cross_entropy(logits.flatten(0, 1), tokens[1:].flatten()).backward()
        results.append([logits, *(each.grad for each in model.parameters())])
    for plain, under in zip(*results, strict=True):
        assert torch.equal(plain, under)


def test_a_float_model_runs_under_autocast_with_its_recurrence_in_float32() -> None:
    config = ModelConfig(d=32, layers=2, dff=48, vocab=30, weights="float")
    model, tokens = LanguageModel(config), torch.arange(30).reshape(1, 30)
    expected, _ = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model(tokens)
    assert logits.dtype is torch.bfloat16
    assert state[0][0].dtype is torch.float32
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)


def test_a_model_without_memory_has_shapes_under_autocast() -> None:
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert BitLinear(4, 3)(torch.empty(2, 4)).shape == (2, 3)
