"""The records of a model as numbers, for the compiled operator, and the constants they read.

A program is int64 ``[records, fields]``. Each value has a slot, reused by a later value of the same
kind and width after the last read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from sterna.model.quantized.records import (
    Embedding,
    Energy,
    Input,
    Norm,
    Project,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
)

__all__ = ["FIELDS", "KINDS_FLAG", "make_program"]

FIELDS = ("kind", "result", "x", "y", "width", "columns", "low", "high", "shift", "mantissa",
          "combine_shift", "reciprocal_bits", "root_frac", "scale_frac", "epsilon", "reverse",
          "constant")
"""Fields of ``struct Numbers`` in ``cpp/model.hpp``; 0 if a record has no such number."""
_KINDS = get_args(Record)
KINDS_FLAG = "-DSTERNA_KINDS=" + ",".join(f"k{each.__name__}" for each in _KINDS)
"""The enumeration of the kinds, for the compiler."""
_LOGITS = -1
_UNSATURATED = 1 << 30


def make_program(
    records: Sequence[Record], tensor: Callable[[str], np.ndarray],
) -> tuple[np.ndarray, list[str]]:
    """The program, and the names of its numbered constants; ``tensor`` reads a stored one.

    Raises ValueError if a scale is not that of a projection, or the records are a network over
    frames.
    """
    if isinstance(records[0], Input):
        raise ValueError("they are for language models, and this is a network over frames")
    last_read = {name: i for i, record in enumerate(records) for name in record.reads}
    free: dict[tuple[str, int], list[int]] = defaultdict(list)
    slots: dict[str, tuple[int, tuple[str, int]]] = {}
    constants: dict[str, int] = {}
    rows, used = [], 0
    for i, record in enumerate(records):
        # The scale of activations is in their slot.
        names = list(record.reads)[:1 if isinstance(record, Project) else 2]
        read = [slots[name] for name in names]
        for name, (slot, shape) in zip(names, read, strict=True):
            if last_read[name] == i:
                free[shape].append(slot)
        result = _LOGITS
        if i < len(records) - 1:
            name, shape = _result(record)
            result = free[shape].pop() if free[shape] else used
            used = max(used, result + 1)
            slots[name] = result, shape
        own = [constants.setdefault(each, len(constants)) for each in _constants(record)]
        numbers = _numbers(record, tensor) | {
            "kind": _KINDS.index(type(record)), "result": result, "x": read[0][0] if read else 0,
            "y": read[-1][0] if read else 0, "constant": own[0] if own else 0}
        rows.append([numbers.get(name, getattr(record, name, 0)) for name in FIELDS])
    return np.array(rows, dtype=np.int64), list(constants)


def _result(record: Record) -> tuple[str, tuple[str, int]]:
    """The name of its result for other records, its kind, and its width."""
    kind = ("activations" if isinstance(record, Norm | Quantize) else
            "number" if isinstance(record, Root | Energy) else "vector")
    return record.result, (kind, record.gives[record.result])


def _constants(record: Record) -> list[str]:
    match record:
        case Embedding():
            return ["embedding"]
        case Sigmoid():
            return ["sigmoid.table"]
        case Scale(name):
            return [f"{name}.vector"]
        case Project(name):
            return [f"{name}.weight", f"{name}.bias"]
        case _:
            return []


def _numbers(record: Record, tensor: Callable[[str], np.ndarray]) -> dict[str, int]:
    """The fields that are not attributes of the record."""
    limits = {}
    if output := getattr(record, "output", None):
        limits = {"low": output.min, "high": output.max}
        if not getattr(record, "saturates", True):
            limits = {"low": -_UNSATURATED, "high": _UNSATURATED}
    match record:
        case Embedding():
            return limits | {"columns": record.vocab}
        case Quantize():
            return {"shift": record.scale_shift}
        case Sigmoid():
            return {"low": record.z.min, "shift": record.step_bits, "reverse": record.complement}
        case Recur():
            return limits | {"shift": record.frac, "reverse": not record.keeps}
        case Project(name):
            return limits | _scale(name, record.mantissa_bits, tensor)
    return limits


def _scale(name: str, bits: int, tensor: Callable[[str], np.ndarray]) -> dict[str, int]:
    k, divisor = (np.asarray(tensor(f"{name}.{part}"), dtype=np.float64).reshape(-1)
                  for part in ("k", "divisor"))
    if k.size == divisor.size == 1 and 0 <= k[0] < 1 << bits and k[0] == math.floor(k[0]):
        fraction, exponent = math.frexp(divisor[0])
        if fraction == 0.5 and 1 <= exponent <= 41:
            return {"mantissa": int(k[0]), "shift": exponent - 1}
    raise ValueError(
        f"{name}.k must be a whole number of {bits} bits, and {name}.divisor a power of two from "
        f"1 to 2^40, got {k.tolist()} and {divisor.tolist()}")
