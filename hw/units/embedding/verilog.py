"""What the folder of the embedding table holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.embedding.gateware import Embedding
from sterna.hw.units.embedding.params import EmbeddingParams
from sterna.model.quantized import QuantizedModel

__all__ = ["EMBEDDING_MODULE", "embedding_design"]


EMBEDDING_MODULE = "embedding"


def embedding_design(model: QuantizedModel, params: EmbeddingParams) -> UnitDesign:
    """Design the embedding table of a model."""
    unit = Embedding(params, model.embedding)
    return UnitDesign(
        unit, EMBEDDING_MODULE,
        derived=("words", "depth", "word_bits", "token_bits", "latency", "request_spacing"),
        summary=(f"The embedding table of {params.vocab} tokens, {params.channels} channels "
                 f"each, {params.rows} channels per word, numeric profile "
                 f"{model.profile.name}."),
        sections=_EMBEDDING_SECTION.format(params=params, highest=params.vocab - 1))


_EMBEDDING_SECTION = """\
## What to send

Tokens, 0 to {highest}. Each is answered with the {params.words} words of its vector,
{params.rows} channels a word, the last one filled up with zeros and marked with `last`.

The first word is valid {params.latency} cycles after the cycle that took the token, then there is
one per cycle. The next token is taken after the last word was, {params.request_spacing} cycles
after the one before if no word has to wait.
"""
