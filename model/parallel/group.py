"""The processes that share sequences, and the part of each."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["own_part", "part_lengths", "rank_and_size"]


def rank_and_size(group: ProcessGroup) -> tuple[int, int]:
    """The number of this process in the group, and how many there are.

    Raises
    ------
    ValueError
        If there is no such group, or this process is not in it.
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

    Parts follow each other in the order of the processes. If they cannot be equal the first ones
    have one token more.

    Raises
    ------
    ValueError
        If there are fewer tokens than processes.
    """
    rank, size = rank_and_size(group)
    if x.shape[dim] < size:
        raise ValueError(f"a sequence of {x.shape[dim]} tokens cannot be split over {size} "
                         f"processes: each needs one at least")
    return x.tensor_split(size, dim)[rank].contiguous()


def part_lengths(part: Tensor, group: ProcessGroup, dim: int = 2) -> tuple[int, ...]:
    """The lengths along ``dim`` of the parts of all processes, in their order.

    Sends a whole number for each dimension. Every process raises the same error, so none is left
    waiting for another.

    Raises
    ------
    ValueError
        If a part is empty, or parts differ in more than their length.
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
