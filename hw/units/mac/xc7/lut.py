"""The two-output look-up table of the Xilinx 7 series."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Const, Instance, Value

__all__ = ["lut6_2", "lut_init"]


def lut_init(low: Callable[..., bool | int], high: Callable[..., bool | int]) -> int:
    """Return the 64-bit contents of a LUT6_2 whose halves compute two functions.

    Parameters
    ----------
    low, high
        Functions of five bits, ``I0`` to ``I4``. O5 is always the lower half; O6 is the
        upper half while ``I5`` is 1, else the lower.

    >>> hex(lut_init(lambda a, b, c, d, e: a, lambda a, b, c, d, e: a & b))
    '0x88888888aaaaaaaa'
    """
    contents = 0
    for half, function in enumerate((low, high)):
        for index in range(32):
            bits = [(index >> place) & 1 for place in range(5)]
            contents |= (int(function(*bits)) & 1) << (32 * half + index)
    return contents


def lut6_2(init: int, inputs: list[Value], o5: Value, o6: Value) -> Instance:
    """Return a LUT6_2 with ``inputs`` I0 to I5 and both outputs."""
    if len(inputs) != 6:
        raise ValueError(f"a LUT6_2 has 6 inputs, got {len(inputs)}")
    return Instance(
        "LUT6_2", p_INIT=Const(init, 64), o_O5=o5, o_O6=o6,
        **{f"i_I{place}": value for place, value in enumerate(inputs)})
