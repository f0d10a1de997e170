"""What a run computes with: the device, the threads and the precision of products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["arithmetic", "training_device"]


def training_device(name: str | None, local_rank: int | None = None) -> torch.device:
    """The device to train on; CUDA if none is asked for and one is there.

    Of several processes on a machine each takes the CUDA device of its number, ``local_rank``.

    Raises
    ------
    ValueError
        If there is no such device, or it has no numbers.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if local_rank is not None and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.zeros(1, device=device).item()    # the device meta has no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"cannot train on device {name!r}: {reason}") from error
    return device


@contextmanager
def arithmetic(threads: int | None, weights: str) -> Iterator[None]:
    """Use ``threads`` threads of torch, and for ternary weights its fastest float32 product.

    The fastest may take its inputs in bfloat16 or TF32. The projections' products of the forward
    pass are of whole numbers below 128, which either keeps exact; gradients lose digits that
    do not matter. Float weights would lose some that might.
    """
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium" if weights == "ternary" else before[1])
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
