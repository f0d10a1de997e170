"""Training over many processes: the group, and a model distributed over it as copies (DDP) or
shards (FSDP2).

Knows nothing of runs; used by :mod:`sterna.model.torch.training`.
"""

from __future__ import annotations

import signal
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from sterna.model.processes import is_launched, local_rank, on_signal
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.stack.language_model import LanguageModel

__all__ = [
    "LAYOUTS", "Processes", "batch_in_parts", "gather_for_backward", "joined", "laid_out",
    "like", "local_gradients", "meet", "own", "whole",
]

_Result = TypeVar("_Result")

_POLL_S = 0.02
# Threads of gloo release their last tensors on their own, which needs Python: if the interpreter
# has ended by then, it aborts with "terminate called without an active exception".
_SETTLING_S = 0.2


class Processes:
    """This process, which computes on ``device``, among those of its run; the only one if there is
    no process group."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.grouped = dist.is_initialized()
        self.rank = dist.get_rank() if self.grouped else 0
        self.size = dist.get_world_size() if self.grouped else 1
        self.is_first = self.rank == 0      # the process that prints and writes
        self._mesh: DeviceMesh | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """All processes in one dimension, ``data``; there must be a group."""
        if self._mesh is None:
            self._mesh = init_device_mesh(
                self.device.type, (self.size,), mesh_dim_names=("data",))
        return self._mesh

    def columns(self, batch: int) -> slice:
        """The windows of a batch that this process reads: as many as every other."""
        share = batch // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """A few numbers of every process, in rank order, without rounding."""
        if self.size == 1:
            return [[float(each) for each in numbers]]
        own = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return torch.stack(found).tolist()

    def every(self, value: _Result) -> list[_Result]:
        """The ``value`` of each process, in rank order; anything that can be pickled."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def first_says(self, value: _Result) -> _Result:
        """The ``value`` of the first process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def on_first(self, call: Callable[[], _Result]) -> _Result | None:
        """Call a function on the first process while the others wait; return its result there and
        None elsewhere. An error is raised on every process."""
        result, error = None, None
        if self.is_first:
            try:
                result = call()
            except Exception as raised:
                error = raised
        told: Any = self.first_says(None if error is None else _portable(error))
        if error is not None:
            raise error
        if told is not None:
            raise told
        return result


def _portable(error: Exception) -> Exception:
    """The error as one that can be sent: of a type that every process has."""
    for kind in (FloatingPointError, ValueError, OSError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"the first process failed: {type(error).__name__}: {error}")


@contextmanager
def joined(device: Callable[[int | None], torch.device]) -> Iterator[Processes]:
    """Context that joins the processes started by a launcher such as torchrun, through gloo or
    NCCL. Without a launcher there is one process and no group. An existing group is used and left
    as it is. ``device`` maps the local rank, None if alone, to the device."""
    place = device(local_rank())
    if dist.is_initialized() or not is_launched():
        yield Processes(place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # A Python handler would not run while the process waits in C++ for processes that have ended,
    # and the launcher would wait half a minute before restarting them.
    with on_signal(signal.SIGTERM, signal.SIG_DFL), _lost_processes_named():
        _make_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
        try:
            yield Processes(place)
        finally:
            dist.destroy_process_group()
            time.sleep(_SETTLING_S)


def _make_group(backend: str) -> None:
    """Form the group under a store prefix unique to this attempt: torchrun restarts processes with
    the same store, which still holds addresses of ended ones."""
    store, rank, size = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(backend, store=dist.PrefixStore(meet(store, rank, size), store),
                            rank=rank, world_size=size)


def meet(
    store: dist.Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=30),
) -> str:
    """A word that only the living processes agree on, whatever ended ones left in the store.

    Every process but the first stores a random word and waits for an answer to it. The first
    repeatedly answers all words in the store, until all processes have joined.
    (TORCHELASTIC_RESTART_COUNT would not do: launchers on several machines may count differently.)
    """
    own, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    try:
        if rank:
            store.set(f"here is {rank}", own)
            store.wait([f"answer to {own}"], timeout)
            word = store.get(f"answer to {own}").decode()
            store.add(f"came to {word}", 1)
            return word
        while store.add(f"came to {own}", 0) < size - 1:
            if time.monotonic() > deadline:
                raise dist.DistStoreError("not all processes have come")
            for key in (f"here is {other}" for other in range(1, size)):
                if store.check([key]):
                    store.set(f"answer to {store.get(key).decode()}", own)
            time.sleep(_POLL_S)
        return own
    except dist.DistError as error:
        raise ConnectionError(
            f"the processes of the run did not find each other: {error!s:.200}") from error


@contextmanager
def _lost_processes_named() -> Iterator[None]:
    """Turn torch's errors about a lost process into one line."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises a bare RuntimeError that starts with the place in its source.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise ConnectionError(
            f"lost touch with another process of the run, which has probably ended: "
            f"{reason:.200}") from error


LAYOUTS = ("ddp", "fsdp")
"""``ddp``: every process holds all weights and moments. ``fsdp``: each holds a shard, and gathers
the weights of a block while computing it."""


def laid_out(model: LanguageModel, layout: str | None, processes: Processes) -> nn.Module:
    """Distribute a model on the CPU over the processes in one of :data:`LAYOUTS` (None: ``ddp`` if
    there is more than one); return the module to call instead.

    Under ``fsdp`` parameters are replaced in place. Weights stay float32 and a block gathers them
    whole, so that the scale of a ternary matrix is the mean over the whole matrix.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"parallel must be {' or '.join(LAYOUTS)}, got {layout!r}")
    if layout is not None and not processes.grouped:
        raise ValueError(f"parallel {layout} is for processes that torchrun started: "
                         f"torchrun --standalone --nproc-per-node 2 -m sterna.cli train ...")
    if layout == "fsdp":
        if model.config.residual != "plain":
            raise ValueError(
                "parallel fsdp needs blocks that are called as a whole, with residual plain, "
                f"got {model.config.residual}; ddp takes both")
        for block in model.blocks():
            fully_shard(block, mesh=processes.mesh)
        fully_shard(model, mesh=processes.mesh)
        # Logits are a view, time or batch first, and are never modified in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        return model
    model.to(processes.device)
    if not processes.grouped:
        return model
    return DistributedDataParallel(
        model, device_ids=None if processes.device.type == "cpu" else [processes.device],
        gradient_as_bucket_view=True)


def gather_for_backward(model: LanguageModel, from_weights: bool) -> None:
    """Under ``fsdp``, make blocks gather weights for the backward pass only if needed: a ternary
    projection keeps its codes; float weights, gains, recomputed blocks and gradients
    ``from_weights`` (in floats, or compiled) need them."""
    for block in model.blocks():
        if isinstance(block, FSDPModule):
            block.set_unshard_in_backward(from_weights or block.recomputes or any(
                next(module.parameters(recurse=False), None) is not None
                and not isinstance(module, BitLinear) for module in block.modules()))


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Context in which backward passes accumulate locally; the next one outside reduces the sum."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    elif isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
    else:
        yield


def own(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; every process that holds a part must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A tensor, whole on every process or already sharded, laid out as ``pattern``. Sends nothing.
    """
    if not isinstance(pattern, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements,
                             src_data_rank=None)


def batch_in_parts(part: Tensor, processes: Processes) -> Tensor:
    """A tensor sharded over its first dimension, the batch."""
    if not processes.grouped:
        return part
    return DTensor.from_local(part, processes.mesh, [Shard(0)], run_check=False)
