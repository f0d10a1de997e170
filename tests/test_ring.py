"""Sequences that processes share equal those of one process: values, gradients, memory, bytes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mixer_parts import assert_same, normal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.config import ModelConfig
from sterna.model.torch.mixers.attention import Attention, RingAttention
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.parallel import ring
from sterna.model.torch.parallel.context import context_parallel, own_part
from sterna.model.torch.parallel.recurrence import mlgru_scan_parallel
from sterna.model.torch.parallel.ring import ring_attention
from sterna.model.torch.stack.language_model import LanguageModel

TIME, WIDTH = 24, 6


# -- Several processes ---------------------------------------------------------------------------


def run(processes: int, folder: Path, backend: str = "gloo") -> dict[str, Any]:
    """What tests/ring_worker.py finds with so many processes."""
    result = folder / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(processes), Path(__file__).with_name("ring_worker.py"), result, backend],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def nccl() -> Any:
    few = torch.cuda.device_count() < 2
    return pytest.param((2, "nccl"), marks=pytest.mark.skipif(few, reason="needs two GPUs"),
                        id="2-nccl")


@pytest.fixture(scope="module", params=[
    pytest.param((2, "gloo"), id="2"),
    pytest.param((4, "gloo"), id="4", marks=pytest.mark.long), nccl()])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
          ) -> dict[str, Any]:
    processes, backend = request.param
    return {"processes": processes, **run(processes, tmp_path_factory.mktemp("ring"), backend)}


def test_processes_share_attention_the_recurrence_and_a_model(found: dict[str, Any]) -> None:
    assert len(found["off"]) == 8 + 6 + 6
    for case, (off, tolerance) in found["off"].items():
        assert off <= tolerance, case


def test_every_process_refuses_the_same(found: dict[str, Any]) -> None:
    said = found["refused"]
    assert "one token at least, got parts of (3, 0" in said["empty part"]
    assert said["unlike parts"].startswith(
        "the processes hold parts of unlike sequences: only dimension 2 (time) may differ")
    assert "[[1, 2, 3, 4], [2, 2, 3, 4]" in said["unlike parts"]
    assert said["a step"] == (
        "processes cannot share a step of one token: leave context_parallel")
    assert "starts from the initial state, got one after 2 tokens" in said["a state"]
    assert said["too few"] == (
        "a sequence of {} tokens cannot be split over {} processes: each needs one at least"
        .format(found["processes"] - 1, found["processes"]))


def test_processes_send_what_is_said(found: dict[str, Any]) -> None:
    """A part is 2 x 2 x 6 x 8 float32 keys and as many values; a state is 2 x 3 numbers. Processes
    also tell each other the shape of their part, four whole numbers of 8 bytes."""
    part, rounds = 4 * 2 * 2 * 6 * 8, found["processes"] - 1
    assert found["sent"]["attention"] == [2 * part * rounds, 4 * 8, 2 * part * (2 * rounds + 1), 0]
    state = 4 * 2 * 3
    assert found["sent"]["recurrence"] == [0, 2 * state, 0, 2 * state]


# -- One process ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


@pytest.mark.parametrize("causal", [False, True])
def test_a_ring_of_one_is_plain_attention(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, causal: bool,
) -> None:
    monkeypatch.setattr(ring, "KEYS_AT_ONCE", 5)
    inputs = [normal(2, heads, TIME, WIDTH, seed=seed)
              for seed, heads in enumerate((4, 2, 2))]
    assert_same(lambda *given: ring_attention(*given, alone, causal),
                lambda *given: F.scaled_dot_product_attention(
                    *given, is_causal=causal, enable_gqa=True), inputs, within=1e-12)


def test_the_ring_mixer_is_attention_with_the_same_weights(alone: dist.ProcessGroup) -> None:
    plain, ours = (kind(MixerInit(16, generator=torch.Generator().manual_seed(2)), heads=2).double()
                   for kind in (Attention, RingAttention))
    ours.load_state_dict(plain.state_dict())
    x = normal(TIME, 2, 16)
    expected, state = plain(x, plain.initial_state(x))
    for context in (contextlib.nullcontext(), context_parallel(ours, alone)):
        with context:
            y, after = ours(x, ours.initial_state(x))
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after, state, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor made by any operation has."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return made


def test_no_tensor_grows_with_the_square_of_the_length(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring, "KEYS_AT_ONCE", 16)
    largest = {}
    for time in (64, 256):
        x = normal(1, 2, time, 4).requires_grad_()
        with Largest() as seen:
            ring_attention(x, x, x, alone).sum().backward()
        largest[time] = seen.numbers
    assert largest == {64: 2 * 64 * 16, 256: 2 * 256 * 16}


def test_scores_of_any_size_neither_overflow_nor_vanish(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key wins by far, in another tile than that with the most of the rest."""
    monkeypatch.setattr(ring, "KEYS_AT_ONCE", 2)
    q, k, v = (normal(1, 1, 8, WIDTH, seed=seed).float() for seed in range(3))
    q, k = 100 * q, 100 * k
    assert float((q @ k.mT).max()) > 1e4 * WIDTH ** 0.5     # e^1e4 is no float
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(
        ring_attention(q, k, v, alone, causal=False).double(), expected, rtol=1e-3, atol=1e-3)


def test_sums_of_bfloat16_are_kept_in_float32(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = (normal(1, 2, TIME, 8, seed=seed).bfloat16().requires_grad_() for seed in range(3))
    y = ring_attention(q, k, v, alone)
    wide = [each.detach().double().requires_grad_() for each in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide, is_causal=True)
    toward = normal(*y.shape, seed=5).bfloat16()
    y.backward(toward)
    expected.backward(toward.double())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=2e-2)
    for ours, theirs in zip((q, k, v), wide, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=4e-2, atol=4e-2)
    # The mean of as many zeros as ones, added up one by one: a sum in bfloat16 stops at 256.
    monkeypatch.setattr(ring, "KEYS_AT_ONCE", 1)
    v = torch.arange(600).ge(300).bfloat16().reshape(1, 1, 600, 1)
    y = ring_attention(torch.zeros_like(v), torch.zeros_like(v), v, alone, causal=False)
    assert set(y.flatten().tolist()) == {0.5}


# -- Bad input -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(alone: dist.ProcessGroup) -> None:
    q, k = normal(1, 4, 6, 8), normal(1, 3, 6, 8)
    with pytest.raises(ValueError, match=r"heads of the queries \(4\) must be a multiple .* \(3\)"):
        ring_attention(q, k, k, alone)
    with pytest.raises(ValueError, match=r"one batch, time and width, got \[1, 4, 6, 8\]"):
        ring_attention(q, q[:, :, :5], q[:, :, :5], alone)
    with pytest.raises(ValueError, match=r"process 0 of 1 holds 6 tokens, lengths are \(5,\)"):
        ring_attention(q, q, q, alone, lengths=(5,))
    with pytest.raises(ValueError, match="this one holds none"):
        mlgru_scan_parallel(normal(0, 1, 2), normal(0, 1, 2), normal(1, 2), alone)
    with pytest.raises(ValueError, match=r"expected a process group, such as .* got None"):
        own_part(q, None)


def test_the_group_is_forgotten_after_an_error(alone: dist.ProcessGroup) -> None:
    model = LanguageModel(ModelConfig(d=16, layers=2, dff=16, mixer="mlgru + attention"))
    with pytest.raises(ValueError, match="Attention cannot share a sequence between processes: "
                                         "mixers that can are mlgru, and ring"), \
            context_parallel(model, alone):
        pass
    assert all(block.mixer.group is None for block in model.blocks())
    model = LanguageModel(ModelConfig(d=16, layers=1, dff=16, mixer="ring"))
    mixer = model.blocks()[0].mixer
    with contextlib.suppress(ZeroDivisionError), context_parallel(model, alone):
        assert mixer.group is alone
        raise ZeroDivisionError
    assert mixer.group is None
