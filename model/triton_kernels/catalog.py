"""Every kernel, for whoever compiles or lists all of them."""

from __future__ import annotations

from sterna.model.triton_kernels import absmax, products, recurrence, ternary

__all__ = ["KERNELS"]

KERNELS = (*recurrence.KERNELS, *absmax.KERNELS, *ternary.KERNELS, *products.KERNELS)
"""All that can run."""
