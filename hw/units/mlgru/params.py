"""Geometry and formats of the MLGRU unit."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.parts.sequence import Interleaved
from sterna.hw.parts.sigmoid_table import SigmoidParams
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["MlgruParams"]


@dataclass(frozen=True, slots=True)
class MlgruParams(Interleaved):
    """Geometry and formats of an MLGRU unit.

    Parameters
    ----------
    profile
        Formats of every number.
    layers, channels
        Shape of the state of one sequence.
    lanes
        Channels taken per beat.
    sequences
        Sequences whose states are kept.
    trace
        Whether gates and candidate come out beside the results.
    spaced
        Whether the unit keeps beats of the same word of a tiny state apart. A core, whose
        tokens are far longer than the pipeline, does not need it.
    stalls
        Whether results may have to wait to be taken.
    routing_registers
        Whether what a multiplier takes from another goes through one more register.

    Raises
    ------
    ValueError
        If a number is out of its range or ``lanes`` does not divide ``channels``.

    >>> from sterna.model.profile import C12
    >>> params = MlgruParams(C12, layers=4, channels=128, lanes=8)
    >>> params.words, params.latency, params.beat_spacing
    (64, 9, 1)
    """

    profile: NumericProfile
    layers: int
    channels: int
    lanes: int = 1
    sequences: int = 1
    trace: bool = False
    spaced: bool = True
    stalls: bool = True
    routing_registers: bool = False

    def __post_init__(self) -> None:
        check_whole("layers", self.layers, 1, 1024)
        check_whole("channels", self.channels, 1, 1 << 17)
        check_whole("sequences", self.sequences, 1, 16)
        check_whole("lanes", self.lanes, 1, 65536)
        if self.channels % self.lanes:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of lanes ({self.lanes})")

    @property
    def beats_per_layer(self) -> int:
        """Beats that bring every channel of a layer."""
        return self.channels // self.lanes

    @property
    def words(self) -> int:
        """Beats of a token; each has a word of the state memory."""
        return self.layers * self.beats_per_layer

    @property
    def memory_words(self) -> int:
        """Depth of the state memory: a memory without an address is no valid Verilog."""
        return max(self.words * self.sequences, 2)

    @property
    def sigmoid(self) -> SigmoidParams:
        """The table of the sigmoids."""
        return SigmoidParams(self.profile)

    @property
    def candidate_step(self) -> int:
        """Step at which c, and with it the old state, is needed: product and saturation."""
        return self.sigmoid.latency + self.routing_registers + 2

    @property
    def read_step(self) -> int:
        """Step at which the old state is read.

        Then it goes through the output register of the memory and a register that holds 0
        in the first token of a sequence.
        """
        return self.candidate_step - 3

    @property
    def state_step(self) -> int:
        """Step at which the new state is known: difference, product, sum."""
        return self.candidate_step + 3

    @property
    def latency(self) -> int:
        """Steps from a beat of ``preacts`` to its beat of ``states``: product, saturation."""
        return self.state_step + self.routing_registers + 2

    @property
    def beat_spacing(self) -> int:
        """Steps from one beat taken to the next.

        The memory is read at the end of ``read_step`` and written at the end of
        ``state_step``, so beats that use the same word must be further apart than the
        difference. They are ``words`` beats apart: only a tiny state needs a pause.
        """
        if not self.spaced:
            return 1
        return -(-(self.state_step - self.read_step + 1) // self.words)

    @property
    def preact_layout(self) -> StructLayout:
        """Payload of ``preacts``."""
        lanes = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout(
            {"f": lanes, "c": lanes, "g": lanes, "start": 1, **self.sequence_field})

    @property
    def state_layout(self) -> StructLayout:
        """Payload of ``states``."""
        sigmoids = ArrayLayout(unsigned(self.profile.sigmoid_frac), self.lanes)
        candidates = ArrayLayout(signed(self.profile.h.bits), self.lanes)
        return StructLayout({
            "o": ArrayLayout(signed(self.profile.o.bits), self.lanes),
            "h": ArrayLayout(signed(self.profile.h.bits), self.lanes),
            "last": 1,
            **self.sequence_field,
            **({"f": sigmoids, "g": sigmoids, "c": candidates} if self.trace else {}),
        })
