"""The unit ``embedding`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.parts.bits import signed_bits
from sterna.hw.units.embedding.params import EmbeddingParams
from sterna.hw.units.embedding.stimulus import EMBEDDING_STIMULUS
from sterna.hw.units.embedding.verilog import EMBEDDING_MODULE, embedding_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["EMBEDDING", "embedding_params"]


def embedding_params(
    model: QuantizedModel, *, rows: int = 8, sequences: int = 1,
) -> EmbeddingParams:
    """Return the geometry of the embedding table; ValueError if a size is out of range."""
    vocab, channels = model.embedding.shape
    return EmbeddingParams(
        model.profile, rows, vocab, channels, signed_bits(model.embedding), sequences)


EMBEDDING = UnitSpec(
    "embedding", "the embedding table",
    EMBEDDING_MODULE, embedding_params, embedding_design, EMBEDDING_STIMULUS, tokens=64)
