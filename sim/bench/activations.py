"""Real activations: every tensor a model computes on a text, twice.

Once by the integer reference and once by onnxruntime running the exact ONNX graph. They
are compared before anything is simulated, so a difference found later lies in the
gateware.
"""

from __future__ import annotations

import numpy as np

from sterna.export.runtime.runtime import step_with_taps
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison, compare
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

__all__ = ["record_activations"]


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
