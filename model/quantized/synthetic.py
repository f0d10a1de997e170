"""Untrained quantised models, for tests and for sizing a design before training."""

from __future__ import annotations

import math

import numpy as np

from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import language_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["random_model"]


def random_model(
    config: ModelConfig, profile: NumericProfile, seed: int = 0, *, gain: float = 1.5,
) -> QuantizedModel:
    """Make a quantised model of random trits, biases and embedding.

    ``gain`` is the standard deviation of a projection's output for a unit-RMS input, in units of
    that output: 1.5 exercises the gates, 100 drives every format into saturation. A vocabulary
    beyond the 256 bytes has pairs of bytes.
    """
    rng = np.random.default_rng(seed)
    projections = {}
    for name, (rows, columns) in config.projections().items():
        weight = rng.integers(-1, 2, size=(rows, columns), dtype=np.int8)
        fmt = profile.output_format(name)
        # acc has standard deviation sqrt(2/3 * columns) * rms(q); V cancels rms(q).
        scale = gain * math.sqrt(1.5) / 127 * (1 << fmt.frac)
        k, shift = profile.quantize_scale(scale)
        limit = min(1 << fmt.frac, 1 << (fmt.bits - 1))
        bias = rng.integers(-limit, limit + 1, size=rows, dtype=np.int32)
        projections[name] = Projection(weight, bias, k, shift)
    x = profile.x
    embedding = rng.integers(
        -(1 << x.frac), (1 << x.frac) + 1, size=(config.vocab, config.d), dtype=np.int16)
    return QuantizedModel(
        language_model(config, profile), profile.name, projections, embedding,
        np.array(profile.sigmoid_table(), dtype=np.int32),
        {"source": f"random_model(seed={seed}, gain={gain})"}, _tokenizer(config.vocab))


def _tokenizer(vocab: int) -> Tokenizer:
    """Bytes, followed by pairs of bytes."""
    if vocab <= BYTES.vocab:
        return BYTES
    return BytePairTokenizer([divmod(pair, BYTES.vocab) for pair in range(vocab - BYTES.vocab)])
