"""Arithmetic that must keep its precision under ``torch.autocast``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["keeps_precision"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def keeps_precision(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator: disable autocast for the function, which computes in float32 or float64.

    Sums of ternary products are exact integers up to 2^24; bfloat16 has 8 bits for them. Arguments
    in half precision, which other parts of a model produce under autocast, are cast to float32;
    gradients have the type of the argument. (``torch.amp.custom_fwd`` needs the kind of device to
    be named beforehand.)
    """
    @wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        device = _device_under_autocast((*args, *kwargs.values()))
        if device is None:
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*(_widened(each) for each in args),
                            **{name: _widened(each) for name, each in kwargs.items()})
    return run


def _device_under_autocast(arguments: tuple[Any, ...]) -> str | None:
    for each in arguments:
        if isinstance(each, Tensor):
            kind = each.device.type
            # Not available for the meta device, which computes nothing.
            known = torch.amp.is_autocast_available(kind)
            return kind if known and torch.is_autocast_enabled(kind) else None
        if isinstance(each, tuple | list) and each:
            return _device_under_autocast(tuple(each))
    return None


def _widened(argument: Any) -> Any:
    """Cast half-precision tensors to float32, in tuples and lists too."""
    if isinstance(argument, Tensor):
        return argument.float() if argument.dtype in (torch.bfloat16, torch.float16) else argument
    if type(argument) in (tuple, list):
        return type(argument)(_widened(each) for each in argument)
    return argument
