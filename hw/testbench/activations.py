"""Real activations: the tensors of a text, of both oracles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sterna.model.quantized.compare import Comparison

__all__ = ["Activations"]


@dataclass(frozen=True, slots=True)
class Activations:
    """Tensors by tap name, each ``[tokens, channels]``, of both oracles.

    ``text`` is what they were computed on; ``agreement`` compares the two with each other.
    """

    text: np.ndarray
    reference: dict[str, np.ndarray]
    onnx: dict[str, np.ndarray]
    agreement: Comparison

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return len(self.text)
