"""Pre-activations into beats of the MLGRU unit, and its results back into arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.hw.parts.bits import from_ints, signed_elements, to_bits, to_ints
from sterna.hw.units.mlgru.params import MlgruParams

__all__ = ["preact_payloads", "state_values"]


def preact_payloads(
    f: np.ndarray, c: np.ndarray, g: np.ndarray, params: MlgruParams, *, start: bool,
) -> list[int]:
    """Return the payloads of ``preacts`` for one token.

    Parameters
    ----------
    f, c, g
        Pre-activations, integers ``[layers, channels]`` in format ``profile.z``.
    params
        Geometry of the unit.
    start
        Whether the token is the first of a sequence.

    Returns
    -------
    list of int
        ``params.words`` payloads.

    Raises
    ------
    ValueError
        If an array has the wrong shape or leaves the format.
    """
    layout, z = params.preact_layout, params.profile.z
    bits = np.zeros((params.words, layout.size), dtype=np.uint8)
    for name, values in (("f", f), ("c", c), ("g", g)):
        values = np.asarray(values)
        if values.shape != (params.layers, params.channels):
            raise ValueError(
                f"{name} must have shape {(params.layers, params.channels)}, "
                f"got {values.shape}")
        if values.min() < z.min or values.max() > z.max:
            raise ValueError(
                f"{name} must be from {z.min} to {z.max}, "
                f"got {values.min()} to {values.max()}")
        field = to_bits(values.reshape(params.words, params.lanes), z.bits)
        offset = layout[name].offset
        bits[:, offset:offset + field.shape[1]] = field
    bits[0, layout["start"].offset] = start
    return to_ints(bits)


def state_values(
    payloads: Sequence[int], params: MlgruParams,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``o`` and ``h`` of payloads of ``states``; int64 ``[payloads, lanes]`` each.

    Those of whole tokens reshape to ``[tokens, layers, channels]``.
    """
    values = []
    for name, fmt in (("o", params.profile.o), ("h", params.profile.h)):
        offset = params.state_layout[name].offset
        bits = from_ints(payloads, offset, params.lanes * fmt.bits)
        values.append(signed_elements(bits, fmt.bits))
    return values[0], values[1]
