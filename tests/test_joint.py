"""Projections computed together: each is still a module that can be watched, wrapped, replaced."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mixer_parts import KINDS, assert_same, normal, redrawn
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.modules import module
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.config import ModelConfig
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.projection import Joint, MixerInit, project
from sterna.model.torch.stack.language_model import LanguageModel

D, ROWS = 12, {"f": 5, "c": 3, "g": 8}
CONFIG = ModelConfig(d=16, layers=2, dff=24, vocab=20)
X = normal(4, 2, D, seed=2)


def joint_of(ternary: bool, *, bias: bool = True) -> Joint:
    init = MixerInit(D, ternary=ternary)
    joint: Joint = redrawn(
        Joint(**{name: init.linear(D, rows, bias=bias) for name, rows in ROWS.items()}), 1.0)
    return joint


def apart(joint: Joint, x: Tensor, limit: float = math.inf) -> Tensor:
    return torch.cat([each(x) for each in joint.values()], dim=-1).clamp(-limit, limit)


@KINDS
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("limit", [math.inf, 0.5])
def test_a_joint_is_its_projections_side_by_side(ternary, bias, limit):
    joint = joint_of(ternary, bias=bias)
    assert_same(lambda x: joint(x, limit), lambda x: apart(joint, x, limit), X, joint.parameters())
    assert_same(joint.prepared(), lambda x: apart(joint, x), X, joint.parameters())
    assert torch.equal(project([*joint.values()], X, limit), joint(X, limit))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None,
                           ) -> Any:
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


@KINDS
def test_projections_are_one_product_until_somebody_watches(ternary):
    joint, calls = joint_of(ternary), []
    with Products() as plain:
        joint(X[0])
    joint.f.register_forward_hook(lambda *_: calls.append(1))
    with Products() as watched:
        joint(X[0])
    assert (plain.count, watched.count) == (1, 3)
    joint.prepared()(X)
    assert len(calls) == 2


@pytest.mark.parametrize("register", [
    module.register_module_forward_pre_hook, module.register_module_forward_hook,
    module.register_module_full_backward_pre_hook, module.register_module_full_backward_hook])
def test_a_hook_on_all_modules_is_called_for_each_projection(register):
    joint, calls = joint_of(True), []
    with register(lambda *_: calls.append(1)):
        joint(X.clone().requires_grad_()).sum().backward()
    assert len(calls) == 4      # the joint and its three projections


class LowRank(nn.Module):
    """An adapter as in LoRA (arXiv 2106.09685): a frozen projection and a trained product."""

    def __init__(self, base: nn.Module, columns: int, rows: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(normal(2, columns, seed=5))
        self.up = nn.Parameter(normal(rows, 2, seed=6))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Halves(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[:1] * 7, weight[1:] / 2])


def _hook(joint: Joint) -> None:
    joint.c.register_forward_hook(lambda *given: 2 * given[2])


def _backward_hook(joint: Joint) -> None:
    joint.c.register_full_backward_hook(lambda _, grads, __: (3 * grads[0],))


def _forward(joint: Joint) -> None:
    joint.c.forward = lambda y: 2 * y[..., :3]


def _adapter(joint: Joint) -> None:
    joint.c = LowRank(joint.c, D, 3)


def _parametrization(joint: Joint) -> None:
    parametrize.register_parametrization(joint.c, "weight", Halves())


@KINDS
@pytest.mark.parametrize("tamper", [_hook, _backward_hook, _forward, _adapter, _parametrization])
def test_what_is_done_to_one_projection_takes_effect(tamper, ternary):
    """Values, and gradients of all that is trained, are those of the projections one by one."""
    joint, plain = joint_of(ternary), joint_of(ternary)
    tamper(joint)
    trained = [each for name, each in joint.named_parameters()
               if each.requires_grad and not (tamper is _forward and name.startswith("c."))]
    for form in (joint, joint.prepared()):
        assert_same(form, lambda x: apart(joint, x), X, trained)
    results = []
    for each in (joint, plain):
        x = X.clone().requires_grad_()
        y = each(x)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    assert torch.allclose(results[0][0], results[1][0]) == (tamper is _backward_hook)
    assert not torch.allclose(results[0][1], results[1][1])


def test_an_adapter_found_by_name_in_a_model_is_used():
    model = LanguageModel(CONFIG).double()
    tokens = torch.arange(10).reshape(1, 10)
    before = model(tokens)[0]
    owner = model.get_submodule("layers.1.channel.gate_up")
    owner.up = LowRank(owner.up, 16, 24)
    assert not torch.allclose(model(tokens)[0], before)
    with pytest.raises(ValueError, match=r"gate_up\.up must be a BitLinear, got a LowRank"):
        model.named_projections()


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


UNITS: dict[str, Callable[[nn.Module], bool]] = {
    "blocks": lambda part: hasattr(part, "mixer"), "joints": lambda part: isinstance(part, Joint),
    "projections": lambda part: isinstance(part, BitLinear)}


@pytest.mark.parametrize("unit", UNITS)
def test_any_part_can_be_a_unit_of_fsdp(unit, one_process):
    plain = LanguageModel(CONFIG)
    sharded = copy.deepcopy(plain)
    mesh = dist.init_device_mesh("cpu", (1,))
    for part in filter(UNITS[unit], [*sharded.modules()]):
        fully_shard(part, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    register_fsdp_forward_method(sharded, "forward_time_major")
    tokens = torch.randint(0, 20, (9, 2), generator=torch.Generator().manual_seed(0))
    for model in (plain, sharded):
        logits, _ = model.forward_time_major(tokens, model.initial_state(2))
        logits.square().mean().backward()
    for ours, theirs in zip(plain.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad.full_tensor(), ours.grad, rtol=1e-5, atol=1e-7)
    for model in (plain, sharded):      # gathered again into the memory of codes that are kept
        model.eval()
        with torch.no_grad():
            model(tokens)
        torch.optim.SGD(model.parameters(), lr=3.0).step()
    with torch.no_grad():
        torch.testing.assert_close(sharded(tokens)[0], plain(tokens)[0])
