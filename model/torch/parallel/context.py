"""Running a model on sequences split over the processes of a group, and the split itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from sterna.model.torch.network.mixer import TokenMixer

__all__ = ["context_parallel", "own_part", "part_lengths", "rank_and_size", "sum_gradients"]


def rank_and_size(group: ProcessGroup) -> tuple[int, int]:
    """The rank of this process in the group, and the group's size.

    Raises ValueError if there is no such group, or this process is not in it.
    """
    if not isinstance(group, ProcessGroup):
        raise ValueError(
            "expected a process group, such as torch.distributed.group.WORLD after "
            f"torch.distributed.init_process_group(), got {group!r}")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group that shares the sequence")
    return rank, dist.get_world_size(group)


def own_part(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """The part of ``x`` along ``dim`` (time) that this process of the group holds.

    Parts are in the order of the processes. If they cannot be equal, the first ones have one token
    more. Raises ValueError if there are fewer tokens than processes.
    """
    rank, size = rank_and_size(group)
    if x.shape[dim] < size:
        raise ValueError(f"a sequence of {x.shape[dim]} tokens cannot be split over {size} "
                         f"processes: each needs one at least")
    return x.tensor_split(size, dim)[rank].contiguous()


def part_lengths(part: Tensor, group: ProcessGroup, dim: int = 2) -> tuple[int, ...]:
    """The lengths along ``dim`` of the parts of all processes, in their order.

    Sends one integer per dimension. Raises ValueError if a part is empty, or parts differ in more
    than their length: on every process, so that none waits for another.
    """
    _, size = rank_and_size(group)
    shape = torch.tensor(part.shape, device=part.device)
    gathered = [torch.empty_like(shape) for _ in range(size)]
    dist.all_gather(gathered, shape, group=group)
    shapes = torch.stack(gathered).tolist()
    if len({tuple(each[:dim] + each[dim + 1:]) for each in shapes}) > 1:
        raise ValueError(f"the processes hold parts of unlike sequences: only dimension {dim} "
                         f"(time) may differ, got the shapes {shapes}")
    lengths = tuple(each[dim] for each in shapes)
    if 0 in lengths:
        raise ValueError(
            f"every process must hold one token at least, got parts of {lengths} tokens")
    return lengths


@contextmanager
def context_parallel(model: nn.Module, group: ProcessGroup) -> Iterator[None]:
    """Context in which the model maps this process's part of sequences shared by a group.

    Every process calls the same model with its own part, as from
    :func:`sterna.model.torch.parallel.context.own_part`, from the initial state, and gets the
    outputs of that part. Only token mixers communicate; all else in a block works token by token.
    All processes may compute gradients outside the context; those of the weights cover the own
    outputs and must be added up by :func:`sum_gradients`. Raises ValueError if a token mixer of the
    model cannot share sequences, or this process is not in the group.

    Examples
    --------
    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.torch.stack.language_model import LanguageModel
    >>> model = LanguageModel(ModelConfig(d=16, layers=2, dff=16, mixer="mlgru + ring"))
    >>> def loss_of_part(tokens, targets, group):    # each [time, batch], targets a token later
    ...     with context_parallel(model, group):
    ...         logits, _ = model.forward_time_major(
    ...             own_part(tokens, group), model.initial_state(tokens.shape[1]))
    ...     return cross_entropy(
    ...         logits.flatten(0, 1), own_part(targets, group).flatten(), reduction="sum")
    """
    rank_and_size(group)
    mixers = [module for module in model.modules() if isinstance(module, TokenMixer)]
    for mixer in mixers:
        if not mixer.shares_sequences:
            raise ValueError(
                f"{type(mixer).__name__} cannot share a sequence between processes: mixers that "
                f"can are mlgru, and ring for full attention")
    before = [mixer.group for mixer in mixers]
    try:
        for mixer in mixers:
            mixer.group = group
        yield
    finally:
        for mixer, was in zip(mixers, before, strict=True):
            mixer.group = was


def sum_gradients(model: nn.Module, group: ProcessGroup) -> None:
    """Sum the gradients of the weights over the processes, in place.

    With losses that are sums over own tokens, or these divided by the number of all tokens, the
    result equals the gradients of a single process with whole sequences.
    """
    rank_and_size(group)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
