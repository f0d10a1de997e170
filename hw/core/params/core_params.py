"""Sizes of a core, and quantities derived from them and from the limits of its models."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.core.params.geometry import POST_LANES, Geometry
from sterna.model.quantized.plan import StageKind

__all__ = ["CoreParams"]


@dataclass(frozen=True, slots=True)
class CoreParams(Geometry):
    """Geometry of a :class:`~sterna.hw.core.compute.core.Core`.

    >>> from sterna.hw.core.params.limits import Limits
    >>> from sterna.model.quantized import load_model
    >>> params = CoreParams(Limits.of(load_model("tiny")), sequences=16)
    >>> params.phases, params.batch, params.tiles, params.array_latency
    (2, 8, 6, 11)
    """

    what = "core"

    @property
    def _lane_factor(self) -> int:
        # A single sequence mostly waits for the norm. Several keep the array busy, which then
        # produces the most sums per cycle for the shortest vectors.
        if self.sequences == 1 or self.compact:
            return 1
        sums = self.rows // min(-(-each.columns // self.cols) for each in self.limits.program)
        if self.port_bits:      # each sequence uses a weight word once, when all of it is read
            parts = -(-8 * self.rows * self.cols // (5 * self.port_bits))
            sums = sums * self.sequences // max(self.sequences, parts)
        return 1 << max(0, (sums // POST_LANES).bit_length() - 1)

    @property
    def vocab(self) -> int:
        """Tokens of the largest vocabulary."""
        return self._most_rows(StageKind.HEAD)

    @property
    def token_bits(self) -> int:
        """Bits of a token."""
        return (self.vocab - 1).bit_length()

    @property
    def width(self) -> int:
        """Channels of the widest residual stream."""
        return self._most_rows(StageKind.RESIDUAL)

    def _most_rows(self, kind: StageKind) -> int:
        return max(each.rows for each in self.limits.program if each.kind is kind)

    def logit_beats(self, vocab: int) -> int:
        """Words at the logits port per token of a model: whole groups of rows."""
        return self.groups(vocab, chunks=False) * self.row_beats

    @property
    def logit_words(self) -> int:
        """Words of ``post_lanes`` logits of a prediction, for the largest vocabulary."""
        return -(-self.vocab // self.post_lanes)

    # Words of the port -------------------------------------------------------------

    @property
    def element_bits(self) -> int:
        """Bits of an element of the embedding in the image: 8, or 16, or 32."""
        return 8 << (-(-self.limits.embedding_bits // 8) - 1).bit_length()

    def row_parts(self, width: int) -> int:
        """Words of the port for the embedding of a token, with ``width`` channels."""
        return self._parts(self.groups(width) * self.rows * self.element_bits)

    @property
    def table_parts(self) -> int:
        return self.vocab * self.row_parts(self.width)

