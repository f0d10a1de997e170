"""Compare an exported graph with the integer reference, bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sterna.export.forms.selftest import signal_to_noise
from sterna.export.graph.file import OnnxFile, Source
from sterna.export.runtime.runtime import OnnxModel
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison, Difference, compare
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

__all__ = ["ExactReport", "check_close", "check_exact"]


@dataclass(frozen=True, slots=True)
class ExactReport:
    """Result of :func:`check_exact`.

    Parameters
    ----------
    tokens
        Number of tokens run, over all sequences.
    logits, state
        Values compared and mismatches: the logits of every token, the state after every call.
    first
        The first tensor inside the model that differs, in order of computation.
    same_model
        Whether the graph states that it was made from the compared model.
    """

    tokens: int
    logits: Comparison
    state: Comparison
    first: Difference | None
    same_model: bool

    @property
    def total(self) -> Comparison:
        """Logits and state together."""
        both = self.logits + self.state
        return Comparison(both.values, both.mismatches, self.first)

    @property
    def passed(self) -> bool:
        """Whether there is no difference."""
        return self.total.passed

    def __str__(self) -> str:
        text = f"{self.tokens} tokens: {self.total}"
        return text if self.passed or self.same_model else (
            f"{text} (the graph was exported from another quantised model)")


def check_exact(model: QuantizedModel, source: Source, tokens: np.ndarray) -> ExactReport:
    """Run a graph under onnxruntime and compare it with the integer reference.

    The graph carries its own state from call to call; each call has one token more than the
    previous one, unless the graph takes only one. After the first mismatch that call is repeated
    with every inner tensor as an output, to name the first wrong one, and later calls start from
    the reference's state, so that one error does not cause all later mismatches.

    Parameters
    ----------
    model
        The quantised model that defines the correct result.
    source
        A graph, or the path of one.
    tokens
        Whole numbers ``[batch, length]``.

    Raises
    ------
    ValueError
        If tokens has the wrong shape or values, the graph cannot be loaded, is of a float
        form, or has another shape than the model.
    """
    file = _graph_of(model, source)
    info = file.info
    if not info.exact:
        raise ValueError(
            f"check_exact compares integers, and the graph has the float form {info.form}: take "
            f"check_close")
    tokens = model.entry.array(tokens, ["batch", "length"])
    graph, reference = OnnxModel(file), IntegerModel(model)
    right, mine = reference.start(len(tokens)), graph.start(len(tokens))
    logits = state = Comparison()
    first, t, length = None, 0, 1
    while t < tokens.shape[1]:
        part, before = tokens[:, t:t + length], right
        expected, right = reference.run(part, before)
        got, mine = graph.run(part, mine if first is None else before)
        logits += compare(
            model.entry.result, expected.swapaxes(0, 1), got.swapaxes(0, 1), first_token=t)
        for layer, record in enumerate(model.states):
            state += compare(record.name, right[None, layer], mine[None, layer],
                             first_token=t + part.shape[1] - 1)
        if first is None and logits.mismatches + state.mismatches:
            first = _locate(reference, OnnxModel(file, taps=None), part, before, t)
            first = first or (logits + state).first
        t += part.shape[1]
        length += not info.one_token
    return ExactReport(math.prod(tokens.shape[:2]), logits, state, first,
                       info.model_sha256 == model.sha256)


def check_close(model: QuantizedModel, source: Source, tokens: np.ndarray) -> float:
    """Signal-to-noise ratio of the logits of a float graph against the reference, in decibels.

    ``10 log10(sum r^2 / sum (g - r)^2)`` over all logits r of the reference and g of the
    graph, for tokens ``[batch, length]``.

    Raises
    ------
    ValueError
        As :func:`check_exact`, but the form must be a float one.
    """
    file = _graph_of(model, source)
    info = file.info
    if info.exact:
        raise ValueError(
            f"check_close compares real numbers, and the graph has the exact form {info.form}: "
            f"take check_exact")
    tokens = model.entry.array(tokens, ["batch", "length"])
    right, _ = IntegerModel(model).run(tokens)
    got, _ = OnnxModel(file).run(tokens)
    return signal_to_noise(right * 2.0 ** -model.logit.frac, got)


def _graph_of(model: QuantizedModel, source: Source) -> OnnxFile:
    """The graph, if it has the shape of the model."""
    file = OnnxFile.read(source)
    info = file.info
    shape = len(model.states), model.states[0].width
    if (info.entry, info.shape) != (model.entry, shape):
        raise ValueError(
            f"the graph has {info.entry} and states {list(info.shape)}, the model {model.entry} "
            f"and {list(shape)}")
    return file


def _locate(
    reference: IntegerModel, graph: OnnxModel, tokens: np.ndarray,
    state: np.ndarray, first_token: int,
) -> Difference | None:
    """The first tensor that differs: by token, then in order of computation."""
    expected, got = TapRecorder(), TapRecorder()
    reference.run(tokens, state, expected)
    graph.run(tokens, state, got)
    found = [
        compare(name, expected[name], got[name], first_token=first_token).first
        for name in got.names()]
    return min((each for each in found if each), key=lambda each: each.token, default=None)
