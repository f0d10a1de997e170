"""Writing text with the exact ONNX graph, one token at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sterna.export.runtime import OnnxStep
from sterna.model.sampling import Sampler
from sterna.model.tokenizer import encode

__all__ = ["generate"]


def generate(
    graph: OnnxStep, prompt: str, *, tokens: int, temperature: float = 0.7, seed: int = 1,
) -> Iterator[int]:
    """Return an iterator over ``tokens`` tokens that continue ``prompt``.

    The prompt is run, and bad arguments are refused, before this returns.

    The tokens are drawn by the integer sampler (:class:`sterna.model.sampling.Sampler`),
    so every implementation of the model writes the same text for the same seed.

    Parameters
    ----------
    graph
        A step graph.
    prompt
        Text to continue; an empty one stands for a line end.
    tokens
        How many tokens to write.
    temperature
        0 always takes the most likely token.
    seed
        Seed of the sampler.

    Raises
    ------
    ValueError
        If an argument is out of range, or a byte of the prompt is outside the vocabulary.
    """
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    sampler = Sampler(
        temperature=temperature, seed=seed, logit_frac=graph.info.profile.logit.frac)
    state = graph.start()
    for token in encode(prompt or "\n"):
        logits, state = graph.step(np.array([token]), state)

    def write(logits: np.ndarray, state: np.ndarray) -> Iterator[int]:
        for written in range(tokens):
            choice = sampler(logits[0])
            yield choice
            if written + 1 < tokens:
                logits, state = graph.step(np.array([choice]), state)

    return write(logits, state)
