"""Geometry of an engine: one array, the matrices that it multiplies, what they take."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.weight_rom import WeightRomParams
from sterna.model.checks import check_whole

__all__ = ["EngineParams"]


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Geometry of a :class:`~sterna.hw.layers.engine.MatrixEngine`.

    Parameters
    ----------
    mac
        The array.
    lanes
        Activations in each word of ``acts``; it divides the columns of the array.
    shapes
        Rows and columns of each matrix.
    rom
        Whether the weights are in a memory; if not, they come through a port.

    Raises
    ------
    ValueError
        If a number is out of its range, or a matrix does not fit the array.

    >>> params = EngineParams(MacParams(8, 32, 100), 8, ((20, 100), (5, 10)))
    >>> params.words, params.first_word(1), params.act_words(0)
    (13, 12, 13)
    """

    mac: MacParams
    lanes: int
    shapes: tuple[tuple[int, int], ...]
    rom: bool = True

    def __post_init__(self) -> None:
        check_whole("lanes", self.lanes, 1, 4096)
        if self.mac.cols % self.lanes:
            raise ValueError(
                f"cols ({self.mac.cols}) must be a multiple of lanes ({self.lanes})")
        if not 1 <= len(self.shapes) <= 4096:
            raise ValueError(f"there must be 1 to 4096 matrices, got {len(self.shapes)}")
        for rows, columns in self.shapes:
            check_whole("rows of a matrix", rows, 1, 1 << 20)
            check_whole("columns of a matrix", columns, 1, self.mac.max_columns)

    # Matrices ----------------------------------------------------------------------

    def groups(self, matrix: int) -> int:
        """Groups of rows of a matrix: words of ``sums``."""
        return self.mac.groups(self.shapes[matrix][0])

    def beats(self, matrix: int) -> int:
        """Beats of a group of a matrix: tiles of activations."""
        return self.mac.beats_per_group(self.shapes[matrix][1])

    def act_words(self, matrix: int) -> int:
        """Words of ``acts`` that bring the vector for a matrix."""
        return -(-self.shapes[matrix][1] // self.lanes)

    def matrix_words(self, matrix: int) -> int:
        """Weight words of a matrix: one for each beat."""
        return self.groups(matrix) * self.beats(matrix)

    def first_word(self, matrix: int) -> int:
        """Where the weight words of a matrix begin in the memory."""
        return sum(self.matrix_words(index) for index in range(matrix))

    @property
    def words(self) -> int:
        """Weight words of all matrices."""
        return self.first_word(len(self.shapes))

    @property
    def tiles(self) -> int:
        """Tiles of the longest vector."""
        return max(map(self.beats, range(len(self.shapes))))

    @property
    def chunks_per_tile(self) -> int:
        """Words of ``acts`` in a tile."""
        return self.mac.cols // self.lanes

    @property
    def index_bits(self) -> int:
        """Bits of the index of a matrix; none if there is one only."""
        return (len(self.shapes) - 1).bit_length()

    @property
    def weights(self) -> WeightRomParams:
        """The memory of the weights."""
        return WeightRomParams(self.words, self.mac.word_bits)

    # Cycles ------------------------------------------------------------------------

    def beat_cycles(self, matrix: int) -> int:
        """Cycles in which the beats of a matrix are taken, if nothing makes them wait.

        In a style with tables a beat of fresh activations waits until these are filled: a
        vector of one tile once, a longer one in every beat.
        """
        beats = self.beats(matrix)
        fresh = 1 if beats == 1 else self.matrix_words(matrix)
        return self.matrix_words(matrix) + fresh * self.mac.fill_steps

    # Payloads ----------------------------------------------------------------------

    @property
    def matrix_field(self) -> dict[str, Shape]:
        """The field with the index of a matrix, if there are several."""
        return {"matrix": unsigned(self.index_bits)} if self.index_bits else {}

    @property
    def act_layout(self) -> StructLayout:
        """Payload of ``acts``."""
        return StructLayout({
            "q": ArrayLayout(signed(self.mac.act_bits), self.lanes), **self.matrix_field})

    @property
    def sum_layout(self) -> StructLayout:
        """Payload of ``sums``."""
        return StructLayout({
            "sum": ArrayLayout(signed(self.mac.sum_bits), self.mac.rows), "last": 1,
            **self.matrix_field})
