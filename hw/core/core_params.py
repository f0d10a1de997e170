"""What a core is made for: limits of its models, and what follows from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.hw.core.geometry import POST_LANES, Geometry, StageKind, StageLimits
from sterna.hw.parts.bits import signed_bits
from sterna.model.checks import check_whole
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["IMAGE_HEADER_BITS", "STAGE_PARTS", "CoreParams", "Limits"]

IMAGE_HEADER_BITS = 512
"""Bits of what an image begins with, see :mod:`sterna.hw.core.linear_image`."""


STAGE_PARTS = (
    (StageKind.MLGRU, ("mlgru.f", "mlgru.c", "mlgru.g")),
    (StageKind.RESIDUAL, ("mlgru.out",)),
    (StageKind.GLU, ("glu.gate", "glu.up")),
    (StageKind.RESIDUAL, ("glu.down",)),
)
"""The stages of a layer, and the matrices of each."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest model that a core runs, and the formats of all of them."""

    profile: NumericProfile
    width: int  #: channels of the residual stream and of the state
    inner: int  #: channels of a GLU
    layers: int
    vocab: int
    shifts: tuple[int, int]  #: smallest and largest right shift of a projection
    #: signed bits of an element of the embedding, those of the residual stream or fewer
    embedding_bits: int

    def __post_init__(self) -> None:
        check_whole("width", self.width, 1, 1 << 16)
        check_whole("inner", self.inner, 1, 1 << 16)
        check_whole("layers", self.layers, 1, 1024)
        check_whole("vocab", self.vocab, 2, 1 << 20)
        low, high = self.shifts
        check_whole("smallest shift", low, 0, high)
        check_whole("largest shift", high, 0, NumericProfile.max_shift)
        check_whole("embedding_bits", self.embedding_bits, 1, self.profile.x.bits)

    @classmethod
    def of(cls, *models: QuantizedModel) -> Limits:
        """The narrowest limits that take all of these models.

        Raises ValueError if a model is of an architecture that the core lacks, or if they differ
        in their formats.
        """
        profiles = {model.profile for model in models}
        if len(profiles) != 1:
            raise ValueError(
                f"a core has one set of formats, got models of "
                f"{', '.join(sorted(profile.name for profile in profiles)) or 'no profile'}")
        configs = [model.config for model in models]
        shifts = [each.shift for model in models for each in model.projections.values()]
        return cls(
            profiles.pop(), max(c.d for c in configs), max(c.dff for c in configs),
            max(c.layers for c in configs), max(c.vocab for c in configs),
            (min(shifts), max(shifts)), max(signed_bits(model.embedding) for model in models))

    def check(self, model: QuantizedModel) -> None:
        """Raise ValueError if a model is beyond these limits: it says which, and by how much."""
        if model.profile != self.profile:
            raise ValueError(f"the core computes in the formats of {self.profile.name}, "
                             f"the model has those of {model.profile.name}")
        config = model.config
        for name, value, limit in (
            ("channels", config.d, self.width), ("GLU channels", config.dff, self.inner),
            ("layers", config.layers, self.layers), ("tokens", config.vocab, self.vocab),
            ("bits in its embedding", signed_bits(model.embedding), self.embedding_bits),
        ):
            if value > limit:
                raise ValueError(f"the model has {value:,} {name}, the core takes {limit:,}")
        low, high = self.shifts
        for name, projection in model.projections.items():
            if not low <= projection.shift <= high:
                raise ValueError(f"{name} has a shift of {projection.shift}, "
                                 f"the core takes {low} to {high}")

    @property
    def program(self) -> list[StageLimits]:
        """The stages of a token: four a layer, and the head."""
        shapes = {"mlgru.f": (self.width, self.width), "mlgru.out": (self.width, self.width),
                  "glu.gate": (self.inner, self.width), "glu.down": (self.width, self.inner)}
        return [*(StageLimits(kind, len(parts), *shapes[parts[0]], self.layers)
                  for kind, parts in STAGE_PARTS),
                StageLimits(StageKind.HEAD, 1, self.vocab, self.width)]

    normalizes = requantizes = True


@dataclass(frozen=True, slots=True)
class CoreParams(Geometry):
    """Geometry of a :class:`~sterna.hw.core.core.Core`.

    >>> from sterna.model.profile import S16
    >>> params = CoreParams(Limits(S16, 128, 384, 4, 256, (12, 20), 16), sequences=16)
    >>> params.phases, params.batch, params.tiles, params.array_latency
    (2, 8, 6, 11)
    """

    limits: Limits

    @classmethod
    def of_folder(cls, folder: Path) -> CoreParams:
        """The core of an emitted folder, or of a board's sources: ``params.json`` has it.

        Raises ValueError if the folder is of something else.
        """
        path = folder / "params.json"
        if not path.is_file():
            raise ValueError(f"{folder} is no folder of a core: it has no params.json")
        data = json.loads(path.read_text(encoding="utf-8")).get("params", {})
        if "limits" not in data:
            raise ValueError(f"{path} is not of a core")
        profile: dict[str, Any] = {
            name: FixedPoint(**value) if isinstance(value, dict) else value
            for name, value in data["limits"]["profile"].items()}
        limits = {**data["limits"], "profile": NumericProfile(**profile),
                  "shifts": tuple(data["limits"]["shifts"])}
        return cls(**{**data, "limits": Limits(**limits)})

    @property
    def _lane_factor(self) -> int:
        # A single sequence waits for the norm most of the time. Several keep the array busy, which
        # then gives the most sums in a cycle where vectors are shortest.
        if self.sequences == 1 or self.compact:
            return 1
        sums = self.rows // min(-(-each.columns // self.cols) for each in self.limits.program)
        if self.port_bits:      # each sequence uses a weight word once, when all of it has come
            parts = -(-8 * self.rows * self.cols // (5 * self.port_bits))
            sums = sums * self.sequences // max(self.sequences, parts)
        return 1 << max(0, (sums // POST_LANES).bit_length() - 1)

    @property
    def token_bits(self) -> int:
        """Bits of a token."""
        return (self.limits.vocab - 1).bit_length()

    @property
    def vector_words(self) -> int:
        """Words of ``post_lanes`` channels of the residual stream."""
        return self.groups(self.limits.width) * self.row_beats

    def logit_beats(self, vocab: int) -> int:
        """Words of the port of logits after a token of a model: whole groups of rows."""
        return self.groups(vocab, chunks=False) * self.row_beats

    @property
    def logit_words(self) -> int:
        """Words of ``post_lanes`` logits of a prediction, for the largest vocabulary."""
        return -(-self.limits.vocab // self.post_lanes)

    # Words of the port -------------------------------------------------------------

    @property
    def image_header_parts(self) -> int:
        """Words of the port for what an image begins with."""
        return self._parts(IMAGE_HEADER_BITS)

    @property
    def element_bits(self) -> int:
        """Bits of an element of the embedding in the image: 8, or 16, or 32."""
        return 8 << (-(-self.limits.embedding_bits // 8) - 1).bit_length()

    def row_parts(self, width: int) -> int:
        """Words of the port for the embedding of a token, of so many channels."""
        return self._parts(self.groups(width) * self.rows * self.element_bits)

    @property
    def address_bits(self) -> int:
        """Bits of the address of a word of the largest image, and of a number of words."""
        limits = self.limits
        words = (self.image_header_parts + self.stages * self.stage_parts
                 + self.most_biases * self.row_beats * self.header_parts
                 + self.most_weights * self.weight_parts
                 + limits.vocab * self.row_parts(limits.width) + 2)
        return words.bit_length()

