"""A model laid out over processes: copies of it (DDP), or a part of each weight (FSDP2)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from sterna.model.network.bitlinear import BitLinear
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training.distributed.processes import Processes

__all__ = ["LAYOUTS", "batch_in_parts", "gather_for_backward", "laid_out", "like",
           "local_gradients", "own", "whole"]

LAYOUTS = ("ddp", "fsdp")
"""``ddp``: every process has all weights and moments. ``fsdp``: each has its part of them, and
gathers the weights of a block while it computes the block."""


def laid_out(model: LanguageModel, layout: str | None, processes: Processes) -> nn.Module:
    """Lay a model out over the processes, and return the module to be called in its place.

    Weights stay float32. Under ``fsdp`` a block gathers them whole before its forward pass, so
    that the scale of a ternary matrix is the mean over all of it; they would not be the same
    codes if parts or rounded weights were made ternary.

    Parameters
    ----------
    model
        On the CPU; its parameters are replaced in place under ``fsdp``.
    layout
        One of :data:`LAYOUTS`, or None: ``ddp`` if there is more than one process.
    processes
        Those of the run.

    Raises
    ------
    ValueError
        If the layout does not fit the model, or there is no process group for it.
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
    """Under ``fsdp``, have blocks gather weights for the backward pass only if they need them.

    A ternary projection keeps its codes, a byte a weight, and needs nothing else; a block that is
    computed again does, as do float weights and gains, and all weights if gradients are computed
    ``from_weights``: in floats, or compiled, where torch chooses what it keeps.
    """
    for block in model.blocks():
        if isinstance(block, FSDPModule):
            block.set_unshard_in_backward(from_weights or block.recomputes or any(
                next(module.parameters(recurse=False), None) is not None
                and not isinstance(module, BitLinear) for module in block.modules()))


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Within it a backward pass adds to the gradients of this process, and sends nothing.

    The next one outside sends the sum.
    """
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
