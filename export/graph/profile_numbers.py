"""The numbers of a profile by name: what a layer's node says of its formats.

The file holds them as one list, the attribute ``profile``; the compiled operators read each by its
name (:func:`sterna.export.native.ops.with_ops`). The order is that of this module alone.
"""

from __future__ import annotations

from sterna.model.profile import NumericProfile

__all__ = ["PROFILE_ATTRIBUTE", "PROFILE_NAMES", "profile_numbers"]

PROFILE_ATTRIBUTE = "profile"
"""The attribute of a node in a file: the values of :func:`profile_numbers`."""
_FORMATS = ("x", "z", "h", "o", "p", "logit")
_WIDTHS = ("reciprocal_bits", "root_frac", "scale_frac", "mantissa_bits", "scale_bits",
           "sigmoid_frac", "sigmoid_segments")
PROFILE_NAMES = (*(f"{name}_{part}" for name in _FORMATS for part in ("bits", "frac")), *_WIDTHS)
"""Names of the numbers, in the order of the list."""


def profile_numbers(profile: NumericProfile) -> dict[str, int]:
    """``x_bits``, ``x_frac`` and so on of every format, then the widths, in their order."""
    formats = [getattr(profile, name) for name in _FORMATS]
    numbers = [number for each in formats for number in (each.bits, each.frac)]
    return dict(zip(
        PROFILE_NAMES, [*numbers, *(getattr(profile, name) for name in _WIDTHS)], strict=True))
