"""Recurrences as a graph computes them: by the standard operator ``Scan``.

A loop in Python would be unrolled for one number of tokens. Each function here takes the place of
the one that its docstring names, while a graph is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor
from torch._higher_order_ops.scan import scan

from sterna.model.network.recurrence import Pair, complex_scan, matrix_scan, mlgru_scan

__all__ = ["by_scan", "scanned_complex", "scanned_matrix", "scanned_mlgru"]


@contextmanager
def by_scan() -> Iterator[None]:
    """Inside, the recurrences of mixers are those of this file."""
    with ExitStack() as stack:
        stack.enter_context(mlgru_scan.by(scanned_mlgru))
        stack.enter_context(matrix_scan.by(scanned_matrix))
        stack.enter_context(complex_scan.by(scanned_complex))
        yield


def scanned_mlgru(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """:func:`sterna.model.network.recurrence.mlgru_scan`."""
    def turn(hidden: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gate, added = at
        hidden = gate * hidden + added
        return hidden, hidden.clone()

    states: Tensor = scan(turn, initial, (forget, (1 - forget) * candidate))[1]
    return states


def scanned_matrix(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`sterna.model.network.recurrence.matrix_scan`."""
    def turn(state: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, f, k, v = at
        state = f.unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        return state, (q.unsqueeze(-2) @ state).squeeze(-2)

    last, outputs = scan(turn, initial, (query, forget, key, value))
    return outputs, last


def scanned_complex(multiplier: Pair, added: Pair, initial: Pair) -> Pair:
    """:func:`sterna.model.network.recurrence.complex_scan`."""
    gain_re, gain_im = multiplier

    def turn(state: list[Tensor], at: Pair) -> tuple[list[Tensor], Pair]:
        (re, im), (to_re, to_im) = state, at
        state = [gain_re * re - gain_im * im + to_re, gain_re * im + gain_im * re + to_im]
        return state, (state[0].clone(), state[1].clone())

    states: Pair = scan(turn, list(initial), added)[1]
    return states
