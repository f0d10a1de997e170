"""When Triton kernels compute in place of torch's own operators."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from sterna.model.network.replaceable import Replaceable

__all__ = ["by_triton"]


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


@Replaceable
def by_triton(*tensors: Tensor) -> bool:
    """Whether the kernels of ``model/triton_kernels`` compute with these tensors.

    They do if all are plain tensors, float32 and on a CUDA device, and Triton is installed (the
    extra ``triton``). Tensors of other classes know what torch's operators do to them, and nothing
    of kernels: those of an exporter, or distributed ones.
    ``with by_triton.by(lambda *tensors: False)`` leaves all to torch.
    """
    return _installed() and all(
        type(tensor) in (Tensor, nn.Parameter) and tensor.is_cuda
        and tensor.dtype == torch.float32 for tensor in tensors)
