"""The folder of a published checkpoint: its configuration and its tensors, read one at a time."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["HubError", "HubFolder"]

_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "|u1"}
_FLOATS = {"F64", "F32", "F16", "BF16"}
_LONGEST_HEADER = 100 << 20


class HubError(ValueError):
    """A folder that cannot be used; the message says which file and why."""


class HubFolder:
    """A configuration, and the tensors of one or several files.

    Safetensors are mapped, not read, and need no torch; files of ``torch.save`` are read with
    ``weights_only``, which runs none of their code.

    Raises HubError if there is no configuration, a file is missing, truncated or of another type,
    or two files hold the same tensor.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_file():
            raise HubError(f"{self.path} is a file: give the folder of a published checkpoint")
        if (self.path / "run.json").is_file():
            raise HubError(f"{self.path} is the folder of a training run: sterna quantize makes a "
                           f"model file of it")
        if not (self.path / _CONFIG).is_file():
            raise HubError(f"{self.path}: not the folder of a published checkpoint: it has no "
                           f"{_CONFIG}")
        self.config = self._json(_CONFIG)
        self._tensors: dict[str, _Stored] = {}
        for name in self._files():
            path = self.path / name
            read = _safetensors if name.endswith(".safetensors") else _torch_tensors
            try:
                for each, stored in read(path):
                    if each in self._tensors:
                        raise ValueError(
                            f"{each} is in {self._tensors[each].file.name} as well")
                    self._tensors[each] = stored
            except FileNotFoundError:
                raise HubError(f"{path}: a file of the checkpoint is missing") from None
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise HubError(f"{path}: {error}") from error

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._tensors)

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise HubError unless the tensors are exactly these, floating-point with 16 to 64 bits;
        the message names the first missing, unknown, misshapen or wrongly typed one."""
        for name, shape in shapes.items():
            if name not in self._tensors:
                raise HubError(f"{self.path}: the tensor {name} is missing")
            stored = self._tensors[name]
            if stored.shape != shape:
                raise HubError(f"{stored.file}: {name} must have the shape {list(shape)}, "
                               f"got {list(stored.shape)}")
            if stored.dtype not in _FLOATS:
                raise HubError(f"{stored.file}: {name} must be floating-point numbers of 16 to 64 "
                               f"bits, got {stored.dtype}")
        for name in sorted(self.names - shapes.keys()):
            raise HubError(f"{self._tensors[name].file}: unknown tensor {name}")

    def tensor(self, name: str) -> np.ndarray:
        """A tensor as stored if uint8, else as float32.

        Raises HubError if it is missing, of another type, or not every value is finite.
        """
        if name not in self._tensors:
            raise HubError(f"{self.path}: the tensor {name} is missing")
        stored = self._tensors[name]
        if stored.read is None:
            raise HubError(f"{stored.file}: {name} is of a type that is not read, {stored.dtype}")
        array = stored.read()
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise HubError(f"{stored.file}: {name} holds a value that is not finite")
        return array

    def _files(self) -> list[str]:
        for name in _WEIGHTS:
            index = f"{name}.index.json"
            if (self.path / index).is_file():
                places = self._json(index).get("weight_map")
                if not isinstance(places, dict) or not all(
                        isinstance(file, str) and Path(file).name == file
                        for file in places.values()):
                    raise HubError(f"{self.path / index}: weight_map must give a file of this "
                                   f"folder for each tensor")
                return sorted(set(places.values()))
            if (self.path / name).is_file():
                return [name]
        raise HubError(f"{self.path}: there are no weights: neither {' nor '.join(_WEIGHTS)}, nor "
                       f"an index of several files")

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8-sig"))
            if not isinstance(content, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError, RecursionError) as error:
            raise HubError(f"{path}: cannot read it ({error})") from error
        return content


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a file; ``read`` gives it as float32 or uint8, None if its type is neither."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray] | None


def _safetensors(path: Path) -> Iterator[tuple[str, _Stored]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError("not a safetensors file, or cut off in its header")
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if dtype not in _TYPES:
            yield name, _Stored(path, dtype, shape, None)
            continue
        kind = np.dtype(_TYPES[dtype])
        if end > size - 8 - length or end - begin != math.prod(shape) * kind.itemsize:
            raise ValueError(f"cut off or damaged: {name} does not fit in it")

        def read(
            place: int = 8 + length + begin, kind: np.dtype[Any] = kind,
            shape: tuple[int, ...] = shape,
        ) -> np.ndarray:
            values = np.memmap(path, kind, "r", place, shape)
            if kind.itemsize == 1:
                return np.array(values)
            if kind.kind == "u":    # bfloat16, which NumPy lacks: half of a float32
                return (values.astype(np.uint32) << 16).view(np.float32)
            return values.astype(np.float32)
        yield name, _Stored(path, dtype, shape, read)


def _torch_tensors(path: Path) -> Iterator[tuple[str, _Stored]]:
    import torch
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError("not tensors alone, or damaged: nothing of it was run") from error
    if not isinstance(tensors, dict) or not all(
            isinstance(each, torch.Tensor) for each in tensors.values()):
        raise ValueError("not a dictionary of tensors")
    for name, value in tensors.items():
        def read(value: torch.Tensor = value) -> np.ndarray:
            return np.asarray(value if value.dtype is torch.uint8 else value.float())
        names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16",
                 torch.bfloat16: "BF16", torch.uint8: "U8"}
        dtype = names.get(value.dtype)
        yield name, _Stored(
            path, dtype or str(value.dtype), tuple(value.shape), read if dtype else None)
