"""What a launcher such as torchrun says of this process, in its environment. Without torch."""

from __future__ import annotations

import os

__all__ = ["is_first_process", "is_launched", "local_rank"]

_SET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether a launcher started this process, alone or with others."""
    return all(name in os.environ for name in _SET)


def is_first_process() -> bool:
    """Whether this is the process that prints and writes: the first, or the only one."""
    return not is_launched() or os.environ["RANK"] == "0"


def local_rank() -> int | None:
    """The number of this process on its machine; None if no launcher started it."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_launched() else None
