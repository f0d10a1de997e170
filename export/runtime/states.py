"""A recurrent state as bytes, with the model it belongs to."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from sterna.export.graph.metadata import GraphInfo
from sterna.export.runtime.runtime import state_array

__all__ = ["pack_state", "unpack_state"]

_MAGIC = b"sterna state 1\n"


def pack_state(state: np.ndarray, info: GraphInfo) -> bytes:
    """Pack ``state [layers, batch, d]``.

    A line that names the format, a line of JSON (model, shape, type, SHA-256 of the values),
    then the values, little-endian, in the order of the axes.

    Raises
    ------
    ValueError
        If shape, type or range are not those of a state.
    """
    kind = _kind(info)
    state = state_array(state, info)
    values = np.ascontiguousarray(state, dtype=f"<{kind}").tobytes()
    header = {"model_sha256": info.model_sha256, "type": _type(info), "shape": list(state.shape),
              "sha256": hashlib.sha256(values).hexdigest()}
    return _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + values


def unpack_state(data: bytes, info: GraphInfo) -> np.ndarray:
    """Undo :func:`pack_state` for a graph of the same model.

    Raises
    ------
    ValueError
        If the bytes are no state, damaged, of another model, or float where integers are
        wanted.
    """
    if not isinstance(data, bytes):
        raise ValueError(f"a saved state must be bytes, got {type(data).__name__}")
    if not data.startswith(_MAGIC):
        raise ValueError("not a saved state of Sterna (its first line is missing)")
    line, _, values = data[len(_MAGIC):].partition(b"\n")
    try:
        header = json.loads(line)
        found, model = header["type"], header["model_sha256"]
        shape, digest = tuple(header["shape"]), header["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the saved state is damaged (its header: {error})") from error
    if hashlib.sha256(values).hexdigest() != digest:
        raise ValueError("the saved state is damaged or cut off (its checksum differs)")
    if model != info.model_sha256:
        raise ValueError(
            f"the saved state belongs to another model: expected {info.model_sha256[:12]}, got "
            f"{str(model)[:12]} (the first digits of its SHA-256)")
    if found != _type(info):
        raise ValueError(
            f"the saved state is of the form {found}, from which the form {info.form} cannot go on")
    try:
        state = np.frombuffer(values, dtype=f"<{_kind(info)}").reshape(shape).astype(_kind(info))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the saved state is damaged ({error})") from error
    return state_array(state, info)


def _type(info: GraphInfo) -> str:
    """Exact forms share their states, float forms do not."""
    return "exact" if info.exact else info.form.value


def _kind(info: GraphInfo) -> str:
    return "i4" if info.exact else "f4"
