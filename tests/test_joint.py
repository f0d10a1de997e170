"""Projections computed together: each is still a module that can be watched, wrapped, replaced."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.modules import module
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from sterna.model.config import ModelConfig
from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.projection import Joint, MixerInit, project
from sterna.model.stack.language_model import LanguageModel

D, ROWS = 12, {"f": 5, "c": 3, "g": 8}
KINDS = pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
CONFIG = ModelConfig(d=16, layers=2, dff=24, vocab=20)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def joint_of(ternary: bool, *, bias: bool = True) -> Joint:
    init = MixerInit(D, ternary=ternary, generator=torch.Generator().manual_seed(1))
    joint = Joint(**{name: init.linear(D, rows, bias=bias) for name, rows in ROWS.items()}).double()
    for at, parameter in enumerate(joint.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(at))
    return joint


def apart(joint: Joint, x: Tensor, limit: float = math.inf) -> Tensor:
    return torch.cat([each(x) for each in joint.values()], dim=-1).clamp(-limit, limit)


def assert_same(first: Callable[[], Tensor], second: Callable[[], Tensor],
                leaves: list[Tensor]) -> None:
    """Values and gradients."""
    results = []
    for form in (first, second):
        y = form()
        results.append([y, *torch.autograd.grad(
            (y * normal(*y.shape, seed=9)).sum(), leaves, allow_unused=True)])
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@KINDS
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("limit", [math.inf, 0.5])
def test_a_joint_is_its_projections_side_by_side(ternary: bool, bias: bool, limit: float) -> None:
    joint, x = joint_of(ternary, bias=bias), normal(4, 2, D, seed=2).requires_grad_()
    assert joint(x).shape == (4, 2, sum(ROWS.values()))
    assert_same(lambda: joint(x, limit), lambda: apart(joint, x, limit),
                [x, *joint.parameters()])
    assert_same(lambda: joint.prepared()(x), lambda: apart(joint, x), [x, *joint.parameters()])
    assert torch.equal(project([*joint.values()], x, limit), joint(x, limit))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None,
                           ) -> Any:
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


@KINDS
def test_projections_are_one_product_until_somebody_watches(ternary: bool) -> None:
    joint, x, calls = joint_of(ternary), normal(4, D, seed=2), []

    def count(*_: object) -> None:
        calls.append(1)

    with Products() as plain:
        joint(x)
    joint.f.register_forward_hook(count)
    with Products() as watched:
        joint(x)
    assert (plain.count, watched.count) == (1, 3)
    joint.prepared()(x)
    assert len(calls) == 2


@pytest.mark.parametrize("register", [
    module.register_module_forward_pre_hook, module.register_module_forward_hook,
    module.register_module_full_backward_pre_hook, module.register_module_full_backward_hook])
def test_a_hook_on_all_modules_is_called_for_each_projection(
        register: Callable[[Callable[..., None]], RemovableHandle]) -> None:
    joint, x, calls = joint_of(True), normal(4, D, seed=2).requires_grad_(), []
    with register(lambda *_: calls.append(1)):
        joint(x).sum().backward()
    assert len(calls) == 4      # the joint and its three projections


@KINDS
def test_a_hook_on_a_projection_changes_what_the_joint_gives(ternary: bool) -> None:
    joint, x = joint_of(ternary), normal(4, D, seed=2).requires_grad_()
    plain = apart(copy.deepcopy(joint), x)
    joint.c.register_forward_hook(lambda *given: 2 * given[2])
    expected = torch.cat([plain[:, :5], 2 * plain[:, 5:8], plain[:, 8:]], dim=-1)
    torch.testing.assert_close(joint(x), expected)
    torch.testing.assert_close(joint.prepared()(x), expected)

    seen: list[Tensor] = []
    joint.g.register_full_backward_hook(lambda _, __, grads: seen.append(grads[0]))
    joint(x).sum().backward()
    assert torch.equal(seen[0], torch.ones(4, 8))


def test_a_forward_pass_put_into_one_projection_takes_effect() -> None:
    joint, x = joint_of(True), normal(4, D, seed=2)
    joint.g.forward = lambda y: torch.zeros(*y.shape[:-1], 8, dtype=y.dtype)
    assert not joint(x)[:, 8:].any()
    assert joint(x)[:, :8].all()


class LowRank(nn.Module):
    """An adapter as in LoRA (arXiv 2106.09685): a frozen projection and a trained product."""

    def __init__(self, base: nn.Module, columns: int, rows: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(normal(2, columns, seed=5))
        self.up = nn.Parameter(normal(rows, 2, seed=6))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


@KINDS
def test_an_adapter_in_the_place_of_a_projection_is_used_and_trained(ternary: bool) -> None:
    joint, x = joint_of(ternary), normal(4, D, seed=2)
    before = joint(x).detach()
    adapter = LowRank(joint.f, D, 5)
    joint.f = adapter
    added = (x @ adapter.down.t() @ adapter.up.t()).detach()
    torch.testing.assert_close(joint(x)[:, :5], before[:, :5] + added)
    torch.testing.assert_close(joint(x)[:, 5:], before[:, 5:])
    joint(x).sum().backward()
    assert adapter.down.grad is not None
    assert adapter.up.grad is not None
    assert adapter.base.weight.grad is None


def test_an_adapter_found_by_name_in_a_model_is_used() -> None:
    model = LanguageModel(CONFIG).double()
    tokens = torch.arange(10).reshape(1, 10)
    before = model(tokens)[0]
    owner = model.get_submodule("layers.1.channel.gate_up")
    owner.up = LowRank(owner.up, 16, 24)
    assert not torch.allclose(model(tokens)[0], before)
    with pytest.raises(ValueError, match=r"gate_up\.up must be a BitLinear, got a LowRank"):
        model.named_projections()


class Halves(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[:1] * 7, weight[1:] / 2])


@KINDS
def test_a_parametrised_weight_is_the_weight(ternary: bool) -> None:
    joint, plain, x = joint_of(ternary), joint_of(ternary), normal(4, D, seed=2)
    parametrize.register_parametrization(joint.c, "weight", Halves())
    with torch.no_grad():
        plain.c.weight.copy_(joint.c.weight)
    torch.testing.assert_close(joint(x), apart(plain, x))
    joint(x).sum().backward()
    plain(x).sum().backward()
    torch.testing.assert_close(
        joint.c.parametrizations.weight.original.grad[1:], plain.c.weight.grad[1:] / 2)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


UNITS: dict[str, Callable[[LanguageModel], list[nn.Module]]] = {
    "blocks": lambda model: [*model.layers],
    "joints": lambda model: [each for each in model.modules() if isinstance(each, Joint)],
    "projections": lambda model: [
        each for each in model.modules() if isinstance(each, BitLinear)],
}


@pytest.mark.parametrize("unit", UNITS)
def test_any_part_can_be_a_unit_of_fsdp(unit: str, one_process: None) -> None:
    plain = LanguageModel(CONFIG)
    sharded = copy.deepcopy(plain)
    mesh = dist.init_device_mesh("cpu", (1,))
    for part in UNITS[unit](sharded):
        fully_shard(part, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    register_fsdp_forward_method(sharded, "forward_time_major")
    tokens = torch.randint(0, 20, (9, 2), generator=torch.Generator().manual_seed(0))
    for model in (plain, sharded):
        logits, _ = model.forward_time_major(tokens, model.initial_state(2))
        logits.square().mean().backward()
    for (name, ours), (_, theirs) in zip(
            plain.named_parameters(), sharded.named_parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None, name
        torch.testing.assert_close(theirs.grad.full_tensor(), ours.grad, rtol=1e-5, atol=1e-7)
    for model in (plain, sharded):      # gathered again into the memory of codes that are kept
        model.eval()
        with torch.no_grad():
            model(tokens)
        torch.optim.SGD(model.parameters(), lr=3.0).step()
    with torch.no_grad():
        torch.testing.assert_close(sharded(tokens)[0], plain(tokens)[0])
