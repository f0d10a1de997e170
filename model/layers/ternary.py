"""A ternary matrix as one has it: codes, a scale, a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sterna.model.checks import real_number

__all__ = ["TERNARY_TOLERANCE", "Ternary", "TernaryMatrix", "ternary_matrix"]

TERNARY_TOLERANCE = 1e-3
"""How far a real weight may be from a ternary one, in parts of the scale."""


@dataclass(frozen=True, slots=True, eq=False)
class TernaryMatrix:
    """A matrix of -1, 0 and 1, what a code stands for, and what is added to the products.

    Parameters
    ----------
    weight
        ``[rows, columns]``, -1, 0 and 1 in any type of number; kept as int8.
    scale
        The real number that a code of 1 stands for, positive.
    bias
        Real numbers ``[rows]``, added to the products; None for zeros.

    Raises
    ------
    ValueError
        If the weights are no matrix or not ternary, the scale is not positive and finite, or
        the bias has another length or is not finite.

    >>> TernaryMatrix([[1, 0, -1]], scale=0.5).weight
    array([[ 1,  0, -1]], dtype=int8)
    """

    weight: np.ndarray
    scale: float = 1.0
    bias: np.ndarray | None = None

    def __post_init__(self) -> None:
        try:
            weight = np.asarray(self.weight)
        except ValueError:
            raise ValueError("weight must be a matrix: its rows differ in length") from None
        if weight.dtype.kind not in "biuf":
            raise ValueError(f"weight must be a matrix of numbers, got {self.weight!r:.60}")
        if weight.ndim != 2 or 0 in weight.shape:
            raise ValueError(f"weight must be a matrix [rows, columns], got shape {weight.shape}")
        odd = np.argwhere(~np.isin(weight, (-1, 0, 1)))
        if len(odd):
            row, column = odd[0]
            raise ValueError(
                f"every weight must be -1, 0 or 1, got {weight[row, column]} in row {row}, "
                f"column {column}")
        scale = real_number("scale", self.scale)
        if not (np.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be positive and finite, got {scale}")
        object.__setattr__(self, "weight", weight.astype(np.int8))
        object.__setattr__(self, "scale", scale)
        if self.bias is not None:
            try:
                bias = np.array(self.bias, dtype=np.float64)
            except (TypeError, ValueError):
                raise ValueError(f"bias must be real numbers, got {self.bias!r:.60}") from None
            if bias.shape != weight.shape[:1]:
                raise ValueError(
                    f"bias must have a number for each of {weight.shape[0]} rows, "
                    f"got shape {bias.shape}")
            if not np.isfinite(bias).all():
                raise ValueError("every bias must be finite")
            object.__setattr__(self, "bias", bias)

    @classmethod
    def from_float(
        cls, weights: ArrayLike, *, bias: np.ndarray | None = None,
    ) -> TernaryMatrix:
        """The matrix of weights that are already ternary: all of them ``-s``, 0 or ``s``.

        ``weights`` are real numbers ``[rows, columns]``; each may be off by
        :data:`TERNARY_TOLERANCE` of s, as rounding to 16 bits leaves it. If all are zero,
        the scale is 1.

        Raises
        ------
        ValueError
            If a weight is further off, with the largest deviation; or as the constructor does.

        >>> TernaryMatrix.from_float([[0.25, 0.0, -0.25]]).scale
        0.25
        """
        values = np.asarray(weights, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("every weight must be finite")
        magnitude = np.abs(values)
        used = magnitude > magnitude.max(initial=0.0) / 2
        if not used.any():
            return cls(np.zeros_like(values), bias=bias)
        scale = float(magnitude[used].mean())
        codes = np.sign(values) * used
        off = np.abs(values - scale * codes) / scale
        if off.max() > TERNARY_TOLERANCE:
            raise ValueError(
                f"the weights are not ternary: with the scale {scale:.6g} one is off by "
                f"{off.max():.2g} of it, at most {TERNARY_TOLERANCE:g} is allowed; "
                f"ternarise them first")
        return cls(codes, scale, bias)

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return int(self.weight.shape[1])


Ternary: TypeAlias = TernaryMatrix | np.ndarray
"""What is taken for a ternary matrix: one, or its codes alone with the scale 1."""


def ternary_matrix(name: str, value: Ternary) -> TernaryMatrix:
    """``value`` as a :class:`TernaryMatrix`; ``name`` says in messages which one it is.

    Raises
    ------
    ValueError
        As :class:`TernaryMatrix` does.
    """
    if isinstance(value, TernaryMatrix):
        return value
    try:
        return TernaryMatrix(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
