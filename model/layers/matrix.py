"""A ternary matrix alone: int8 activations in, sums or fixed-point results out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from sterna.model.layers.ternary import Ternary, ternary_matrix
from sterna.model.profile import FixedPoint, NumericProfile, mantissa_and_shift
from sterna.model.quantized.fixed import bias_format, check_bias, to_fixed
from sterna.model.quantized.integer import requantize, ternary_matmul

__all__ = ["ACT_BITS", "MANTISSA_BITS", "MatrixLayer", "Requantization"]

ACT_BITS = NumericProfile.act_bits
"""Bits of a signed activation."""

MANTISSA_BITS = 16
"""Bits of the mantissa of a constant scale."""

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Requantization:
    """From a sum to a fixed-point result: ``sat(rs(sum * k, shift) + bias)``.

    ``k`` has :data:`MANTISSA_BITS` bits, the highest of them set; ``shift`` is from 1 to 40;
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
        What is done with the sums; None leaves them as they are.

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
            The matrix, or its codes ``[rows, columns]`` alone.
        output
            Format of the results, 2 to 23 bits: ``sum * scale + bias`` as a fixed-point number,
            rounded half up and saturated. None for the sums themselves; scale and bias must then
            not be given.

        Raises
        ------
        ValueError
            If the weights are not ternary, the scale cannot be represented, a bias does not fit
            a bit more than the output, or there is a scale or bias and no output format.
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
            If the activations have another shape or leave their range.
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
        weight_t = xp.asarray(np.ascontiguousarray(self.weight.T), dtype=xp.float64,
                              device=device(acts))
        sums = ternary_matmul(xp.astype(acts, xp.int64), weight_t)
        if self.requantization is None:
            return sums
        numbers = self.requantization
        bias = xp.asarray(numbers.bias, dtype=xp.int64, device=device(acts))
        return requantize(sums, numbers.k, numbers.shift, bias, numbers.output)

