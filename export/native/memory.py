"""Weights of a large model in huge pages, one copy for all sessions of a process.

A token reads each weight once. From the file's 4 KiB pages, with unaligned tensors, the TLB limits
the speed, not memory (docs/native-ops.md).
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from weakref import WeakSet

import numpy as np
import onnxruntime
from onnx import TensorProto

from sterna.export.graph.file import OnnxFile

__all__ = ["LEAST_BYTES", "SharedWeights", "huge_pages", "share_weights"]

LEAST_BYTES = 16 << 20
"""Smallest size of packed weights worth a copy; below it the TLB suffices for 4 KiB pages."""
_LINE, _PAGE = 64, 2 << 20


def huge_pages(size: int) -> np.ndarray:
    """``size`` zero bytes aligned to a huge page, in huge pages if the system grants them.

    NumPy requests them, too, but malloc may reuse memory that is already in small pages.
    """
    memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):     # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % _PAGE
    return whole[first:first + size]


class SharedWeights:
    """A copy of byte tensors, by name; it must outlive the sessions that use it."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        sizes = [-(-each.size // _LINE) * _LINE for each in tensors.values()]
        parts = np.split(huge_pages(sum(sizes)), np.cumsum(sizes)[:-1])
        self.tensors: dict[str, np.ndarray] = {}
        for (name, tensor), part in zip(tensors.items(), parts, strict=True):
            self.tensors[name] = part[:tensor.size].reshape(tensor.shape)
            self.tensors[name][...] = tensor
        self._values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(each)
                        for name, each in self.tensors.items()}

    def holds(self, tensors: dict[str, np.ndarray]) -> bool:
        """Whether it is a copy of these."""
        return tensors.keys() == self.tensors.keys() and all(
            np.array_equal(each, self.tensors[name]) for name, each in tensors.items())

    def tell(self, options: onnxruntime.SessionOptions) -> None:
        """Make a session created with these options read this copy."""
        for name, value in self._values.items():
            options.add_initializer(name, value)


_alive: WeakSet[SharedWeights] = WeakSet()


def share_weights(file: OnnxFile) -> SharedWeights | None:
    """The packed weights of a file: the copy of another session with the same weights, or a new
    one.

    None for a small model, and for a graph already in memory.
    """
    tensors = {tensor.name: values.reshape(tensor.dims) for tensor, values in file.external()
               if tensor.data_type == TensorProto.UINT8 and values.size == math.prod(tensor.dims)}
    if sum(each.size for each in tensors.values()) < LEAST_BYTES:
        return None
    for shared in list(_alive):
        if shared.holds(tensors):
            return shared
    shared = SharedWeights(tensors)
    _alive.add(shared)
    return shared
