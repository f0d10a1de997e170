"""Pipeline registers that advance together."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value, ValueLike
from amaranth.lib.wiring import PureInterface

__all__ = ["Pipeline", "advance_of"]


def advance_of(results: PureInterface) -> Value:
    """Whether a pipeline that ends in a stream may advance: it stops while a result waits."""
    return ~results.valid | results.ready


class Pipeline:
    """Builds the data registers of a pipeline that advances as a whole.

    Every register loads when ``advance`` is high and holds otherwise. They carry only data and
    have no reset: a separate flag, with a reset, marks them valid.
    """

    def __init__(self, m: Module, advance: Value) -> None:
        self._m = m
        self._advance = advance

    def register(self, value: ValueLike, name: str) -> Signal:
        """Return ``value`` one step later, in a register of exactly its shape."""
        value = Value.cast(value)
        register = Signal(value.shape(), name=name, reset_less=True)
        with self._m.If(self._advance):
            self._m.d.sync += register.eq(value)
        return register

    def delay(self, value: ValueLike, steps: int, name: str) -> Value:
        """Return ``value`` ``steps`` steps later (unchanged if ``steps`` is 0)."""
        value = Value.cast(value)
        for step in range(1, steps + 1):
            value = self.register(value, f"{name}_{step}")
        return value

    def flags(self, value: ValueLike, steps: int, name: str) -> list[Value]:
        """Return a flag now and after 1 to ``steps`` steps; its registers reset to 0."""
        flags = [Value.cast(value)]
        for step in range(1, steps + 1):
            flag = Signal(name=f"{name}_{step}")
            with self._m.If(self._advance):
                self._m.d.sync += flag.eq(flags[-1])
            flags.append(flag)
        return flags
