"""Split a sequence over processes: the error against one process, and the needs of each process.

    python benchmarks/ring.py [--tokens 4096] [--processes 1 2 4]

Starts torchrun for every number of processes, and prints for ring attention, causal and not, and
for the MLGRU recurrence:

- the largest difference of outputs and of gradients from one process with the whole sequence and
  other code (torch's attention; the scan of ``mlgru_scan``), relative to the largest number if that
  is above 1;
- the peak memory of any process for a forward and backward pass beside its inputs: the sum of all
  tensors alive at a time, counted when operations create them and when they are freed;
- the bytes that each process sends to the next, or to all, forward and backward: counted when
  passed to torch.distributed.

The row *alone* is that other code, in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.torch.network.recurrence import mlgru_scan
from sterna.model.torch.parallel.context import own_part
from sterna.model.torch.parallel.recurrence import mlgru_scan_parallel
from sterna.model.torch.parallel.ring import KEYS_AT_ONCE, ring_attention

HEADS, WIDTH = 4, 64
"""Shape of attention; the recurrence has as many channels as all heads together. One sequence."""
TASKS = ("attention", "causal attention", "MLGRU")
MIB = 1 << 20


class LiveBytes(TorchDispatchMode):
    """Bytes of live tensors created by operations, and their peak."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {id(each.untyped_storage()) for each in inputs}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self._note(each.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed; views of a tensor share one."""
        if id(storage) in self._seen:
            return
        self._seen.add(id(storage))
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage), storage.nbytes())

    def _free(self, storage: int, size: int) -> None:
        self._seen.discard(storage)
        self.now -= size


class Sent:
    """Counts the bytes passed to torch.distributed for sending, from its creation on."""

    def __init__(self) -> None:
        self.bytes = 0
        send, gather = dist.batch_isend_irecv, dist.all_gather

        def counting_send(ops: list[dist.P2POp]) -> Any:
            self.bytes += sum(op.tensor.nbytes for op in ops if op.op is dist.isend)
            return send(ops)

        def counting_gather(into: list[Tensor], own: Tensor, **options: Any) -> Any:
            self.bytes += own.nbytes
            return gather(into, own, **options)

        dist.batch_isend_irecv, dist.all_gather = counting_send, counting_gather


class Task:
    """A task of the table: its inputs for the whole sequence, by one process and by many."""

    def __init__(self, name: str, tokens: int, share: bool) -> None:
        self.share = share
        self.name, self.dim = name, 0 if name == "MLGRU" else 2
        shape = (tokens, 1, HEADS * WIDTH) if name == "MLGRU" else (1, HEADS, tokens, WIDTH)
        generator = torch.Generator().manual_seed(0)
        self.inputs = [torch.randn(shape, generator=generator)
                       for _ in range(2 if name == "MLGRU" else 3)]
        if name == "MLGRU":
            self.inputs[0] = (self.inputs[0] + 2).sigmoid()    # forget slowly: parts interact
        self.toward = torch.randn(shape, generator=generator)
        self.initial = torch.zeros(1, HEADS * WIDTH)

    def alone(self, inputs: Sequence[Tensor]) -> Tensor:
        if self.name == "MLGRU":
            return mlgru_scan(inputs[0], inputs[1], self.initial)
        return F.scaled_dot_product_attention(*inputs, is_causal=self.name.startswith("causal"))

    def mixed(self, inputs: Sequence[Tensor], group: dist.ProcessGroup) -> Tensor:
        if not self.share:
            return self.alone(inputs)
        if self.name == "MLGRU":
            return mlgru_scan_parallel(inputs[0], inputs[1], self.initial, group)[0]
        return ring_attention(inputs[0], inputs[1], inputs[2], group,
                              self.name.startswith("causal"))

    def leaves(self, group: dist.ProcessGroup) -> tuple[list[Tensor], Tensor]:
        """The own part of the inputs and of the output gradient."""
        return ([own_part(each, group, self.dim).clone().requires_grad_() for each in self.inputs],
                own_part(self.toward, group, self.dim).clone())


def errors(task: Task, group: dist.ProcessGroup) -> list[float]:
    """The largest differences from one process, on this one: of outputs, and of gradients."""
    whole = [each.clone().requires_grad_() for each in task.inputs]
    expected = task.alone(whole)
    right = [expected, *torch.autograd.grad(expected, whole, task.toward)]
    own, toward = task.leaves(group)
    y = task.mixed(own, group)
    off = []
    for ours, theirs in zip([y, *torch.autograd.grad(y, own, toward)], right, strict=True):
        scale = max(1.0, float(theirs.detach().abs().max()))
        off.append(float((ours - own_part(theirs.detach(), group, task.dim)).detach().abs().max())
                   / scale)
    return [off[0], max(off[1:])]


def measure(name: str, tokens: int, share: bool, group: dist.ProcessGroup) -> dict[str, Any]:
    """Measurements of one task on one process."""
    task = Task(name, tokens, share)
    leaves, toward = task.leaves(group)
    sent = Sent()
    with LiveBytes([*leaves, toward, task.initial]) as live:
        y = task.mixed(leaves, group)
        forward = sent.bytes
        y.backward(toward)
    backward = sent.bytes - forward
    return {"errors": errors(task, group), "peak": live.peak, "sent": [forward, backward]}


def work(name: str, tokens: int, share: bool, result: str) -> None:
    """One process of torchrun."""
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert group is not None
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, measure(name, tokens, share, group))
    if dist.get_rank() == 0:
        Path(result).write_text(json.dumps(seen), encoding="utf-8")
    dist.destroy_process_group()


def run(name: str, processes: int, tokens: int) -> list[dict[str, Any]]:
    """Measurements of every process; with 0 processes, of one that shares nothing."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             str(max(1, processes)), __file__, "--tokens", str(tokens), "--worker", name,
             "share" if processes else "alone", str(result)], check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        seen: list[dict[str, Any]] = json.loads(result.read_text())
    return seen


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, share, result = options.worker
        work(name, options.tokens, share == "share", result)
        return
    print(f"{options.tokens} tokens, batch 1, {HEADS} heads of {WIDTH} or {HEADS * WIDTH} "
          f"channels, float32, gloo; {KEYS_AT_ONCE} keys at once\ntorch {torch.__version__}, "
          f"Python {platform.python_version()}, {os.cpu_count()} cores, one thread a process")
    for name in TASKS:
        print(f"\n{name:18}{'error':>13}{'peak':>10}{'bytes sent a process':>26}\n"
              f"{'processes':9}{'values':>11}{'gradients':>11}{'MiB':>10}{'forward':>13}"
              f"{'backward':>13}")
        for processes in [0, *options.processes]:
            seen = run(name, processes, options.tokens)
            values, gradients, forward, backward = (
                max(each[key][at] for each in seen) for key in ("errors", "sent") for at in (0, 1))
            peak = max(each["peak"] for each in seen) / MIB
            print(f"{processes or 'alone':>9}{values:11.1e}{gradients:11.1e}{peak:10.2f}"
                  f"{forward:13,}{backward:13,}", flush=True)


if __name__ == "__main__":
    main()
