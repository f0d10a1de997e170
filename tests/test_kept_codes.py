"""In evaluation ternary codes are made once, and anew as soon as weights change."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import sterna.model.torch.network.bitlinear as bitlinear
from sterna.model.config import ModelConfig
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.projection import Joint
from sterna.model.torch.stack.language_model import LanguageModel


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X = normal(3, 8, seed=1)


def layer(rows: int = 6, seed: int = 0) -> BitLinear:
    made = BitLinear(8, rows, generator=torch.Generator().manual_seed(seed))
    nn.init.normal_(made.bias, generator=torch.Generator().manual_seed(seed))
    return made


KINDS: dict[str, Callable[[], nn.Module]] = {
    "one": layer, "joint": lambda: Joint(f=layer(6, 0), g=layer(4, 1))}


def first(module: nn.Module) -> BitLinear:
    """The only projection, or the last of a joint."""
    return [each for each in module.modules() if isinstance(each, BitLinear)][-1]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Matrices that were made ternary."""
    found: list[int] = []

    def counted(weight: Tensor) -> tuple[Tensor, Tensor]:
        found.append(weight.shape[0])
        return whole(weight)

    whole = bitlinear.ternary_codes_and_scale
    monkeypatch.setattr(bitlinear, "ternary_codes_and_scale", counted)
    return found


def evaluated(module: nn.Module, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        result: Tensor = module(x)
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_made_once_and_give_the_same_bits(kind: str, made: list[int]) -> None:
    module = KINDS[kind]()
    expected = module(X).detach()
    count = len(made)
    evaluated(module)
    evaluated(module)
    assert len(made) == 3 * count       # in training mode anew, always
    module.eval()
    assert all(torch.equal(evaluated(module), expected) for _ in range(3))
    assert len(made) == 4 * count
    with torch.inference_mode():
        assert torch.equal(module(X), expected)
    assert len(made) == 4 * count
    module(X).sum().backward()          # with gradients as in training
    assert len(made) == 5 * count
    assert first(module).weight.grad is not None


def step(module: nn.Module, *, fused: bool) -> None:
    module(X).square().sum().backward()
    evaluated(module)
    torch.optim.AdamW(module.parameters(), lr=0.5, fused=fused).step()


def another_value(module: nn.Module) -> dict[str, Tensor]:
    return {name: -value for name, value in module.state_dict().items()}


@torch.no_grad()
def in_place(tensor: Tensor) -> None:
    tensor[0] = 1 - tensor[0]


def another_tensor_twice(module: nn.Module) -> None:
    """Memory of the first may be free again for the second, at the same address."""
    for _ in range(2):
        first(module).weight.data = -first(module).weight.data
        evaluated(module)
    first(module).weight.data = 3 - first(module).weight.data


def negated(module: nn.Module) -> nn.Parameter:
    return nn.Parameter(-first(module).weight.detach())


def hidden_then_announced(module: nn.Module) -> None:
    """What torch keeps no record of is not seen until the mode is set, as the docstring says."""
    before = evaluated(module)
    first(module).weight.data.neg_()
    assert torch.equal(evaluated(module), before)
    module.eval()


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "a step of the optimiser": lambda module: step(module, fused=False),
    "a step of a fused optimiser": lambda module: step(module, fused=True),
    "load_state_dict": lambda module: module.load_state_dict(another_value(module)),
    "load_state_dict by assignment":
        lambda module: module.load_state_dict(another_value(module), assign=True),
    "in place": lambda module: in_place(first(module).weight),
    "the bias in place": lambda module: in_place(first(module).bias),
    "data": another_tensor_twice,
    "a parameter": lambda module: setattr(first(module), "weight", negated(module)),
    "swapped": lambda module: torch.utils.swap_tensors(first(module).weight, negated(module)),
    "hidden, then eval()": hidden_then_announced,
    "by half and back": lambda module: module.half().float(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_weights_is_seen(kind: str, change: str) -> None:
    module = KINDS[kind]().eval()
    before = evaluated(module)
    CHANGES[change](module)
    fresh = KINDS[kind]()
    fresh.load_state_dict(module.state_dict())
    assert not torch.equal(evaluated(module), before)
    assert torch.equal(evaluated(module), evaluated(fresh))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_type_of_weights_is_computed_with(kind: str, dtype: torch.dtype) -> None:
    module = KINDS[kind]().eval()
    evaluated(module)
    module.to(dtype)
    x = X.to(dtype)
    assert torch.equal(evaluated(module, x), module(x))
    assert evaluated(module, x).dtype is dtype


def test_a_replaced_projection_and_a_parametrised_one_are_seen() -> None:
    joint = KINDS["joint"]().eval()
    before = evaluated(joint)
    joint.g = layer(4, 7)
    assert torch.equal(evaluated(joint)[:, :6], before[:, :6])
    torch.testing.assert_close(evaluated(joint)[:, 6:], evaluated(joint.g))

    class Scaled(nn.Module):
        factor = 1.0

        def forward(self, weight: Tensor) -> Tensor:
            return self.factor * weight

    scaled = Scaled()
    parametrize.register_parametrization(joint.g, "weight", scaled)
    before = evaluated(joint)
    scaled.factor = -3.0
    assert not torch.equal(evaluated(joint), before)


def test_copies_pickles_and_state_dicts_hold_weights_only() -> None:
    module = KINDS["joint"]().eval()
    names, data = set(module.state_dict()), io.BytesIO()
    torch.save(module, data)
    size = data.tell()
    expected = evaluated(module)
    assert set(module.state_dict()) == names
    again = io.BytesIO()
    torch.save(module, again)
    assert again.tell() == size
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for each in twin.parameters():
            each.neg_()
    assert not torch.equal(evaluated(twin), expected)
    assert torch.equal(evaluated(module), expected)


def test_a_model_reads_a_row_token_by_token_as_before(made: list[int]) -> None:
    model = LanguageModel(ModelConfig(d=16, layers=2, dff=24, vocab=20))
    tokens = torch.arange(12).reshape(1, 12)
    with torch.inference_mode():
        expected, _ = model(tokens)
        made.clear()
        model.eval()
        state, rows = model.initial_state(1), []
        for token in tokens.unbind(1):
            logits, state = model.step(token, state)
            rows.append(logits)
    torch.testing.assert_close(torch.stack(rows, 1), expected)
    assert len(made) == len(model.named_projections())


def test_an_exported_program_makes_its_codes_from_its_weights() -> None:
    model = LanguageModel(ModelConfig(d=16, layers=1, dff=24, vocab=20)).eval()
    tokens = torch.arange(3)
    with torch.no_grad():
        model.step(tokens, model.initial_state(3))      # codes are kept by now
        program = torch.export.export(KeptFree(model), (tokens,), strict=False)
        logits = program.module()(tokens)
    torch.testing.assert_close(logits, model.step(tokens, model.initial_state(3))[0])
    constants = [each for each in program.constants.values() if isinstance(each, Tensor)]
    assert all(each.numel() < 16 * 16 for each in constants)


class KeptFree(nn.Module):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.step(tokens, self.model.initial_state(3))[0]
