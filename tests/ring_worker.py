"""What each process of tests/test_ring.py runs; started by torchrun::

    torchrun --standalone --nproc-per-node 2 tests/ring_worker.py RESULT.json [gloo|nccl]

Every process computes the whole sequence by itself, by other code than is tested, and its part of
it together with the others. The file gets, by case, the largest difference that any process saw,
or what an error said to all of them, or what all of them sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mixer_parts import gates, normal
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.torch.mixers.attention import RingAttention
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.recurrence import naive_mlgru
from sterna.model.torch.parallel import ring
from sterna.model.torch.parallel.context import context_parallel, own_part, sum_gradients
from sterna.model.torch.parallel.recurrence import mlgru_scan_parallel
from sterna.model.torch.parallel.ring import ring_attention
from sterna.model.torch.stack.language_model import LanguageModel

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


class Worker:
    """One process of the group."""

    def __init__(self, backend: str) -> None:
        local = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        dist.init_process_group(backend, timeout=timedelta(seconds=60))
        self.group = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sent = 0

    def draw(self, seed: int, *shape: int, dtype: str = "float64") -> Tensor:
        """The same normal numbers on every process."""
        return normal(*shape, seed=seed).to(self.device, getattr(torch, dtype))

    def part(self, x: Tensor, dim: int = 0) -> Tensor:
        return own_part(x.detach(), self.group, dim)

    def worst(self, got: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
        """The largest difference on any process, relative to the largest number if above 1."""
        off = 0.0
        for ours, theirs in zip(got, expected, strict=True):
            assert ours is not None
            assert theirs is not None
            assert ours.shape == theirs.shape, f"{ours.shape} {theirs.shape}"
            scale = max(1.0, float(theirs.detach().abs().max()))
            off = max(off, float((ours - theirs).detach().abs().max()) / scale)
        return max(self.every(off))

    def every(self, what: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, what)
        return found

    def refused(self, call: Callable[[], object]) -> str:
        """What the error said, which must be the same on every process."""
        try:
            call()
            said = "nothing was refused"
        except ValueError as error:
            said = str(error)
        (only,) = set(self.every(said))
        return str(only)

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[int]]:
        """The bytes that this process gives away meanwhile: sent to the next, and gathered."""
        counts = [0, 0]
        send, gather = dist.batch_isend_irecv, dist.all_gather

        def counting_send(ops: list[dist.P2POp]) -> Any:
            counts[0] += sum(op.tensor.nbytes for op in ops if op.op is dist.isend)
            return send(ops)

        def counting_gather(into: list[Tensor], own: Tensor, **options: Any) -> Any:
            counts[1] += own.nbytes
            return gather(into, own, **options)

        dist.batch_isend_irecv, dist.all_gather = counting_send, counting_gather
        try:
            yield counts
        finally:
            dist.batch_isend_irecv, dist.all_gather = send, gather


def attention(worker: Worker, causal: bool, time: int, kv_heads: int, dtype: str) -> float:
    """Outputs and the gradients of queries, keys and values, against torch's own attention."""
    q, k, v, toward = (worker.draw(seed, 2, heads, time, 8, dtype=dtype).requires_grad_(seed < 3)
                       for seed, heads in enumerate((4, kv_heads, kv_heads, 4)))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    whole.backward(toward)
    own = [worker.part(x, 2).requires_grad_() for x in (q, k, v)]
    y = ring_attention(*own, worker.group, causal)
    y.backward(worker.part(toward, 2))
    return worker.worst(
        [y, *(x.grad for x in own)],
        [worker.part(whole, 2), *(worker.part(x.grad, 2) for x in (q, k, v) if x.grad is not None)])


def recurrence(worker: Worker, time: int, dtype: str) -> float:
    """States, the last state, and the gradients of gates, candidates and initial state, against
    the loop. A third of the gates is 0 or 1; every process uses the last state differently."""
    shape = (time, 2, 3)
    forget = gates(*shape, seed=9).to(worker.device, getattr(torch, dtype)).requires_grad_()
    candidate = worker.draw(1, *shape, dtype=dtype).requires_grad_()
    initial = worker.draw(2, 2, 3, dtype=dtype).requires_grad_()
    toward, of_last = worker.draw(3, *shape, dtype=dtype), worker.draw(4, 2, 3, dtype=dtype)
    states = naive_mlgru(forget, candidate, initial)
    weights = sum(range(1, worker.size + 1))
    ((states * toward).sum() + (states[-1] * of_last).sum() * weights).backward()

    own = [worker.part(forget).requires_grad_(), worker.part(candidate).requires_grad_(),
           initial.detach().clone().requires_grad_()]
    got, last = mlgru_scan_parallel(*own, worker.group)
    ((got * worker.part(toward)).sum()
     + (last * of_last).sum() * (worker.rank + 1)).backward()
    assert forget.grad is not None
    assert candidate.grad is not None
    assert initial.grad is not None
    of_initial = initial.grad if worker.rank == 0 else torch.zeros_like(initial)
    return worker.worst(
        [got, last, *(x.grad for x in own)],
        [worker.part(states), states[-1], worker.part(forget.grad), worker.part(candidate.grad),
         of_initial])


def gates_of_zero_and_one(worker: Worker) -> float:
    """Gates that are all 0 copy the candidates, all 1 keep the initial state: no rounding."""
    candidate, initial = worker.draw(1, 13, 2, 3), worker.draw(2, 2, 3)
    own = worker.part(candidate)
    copied, end = mlgru_scan_parallel(torch.zeros_like(own), own, initial, worker.group)
    kept, still = mlgru_scan_parallel(torch.ones_like(own), own, initial, worker.group)
    return worker.worst([copied, end, kept, still],
                        [own, candidate[-1], initial.expand_as(own), initial])


def language_model(worker: Worker, weights: str) -> float:
    """Logits of the own part, and after adding up the gradients of every weight."""
    models = []
    for _ in range(2):
        model = LanguageModel(ModelConfig(
            d=16, layers=2, dff=16, vocab=20, mixer="mlgru + ring",
            weights=weights)).double().to(worker.device)
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.add_(0.3 * worker.draw(index, *parameter.shape))
        models.append(model)
    tokens = torch.arange(22, device=worker.device).reshape(11, 2) * 7 % 20
    whole, _ = models[0].forward_time_major(tokens[:-1], models[0].initial_state(2))
    F.cross_entropy(whole.flatten(0, 1), tokens[1:].flatten(), reduction="sum").backward()
    with context_parallel(models[1], worker.group):
        own, _ = models[1].forward_time_major(
            worker.part(tokens[:-1]), models[1].initial_state(2))
    F.cross_entropy(
        own.flatten(0, 1), worker.part(tokens[1:]).flatten(), reduction="sum").backward()
    sum_gradients(models[1], worker.group)
    return worker.worst(
        [own, *(parameter.grad for parameter in models[1].parameters())],
        [worker.part(whole), *(parameter.grad for parameter in models[0].parameters())])


def read_in_two_pieces(worker: Worker) -> float:
    """A recurrent model reads a second shared sequence from the state after the first."""
    model = LanguageModel(ModelConfig(d=16, layers=2, dff=16, vocab=20)).double()
    model = model.to(worker.device)
    tokens = torch.arange(24, device=worker.device).reshape(12, 2) * 7 % 20
    whole, last = model.forward_time_major(tokens, model.initial_state(2))
    state, parts = model.initial_state(2), []
    with context_parallel(model, worker.group):
        for piece in tokens.split((7, 5)):
            logits, state = model.forward_time_major(worker.part(piece), state)
            parts.append(logits)
    return worker.worst(
        [*parts, *(h for (h,) in state)],
        [*(worker.part(piece) for piece in whole.split((7, 5))), *(h for (h,) in last)])


def mixer(worker: Worker, causal: bool, rope: bool) -> float:
    """The token mixer by itself, and the state it leaves: the own keys and values."""
    mixers = []
    for _ in range(2):
        init = MixerInit(16, ternary=False, generator=torch.Generator().manual_seed(1))
        mixers.append(RingAttention(init, heads=2, causal=causal, rope=rope)
                      .double().to(worker.device))
    for each in mixers:
        torch.nn.init.eye_(each.out.weight)
    x = worker.draw(3, 11, 2, 16)
    whole, state = mixers[0](x, mixers[0].initial_state(x))
    with context_parallel(mixers[1], worker.group):
        y, own = mixers[1](worker.part(x), mixers[1].initial_state(x))
    return worker.worst([y, *own], [worker.part(whole), *(worker.part(each, 2) for each in state)])


def refusals(worker: Worker) -> dict[str, str]:
    """What is refused, by every process in the same words."""
    group, uneven = worker.group, 1 + worker.rank % 2
    empty = torch.zeros(1, 2, 0 if worker.rank == 1 else 3, 4, device=worker.device)
    unlike = torch.zeros(uneven, 2, 3, 4, device=worker.device)
    model = LanguageModel(ModelConfig(d=16, layers=1, dff=16, mixer="ring")).to(worker.device)
    tokens = torch.zeros(2, 1, dtype=torch.long, device=worker.device)
    _, after = model.forward_time_major(tokens, model.initial_state(1))
    with context_parallel(model, group):
        return {
            "empty part": worker.refused(lambda: ring_attention(empty, empty, empty, group)),
            "unlike parts": worker.refused(lambda: ring_attention(unlike, unlike, unlike, group)),
            "a step": worker.refused(lambda: model.step(tokens[0], model.initial_state(1))),
            "a state": worker.refused(lambda: model.forward_time_major(tokens, after)),
            "too few": worker.refused(lambda: own_part(torch.zeros(worker.size - 1), group)),
        }


def sent(worker: Worker) -> dict[str, list[list[int]]]:
    """Bytes that each process sends to the next and has gathered: attention and recurrence of
    float32 numbers, forward and backward."""
    found = {}
    q, k = worker.draw(0, 2, 4, 6, 8, dtype="float32"), worker.draw(1, 2, 2, 6, 8, dtype="float32")
    leaves = [each.clone().requires_grad_() for each in (q, k, k)]
    gates = [worker.draw(seed, 6, 2, 3, dtype="float32").requires_grad_() for seed in (2, 3)]
    runs: dict[str, Callable[[], Tensor]] = {
        "attention": lambda: ring_attention(*leaves, worker.group),
        "recurrence": lambda: mlgru_scan_parallel(*gates, torch.zeros(2, 3).to(q), worker.group)[0]}
    for name, run in runs.items():
        with worker.counted() as forward:
            y = run()
        with worker.counted() as backward:
            y.sum().backward()
        (found[name],) = {(*forward, *backward) for forward, backward in worker.every(
            (tuple(forward), tuple(backward)))}
    return {name: list(counts) for name, counts in found.items()}


def main(result: str, backend: str = "gloo") -> None:
    worker = Worker(backend)
    ring.KEYS_AT_ONCE = 4    # several tiles of every block, one of them not full
    found: dict[str, Any] = {}
    off = found["off"] = {"gates of 0 and 1": (gates_of_zero_and_one(worker), 0)}
    for dtype, within in TOLERANCE.items():
        for time, kv_heads in ((24, 2), (23, 4)):   # once no multiple of the processes
            for causal in (False, True):
                off[f"attention {causal} {time} {kv_heads} {dtype}"] = (
                    attention(worker, causal, time, kv_heads, dtype), within)
        for time in (24, 23, worker.size):
            off[f"recurrence {time} {dtype}"] = recurrence(worker, time, dtype), within
    for weights in ("float", "ternary"):
        off[f"model {weights}"] = language_model(worker, weights), 1e-12
    off["two pieces"] = read_in_two_pieces(worker), 1e-12
    for causal in (False, True):
        off[f"mixer {causal}"] = mixer(worker, causal, rope=not causal), 1e-12
    found["refused"], found["sent"] = refusals(worker), sent(worker)
    if worker.rank == 0:
        Path(result).write_text(json.dumps(found, indent=1), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
