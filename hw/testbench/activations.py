"""Real activations: the tensors of a text, of both oracles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

__all__ = ["Activations", "reference_activations"]


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


def reference_activations(
    model: QuantizedModel, tokens: np.ndarray, names: list[str],
) -> Activations:
    """The tensors called ``names`` of the integer reference alone, which stands for both oracles.

    Parameters
    ----------
    model
        The quantised model.
    tokens
        Tokens ``[length]``, run from a fresh state.
    names
        Tap names; without any nothing is run.
    """
    taps = TapRecorder(names)
    if names:
        IntegerModel(model).run(tokens[None, :], tap=taps)
    found = {name: taps[name][:, 0] for name in names}
    return Activations(tokens, found, found, Comparison())
