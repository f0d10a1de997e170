"""Real activations: every tensor a model computes on a text, twice.

Once by the integer reference and once by onnxruntime running the exact ONNX graph. They
are compared before anything is simulated, so a difference found later lies in the
gateware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sterna.export.runtime import step_with_taps
from sterna.model.compare import Comparison, compare
from sterna.model.integer import IntegerModel
from sterna.model.quantized import QuantizedModel
from sterna.model.taps import TapRecorder

__all__ = ["Activations", "record_activations"]


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


def record_activations(
    model: QuantizedModel, tokens: np.ndarray, names: list[str],
) -> Activations:
    """Run ``tokens [length]`` from a fresh state and keep the tensors called ``names``.

    Without names nothing is run.
    """
    if not names:
        return Activations(tokens, {}, {}, Comparison())
    of_reference, of_onnx = TapRecorder(names), TapRecorder(names)
    IntegerModel(model).run(tokens[None, :], tap=of_reference)
    step_with_taps(model, names).run(tokens[None, :], tap=of_onnx)
    reference = {name: of_reference[name][:, 0] for name in names}
    onnx = {name: of_onnx[name][:, 0] for name in names}
    agreement = sum(
        (compare(name, reference[name], onnx[name]) for name in names), Comparison())
    return Activations(tokens, reference, onnx, agreement)
