"""Read an ONNX file without its large tensors, which stay in the file.

Fields of protobuf messages have the numbers of onnx's ``onnx.proto``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no types
from onnx import TensorProto

from sterna.export.graph.metadata import GraphInfo, OnnxFileError

__all__ = ["OnnxFile", "Source"]

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_LARGE = 1 << 16
_FIXED = {1: 8, 5: 4}
"""Bytes of a field by its wire type."""


Source: TypeAlias = "str | Path | onnx.ModelProto | OnnxFile"
"""A graph: the path of its file, or the graph itself."""
_Bytes: TypeAlias = mmap.mmap | bytes


@dataclass(frozen=True)
class OnnxFile:
    """A graph, its name in messages, and its file unless it exists only in memory."""

    proto: onnx.ModelProto
    name: str = "the ONNX graph"
    path: Path | None = None

    @classmethod
    def read(cls, source: Source) -> OnnxFile:
        """Read a file; a graph is taken as it is.

        A tensor of 64 KiB or more becomes external data of the graph, in the same file:
        onnxruntime maps such data. Raises OnnxFileError if the file cannot be read or is truncated;
        ValueError if ``source`` is neither a path nor a graph.
        """
        if isinstance(source, OnnxFile):
            return source
        if isinstance(source, onnx.ModelProto):
            return cls(source)
        if not isinstance(source, (str, Path)):
            raise ValueError(
                f"a graph must be the path of an ONNX file or an onnx.ModelProto, got {source!r}")
        path = Path(source)
        try:
            return cls(_model(_map(path), path.name), str(source), path)
        except OSError as error:
            raise OnnxFileError(
                f"{source}: cannot read the ONNX file ({error.strerror or error})") from error
        except (DecodeError, IndexError) as error:
            raise OnnxFileError(f"{source}: not an ONNX file, or cut off") from error

    @cached_property
    def info(self) -> GraphInfo:
        """The metadata of the graph; OnnxFileError if Sterna did not make it."""
        with self.named():
            return GraphInfo.read(self.proto)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Begin the message of an OnnxFileError with the name of the file, if it does not."""
        try:
            yield
        except OnnxFileError as error:
            if str(error).startswith(f"{self.name}: "):
                raise
            raise type(error)(f"{self.name}: {error}") from error

    @property
    def content(self) -> mmap.mmap | bytes:
        """The bytes of the file, or the serialised bytes of a graph in memory."""
        if self.path is None:
            return bytes(self.proto.SerializeToString(deterministic=True))
        return _map(self.path)

    def external(self) -> Iterator[tuple[TensorProto, np.ndarray]]:
        """Each initialiser that :meth:`read` left in the file, and its unread bytes."""
        if self.path is None:
            return
        content = self.content
        for tensor in self.proto.graph.initializer:
            place = {each.key: each.value for each in tensor.external_data}
            if place.get("location") == self.path.name:
                yield tensor, np.frombuffer(
                    content, np.uint8, int(place["length"]), int(place["offset"]))


def _map(path: Path) -> _Bytes:
    """The mapped bytes of a file."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def _model(content: _Bytes, name: str) -> onnx.ModelProto:
    graphs = [field for field in _fields(content, 0, len(content)) if field[0] == _GRAPH]
    if len(graphs) != 1:
        raise DecodeError
    _, start, first, last = graphs[0]
    proto = onnx.ModelProto.FromString(content[:start] + content[last:])
    kept = []
    for number, start, at, end in _fields(content, first, last):
        if number == _INITIALIZER:
            proto.graph.initializer.append(_tensor(content, at, end, name))
        else:
            kept.append(content[start:end])
    proto.graph.MergeFromString(b"".join(kept))
    return proto


def _tensor(content: _Bytes, first: int, last: int, name: str) -> TensorProto:
    for number, start, at, end in _fields(content, first, last):
        if number == _RAW_DATA and end - at >= _LARGE:
            tensor = TensorProto.FromString(content[first:start] + content[end:last])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", name), ("offset", at), ("length", end - at)):
                tensor.external_data.add(key=key, value=str(value))
            return tensor
    return TensorProto.FromString(content[first:last])


def _fields(content: _Bytes, at: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Number of each field of a message, and the offsets of the field, its value and the next."""
    while at < last:
        start = at
        key, at = _varint(content, at)
        size = _FIXED.get(key & 7, 0)
        if key & 7 == 2:
            size, at = _varint(content, at)
        elif key & 7 == 0:
            _, at = _varint(content, at)
        elif not size:
            raise DecodeError
        if at + size > last:
            raise DecodeError
        yield key >> 3, start, at, at + size
        at += size


def _varint(content: _Bytes, at: int) -> tuple[int, int]:
    """A number, and the offset after it."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
