"""Compare an implementation with the integer reference, tensor by tensor.

Used for ONNX graphs, gateware and netlists. Arrays have the layout of
:class:`sterna.model.quantized.taps.TapRecorder`: tokens first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

__all__ = ["Comparison", "Difference", "compare"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs from the reference.

    Parameters
    ----------
    token
        Position in the sequence, from 0.
    layer
        Layer of the tensor; None for embedding, head and logits.
    tensor
        Tap name of the tensor, e.g. ``layer0.mlgru.h``.
    index
        Position in the tensor, without the token axis.
    expected, got
        The value of the reference and the compared one.

    >>> print(Difference(17, 0, "layer0.mlgru.h", (0, 5), 12, 13))
    token 17, layer 0, layer0.mlgru.h[0, 5]: expected 12, got 13
    """

    token: int
    layer: int | None
    tensor: str
    index: tuple[int, ...]
    expected: int
    got: int

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"layer {self.layer}, "
        index = ", ".join(map(str, self.index))
        return (f"token {self.token}, {layer}{self.tensor}[{index}]: "
                f"expected {self.expected}, got {self.got}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of compared values and of mismatches, and the first difference.

    Comparisons can be summed; the first difference of a sum is that at the earliest token.

    >>> sum([Comparison(3), Comparison(4)], Comparison())
    Comparison(values=7, mismatches=0, first=None)
    """

    values: int = 0
    mismatches: int = 0
    first: Difference | None = None

    @property
    def passed(self) -> bool:
        """Whether at least one value was compared and none differed."""
        return self.values > 0 and self.mismatches == 0

    def __add__(self, other: Comparison) -> Comparison:
        firsts = [side.first for side in (self, other) if side.first is not None]
        return Comparison(
            self.values + other.values, self.mismatches + other.mismatches,
            min(firsts, key=lambda first: first.token, default=None))

    def __str__(self) -> str:
        text = f"{self.values} values compared, {self.mismatches} mismatches"
        return text if self.first is None else f"{text}; first: {self.first}"


def compare(
    name: str, expected: np.ndarray, got: np.ndarray, *, first_token: int = 0,
) -> Comparison:
    """Compare two versions of the tensor ``name``.

    Parameters
    ----------
    name
        Tap name, which gives the layer.
    expected, got
        Whole numbers of any dtype, ``[tokens, ...]``, of the same shape.
    first_token
        Position in the sequence of the first entry.

    Raises
    ------
    ValueError
        If the shapes differ.

    >>> compare("layer1.glu.p", np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]])).first
    Difference(token=1, layer=1, tensor='layer1.glu.p', index=(1,), expected=4, got=5)
    """
    expected, got = np.asarray(expected), np.asarray(got)
    if expected.shape != got.shape or expected.ndim == 0:
        raise ValueError(
            f"{name}: expected shape [tokens, ...] = {list(expected.shape)}, "
            f"got {list(got.shape)}")
    wrong = expected != got
    mismatches = int(np.count_nonzero(wrong))
    first = None
    if mismatches:
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        layer = re.match(r"layer(\d+)\.", name)
        first = Difference(
            first_token + at[0], int(layer[1]) if layer else None, name, at[1:],
            int(expected[at]), int(got[at]))
    return Comparison(expected.size, mismatches, first)
