"""A ternary matrix, and a layer of one: int8 activations in, sums or results out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike

from sterna.model.checks import real_number
from sterna.model.profile import FixedPoint, NumericProfile, mantissa_and_shift
from sterna.model.quantized.fixed import bias_format, check_bias, to_fixed
from sterna.model.quantized.integer import requantize, ternary_matmul, transposed

__all__ = ["ACT_BITS", "MANTISSA_BITS", "TERNARY_TOLERANCE", "MatrixLayer", "Requantization",
           "Ternary", "TernaryMatrix", "ternary_matrix"]

TERNARY_TOLERANCE = 1e-3
"""Largest deviation of a real weight from a ternary one, relative to the scale."""


@dataclass(frozen=True, slots=True, eq=False)
class TernaryMatrix:
    """A matrix of -1, 0 and 1 with its scale and bias.

    Parameters
    ----------
    weight
        ``[rows, columns]``, -1, 0 and 1 in any type of number; kept as int8.
    scale
        The real value of a code of 1, positive.
    bias
        Real numbers ``[rows]``, added to the products; None for zeros.

    Raises
    ------
    ValueError
        If the weights are not a matrix or not ternary, the scale is not positive and finite, or
        the bias has the wrong length or is not finite.

    >>> TernaryMatrix([[1, 0, -1]], scale=0.5).weight
    array([[ 1,  0, -1]], dtype=int8)
    """

    weight: np.ndarray
    scale: float = 1.0
    bias: np.ndarray | None = None

    def __post_init__(self) -> None:
        try:
            weight = _array(self.weight)
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
                bias = np.array(_array(self.bias), dtype=np.float64)
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
        :data:`TERNARY_TOLERANCE` of s, as after rounding to 16 bits. If all are zero, the
        scale is 1.

        Raises
        ------
        ValueError
            If a weight is further off, with the largest deviation; or as in the constructor.

        >>> TernaryMatrix.from_float([[0.25, 0.0, -0.25]]).scale
        0.25
        """
        values = np.asarray(_array(weights), dtype=np.float64)
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


def _array(values: Any) -> np.ndarray:
    """Numbers as an array; torch tensors, which NumPy refuses in bfloat16, with a gradient or on a
    GPU, as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values)


Ternary: TypeAlias = TernaryMatrix | np.ndarray
"""Accepted as a ternary matrix: one, or only its codes, with the scale 1."""


def ternary_matrix(name: str, value: Ternary) -> TernaryMatrix:
    """``value`` as a :class:`TernaryMatrix`; messages call it ``name``.

    Raises ValueError as :class:`TernaryMatrix` does.
    """
    if isinstance(value, TernaryMatrix):
        return value
    try:
        return TernaryMatrix(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


ACT_BITS = NumericProfile.act_bits
"""Bits of a signed activation."""

MANTISSA_BITS = 16
"""Bits of the mantissa of a constant scale."""

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Requantization:
    """From a sum to a fixed-point result: ``sat(rs(sum * k, shift) + bias)``.

    ``k`` has :data:`MANTISSA_BITS` bits with the highest set; ``shift`` is from 1 to 40;
    ``bias`` is int32 ``[rows]`` with one bit more than ``output``.
    """

    k: int
    shift: int
    bias: np.ndarray
    output: FixedPoint


@dataclass(frozen=True, slots=True, eq=False)
class MatrixLayer:
    """A ternary matrix that takes 8-bit activations.

    Make one with :meth:`of`.

    Parameters
    ----------
    weight
        int8 ``[rows, columns]`` of -1, 0 and 1.
    requantization
        Applied to the sums; None leaves them unchanged.

    >>> layer = MatrixLayer.of(np.array([[1, 0, -1], [1, 1, 1]]))
    >>> layer(np.array([5, 7, -128])).tolist()
    [133, -116]
    """

    weight: np.ndarray
    requantization: Requantization | None = None

    @classmethod
    def of(cls, weights: Ternary, output: FixedPoint | None = None) -> MatrixLayer:
        """Make the layer of a ternary matrix.

        Parameters
        ----------
        weights
            The matrix, or only its codes ``[rows, columns]``.
        output
            Format of the results, 2 to 23 bits: ``sum * scale + bias`` as a fixed-point number,
            rounded half up and saturated. None for the sums themselves; scale and bias must then
            not be given.

        Raises
        ------
        ValueError
            If the weights are not ternary, the scale cannot be represented, a bias does not fit
            one bit more than the output, or there is a scale or bias but no output format.
        """
        matrix = ternary_matrix("weights", weights)
        if output is None:
            if matrix.scale != 1 or matrix.bias is not None:
                raise ValueError(
                    "a scale or a bias needs an output format: output=FixedPoint(8, 0), "
                    "for example; without one the sums themselves come out")
            return cls(matrix.weight)
        check_bias("weights", matrix.bias, output)
        k, shift = mantissa_and_shift(
            matrix.scale * 2.0 ** output.frac, MANTISSA_BITS, MANTISSA_BITS)
        bias = np.zeros(matrix.rows) if matrix.bias is None else matrix.bias
        return cls(matrix.weight, Requantization(
            k, shift, to_fixed("bias", bias, bias_format(output)), output))

    @property
    def rows(self) -> int:
        """Number of results."""
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        """Number of activations."""
        return int(self.weight.shape[1])

    @property
    def sum_limit(self) -> int:
        """Largest magnitude of a sum."""
        return self.columns << (ACT_BITS - 1)

    @property
    def output_bits(self) -> int:
        """Signed bits of a result."""
        if self.requantization is not None:
            return self.requantization.output.bits
        return self.sum_limit.bit_length() + 1

    def __call__(self, acts: Array) -> Array:
        """Apply the integer reference.

        Parameters
        ----------
        acts
            Integers ``[..., columns]`` from -128 to 127.

        Returns
        -------
        int64 ``[..., rows]``.

        Raises
        ------
        ValueError
            If the activations have a wrong shape or exceed their range.
        """
        xp = array_namespace(acts)
        if not xp.isdtype(acts.dtype, "integral"):
            raise ValueError(f"acts must be integers, got {acts.dtype}")
        low, high = -(1 << (ACT_BITS - 1)), (1 << (ACT_BITS - 1)) - 1
        if acts.ndim < 1 or acts.shape[-1] != self.columns:
            raise ValueError(f"acts must be [..., {self.columns}], got {list(acts.shape)}")
        if int(xp.min(acts)) < low or int(xp.max(acts)) > high:
            raise ValueError(
                f"acts must be from {low} to {high}, got {int(xp.min(acts))} to "
                f"{int(xp.max(acts))}")
        sums = ternary_matmul(xp.astype(acts, xp.int64), transposed(self.weight, acts))
        if self.requantization is None:
            return sums
        numbers = self.requantization
        bias = xp.asarray(numbers.bias, dtype=xp.int64, device=device(acts))
        return requantize(sums, numbers.k, numbers.shift, bias, numbers.output)
