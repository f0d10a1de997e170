"""Heads and positions of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.checks import check_whole

__all__ = ["head_count", "merge_heads", "rotate", "split_heads"]


def head_count(d: int, heads: int, name: str = "heads") -> int:
    """``heads``, or if that is 0 one for every 32 channels or wider, and at least one.

    >>> [head_count(d, 0) for d in (16, 64, 112, 128)]
    [1, 2, 2, 4]
    """
    check_whole(name, heads, 0)
    heads = heads or next(count for count in range(max(1, d // 32), 0, -1) if d % count == 0)
    if d % heads:
        raise ValueError(f"d ({d}) must be a multiple of {name} ({heads})")
    return heads


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[time, batch, heads * width]`` to ``[batch, heads, time, width]``."""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def merge_heads(x: Tensor) -> Tensor:
    """``[batch, heads, time, width]`` to ``[time, batch, heads * width]``."""
    return x.permute(2, 0, 1, 3).flatten(-2)


def rotate(x: Tensor, positions: Tensor, theta: float = 1e4) -> Tensor:
    """Rotary position embedding (RoPE, arXiv 2104.09864, equation 34).

    Channels i and i + width/2 of ``x [..., time, width]`` are turned as a pair by
    ``position * theta^(-2i/width)``, so that the product of a query and a key depends on the
    difference of their positions ``[time]`` only. The last channel of an odd width stays.
    """
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device, dtype=torch.float64) / max(half, 1))
    angle = positions.to(torch.float64).unsqueeze(-1) * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)
