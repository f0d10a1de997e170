"""The ports of what divides a constant: from tables, or digit by digit."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from amaranth.hdl import unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ConstantQuotient", "QuotientParams"]


class QuotientParams(Protocol):
    """Widths that the ports need."""

    @property
    def divisor_bits(self) -> int:
        """Unsigned bits of a divisor."""

    @property
    def quotient_bits(self) -> int:
        """Unsigned bits of the largest quotient."""


ParamsT = TypeVar("ParamsT", bound=QuotientParams)


class ConstantQuotient(wiring.Component, Generic[ParamsT]):
    """A constant divided by a number, some cycles after the number came.

    Members
    -------
    start : ``In(1)``
        Take the divisor.
    divisor : ``In(unsigned(params.divisor_bits))``
        Read with ``start``.
    quotient : ``Out(unsigned(params.quotient_bits))``
        The result.
    done : ``Out(1)``
        High in the first cycle of a result, ``params.latency`` cycles after ``start``.
    """

    def __init__(self, params: ParamsT) -> None:
        self.params = params
        super().__init__({
            "start": In(1),
            "divisor": In(unsigned(params.divisor_bits)),
            "quotient": Out(unsigned(params.quotient_bits)),
            "done": Out(1),
        })
