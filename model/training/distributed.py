"""Training over many processes: the group, and a model laid out over it: copies (DDP), or a part
of each weight (FSDP2).

Knows nothing of runs; :mod:`sterna.model.training` puts it to use.
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

from sterna.model.network.bitlinear import BitLinear
from sterna.model.processes import is_launched, local_rank, on_signal
from sterna.model.stack.language_model import LanguageModel

__all__ = [
    "LAYOUTS", "Processes", "batch_in_parts", "gather_for_backward", "joined", "laid_out",
    "like", "local_gradients", "meet", "own", "whole",
]

_Result = TypeVar("_Result")

_POLL_S = 0.02
# Threads of gloo let go of their last tensors by themselves, for which they need Python: an
# interpreter that has ended by then aborts, with "terminate called without an active exception".
_SETTLING_S = 0.2


class Processes:
    """This process, which computes on ``device``, among those of its run; one of one, if there is
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
        """The same few numbers of every process, first to last, without rounding."""
        if self.size == 1:
            return [[float(each) for each in numbers]]
        own = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return torch.stack(found).tolist()

    def every(self, value: _Result) -> list[_Result]:
        """What each process has for ``value``, first to last; anything that can be pickled."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def first_says(self, value: _Result) -> _Result:
        """What the first process has for ``value``."""
        if self.size == 1:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0, device=self.device)
        return told[0]

    def on_first(self, call: Callable[[], _Result]) -> _Result | None:
        """Call a function on the first process, for which the others wait; return its result there,
        and None elsewhere. An error that it raises, all raise."""
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
    """The error as another process can be told: of a type that every process has."""
    for kind in (FloatingPointError, ValueError, OSError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"the first process failed: {type(error).__name__}: {error}")


@contextmanager
def joined(device: Callable[[int | None], torch.device]) -> Iterator[Processes]:
    """Join the processes that a launcher such as torchrun started, through gloo or NCCL, for as
    long as this lasts; without a launcher it is one process, and no group is made. A group that
    exists is used, and left as it is. ``device`` gives the device of the process with this number
    on its machine; None if it is alone."""
    place = device(local_rank())
    if dist.is_initialized() or not is_launched():
        yield Processes(place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # A handler of Python's would not run while the process waits in C++ for others that are gone,
    # and the launcher would wait for half a minute before it starts them anew.
    with on_signal(signal.SIGTERM, signal.SIG_DFL), _lost_processes_named():
        _make_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
        try:
            yield Processes(place)
        finally:
            dist.destroy_process_group()
            time.sleep(_SETTLING_S)


def _make_group(backend: str) -> None:
    """Meet the other processes, in a corner of the store that is that of this attempt: torchrun
    starts processes anew with the store of before, where addresses of ended processes stand."""
    store, rank, size = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(backend, store=dist.PrefixStore(meet(store, rank, size), store),
                            rank=rank, world_size=size)


def meet(
    store: dist.Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=30),
) -> str:
    """A word that the living processes alone agree on, whatever ended ones left in the store.

    Each of the others leaves a word of its own and waits for an answer to it. The first answers
    whatever it finds, again and again, until all have come. (TORCHELASTIC_RESTART_COUNT would not
    do: launchers on several machines may count differently.)
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
    """Turn what torch raises when another process is gone into one line."""
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
"""``ddp``: every process has all weights and moments. ``fsdp``: each has its part of them, and
gathers the weights of a block while it computes the block."""


def laid_out(model: LanguageModel, layout: str | None, processes: Processes) -> nn.Module:
    """Lay a model, which is on the CPU, out over the processes, in one of :data:`LAYOUTS` (None:
    ``ddp`` if there is more than one), and return the module to be called in its place.

    Under ``fsdp`` parameters are replaced in place. Weights stay float32 and a block gathers them
    whole, so that the scale of a ternary matrix is the mean over all of it.
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
        # Logits are a view, time first or batch first; nobody changes them in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        return model
    model.to(processes.device)
    if not processes.grouped:
        return model
    return DistributedDataParallel(
        model, device_ids=None if processes.device.type == "cpu" else [processes.device],
        gradient_as_bucket_view=True)


def gather_for_backward(model: LanguageModel, from_weights: bool) -> None:
    """Under ``fsdp``, have blocks gather weights for the backward pass only if they need them: a
    ternary projection keeps its codes; float weights, gains, a block that is computed again and
    gradients ``from_weights`` (in floats, or compiled) do not."""
    for block in model.blocks():
        if isinstance(block, FSDPModule):
            block.set_unshard_in_backward(from_weights or block.recomputes or any(
                next(module.parameters(recurse=False), None) is not None
                and not isinstance(module, BitLinear) for module in block.modules()))


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Within it a backward pass adds to the gradients of this process; the next outside sends the
    sum."""
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
    """All of a tensor; every process that holds a part must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A tensor laid out as ``pattern``; one that is whole every process has. Sends nothing."""
    if not isinstance(pattern, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements,
                             src_data_rank=None)


def batch_in_parts(part: Tensor, processes: Processes) -> Tensor:
    """A tensor whose first dimension is the batch, of which each process has its columns."""
    if not processes.grouped:
        return part
    return DTensor.from_local(part, processes.mesh, [Shard(0)], run_check=False)
