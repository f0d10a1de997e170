"""The chosen sizes of a core or a unit of layers, with their defaults and help texts.

:mod:`sterna.hw.core.params.geometry` derives the rest. Nothing here needs Amaranth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sterna.hw.core.params.limits import Limits
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["ChosenSizes"]


def _size(default: Any, text: str = "", *, layout: bool) -> Any:
    """A size; where only numbers from 1 on are valid, 0 stands for a usual one.

    ``text`` is the help of its option, empty if the command line has none; ``layout`` says whether
    the memory image depends on it.
    """
    return field(default=default, metadata={"help": text, "layout": layout})


@dataclass(frozen=True, slots=True)
class ChosenSizes:
    """Sizes of norm, array, post-processor and cells. A size of 0 is chosen automatically."""

    limits: Limits
    rows: int = _size(8, "Dot products computed in parallel.", layout=True)
    cols: int = _size(64, "Matrix columns per beat.", layout=True)
    #: Parts of the columns with separate memories; 0 for parts of 16 columns or more.
    clusters: int = _size(
        0, "Parts of the core's columns with memories of their own; 0 chooses.", layout=False)
    sequences: int = _size(
        1, "Sequences that share each weight word, a power of two.", layout=False)
    #: Parts of the sequences that take turns, one being normalised while the other is multiplied;
    #: 0 for 2, or 1 if there is one sequence or a port.
    phases: int = _size(0, layout=False)
    # Lanes after the sums: 0 gives fewer in a small array, and more in a core with several
    # sequences if the array produces more sums.
    #: Results made per cycle; usually 4.
    post_lanes: int = _size(
        0, "Results that the core makes per cycle; 0 chooses.", layout=True)
    #: Channels of MLGRU and GLU per cycle; usually 2.
    cell_lanes: int = _size(
        0, "Channels of MLGRU and GLU that the core computes per cycle; 0 chooses.", layout=True)
    #: Activations made per cycle; usually 8.
    quant_lanes: int = _size(
        0, "Elements that core or network quantises per cycle; 0 chooses.", layout=True)
    #: Bits of a root per cycle; 0 for 3 if a single sequence waits for it, otherwise 1.
    root_digit_bits: int = _size(0, layout=False)
    #: For a small device, with blocks of 4 kbit and no LUT RAM: a norm that divides a bit per
    #: cycle, a table of silu where the formats allow one, short queues, and no drawn tokens.
    compact: bool = _size(
        False, "Build core or network for a small device: a bit of a quotient per cycle, and "
        "always the most likely token.", layout=False)
    style: ArrayStyle = _size(  # noqa: RUF009  (gives a field)
        ArrayStyle.GENERIC, "How the array is built.", layout=False)
    #: Word width of the port to the memory with the image; 0 for ROMs.
    port_bits: int = _size(
        0, "Bits of a port through which core or network reads its model from a memory; 0 for "
        "ROMs.", layout=True)
    #: Weight words prefetched through a port.
    ring: int = _size(512, layout=False)
    #: Cycles without an answer from the memory after which the core stops.
    patience: int = _size(1 << 20, layout=False)
    #: Whether a trace port shows every intermediate vector.
    trace: bool = _size(False, "Add a port for intermediate values.", layout=False)

    @staticmethod
    def options() -> dict[str, tuple[Any, str]]:
        """Default and help of the sizes that are command-line options, by name."""
        return {each.name: (each.default, each.metadata["help"])
                for each in fields(ChosenSizes) if each.metadata.get("help")}

    @staticmethod
    def defaults() -> dict[str, Any]:
        """The defaults of the same sizes."""
        return {name: default for name, (default, _) in ChosenSizes.options().items()}

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that are command-line options, by name."""
        return {name: getattr(self, name) for name in self.options()}

    @property
    def layout_sizes(self) -> tuple[int, ...]:
        """The sizes that the memory image depends on."""
        return tuple(getattr(self, each.name) for each in fields(ChosenSizes)
                     if each.metadata.get("layout"))
