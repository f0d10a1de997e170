"""The graphs of a float model in onnxruntime compared with the model in torch.

A ternary projection rounds its input to 8 bits. Float sums in another order differ in their last
digit; near a half, a code then differs by 1, and all later values by a hundred times more than
float arithmetic explains. So torch computes with the codes of the graph, which must equal its own
except near a half; with the same codes nothing else rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.torch.network.quantizers import round_codes
from sterna.model.torch.onnx_float.writer import flat
from sterna.model.torch.stack.language_model import LanguageModel, ModelState

__all__ = ["LARGEST_DIFFERENCE", "FloatReport", "check_float"]


_SLACK = 0.01
"""Maximum distance from a half at which the graph may round the other way; codes reach 127."""


def with_codes(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[tuple[str, bool]]]:
    """A copy of a graph with every rounded tensor as an extra output; for each its name and whether
    it is inside a loop, which makes time its first axis."""
    copy, names = onnx.ModelProto(), []
    copy.CopyFrom(proto)
    for node in list(copy.graph.node):
        if node.op_type == "Round":
            names.append((node.output[0], False))
        elif node.op_type == "Scan":
            (body,) = (each.g for each in node.attribute if each.name == "body")
            for rounded in [each.output[0] for each in body.node if each.op_type == "Round"]:
                body.output.append(helper.make_empty_tensor_value_info(rounded))
                node.output.append(f"{node.name}.{rounded}")
                for each in node.attribute:
                    if each.name in ("scan_output_axes", "scan_output_directions"):
                        each.ints.append(0)
                names.append((node.output[-1], True))
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name, _ in names)
    return copy, names


LARGEST_DIFFERENCE = 1e-4
"""Tolerance of a graph, relative to 1 or to a number's magnitude if that is larger."""
_BATCH = 2


@dataclass(slots=True)
class FloatReport:
    """Result of comparing a graph with torch on two texts of ``tokens`` each.

    ``difference`` is the largest in logits and states, relative to 1 or to the number if that is
    larger, infinite if the graph's outputs do not match in kind; ``where`` names the value and the
    number of tokens, or the problem. Of the 8-bit ``codes`` in ternary projections torch rounds
    ``flipped`` the other way, continuing with the graph's, at most ``farthest`` from a half.
    ``missing`` roundings of torch have no counterpart in the graph.
    """

    tokens: int
    difference: float = 0.0
    where: str = ""
    codes: int = 0
    flipped: int = 0
    farthest: float = 0.0
    missing: int = 0

    @property
    def close(self) -> bool:
        return self.difference <= LARGEST_DIFFERENCE and not self.missing

    def add(self, name: str, after: int, got: np.ndarray, expected: Tensor) -> None:
        """Compare one value."""
        right = expected.numpy().astype(np.float64)
        if got.shape != right.shape:
            self.difference, self.where = np.inf, (
                f"{name} after {after} tokens has the shape {list(got.shape)}, expected "
                f"{list(right.shape)}")
        elif got.size:
            off = float((np.abs(got - right) / np.maximum(1.0, np.abs(right))).max())
            if not off <= self.difference:      # true for NaN too
                self.difference = np.inf if np.isnan(off) else off
                self.where = f"{name} after {after} tokens"


class GraphCodes:
    """Replaces :func:`sterna.model.torch.network.quantizers.round_codes`, and counts differences in
    a report."""

    def __init__(self, report: FloatReport) -> None:
        self.report = report
        self._found: dict[int, list[Tensor]] = {}

    def take(self, rounded: Iterable[tuple[np.ndarray, bool]]) -> None:
        """Continue with the tensors of one call of the graph, each with whether a loop made it."""
        found = defaultdict(list)
        for array, in_loop in rounded:
            whole = torch.from_numpy(array)
            for part in [whole, *(whole if in_loop else ())]:
                found[part.numel()].append(part.flatten())
        self._found = dict(found)

    def __call__(self, scaled: Tensor) -> Tensor:
        for codes in self._found.get(scaled.numel(), ()):
            off = (scaled.flatten() - codes).abs()
            if bool((off <= 0.5 + _SLACK).all()):
                others = scaled.flatten().round() != codes
                self.report.codes += codes.numel()
                self.report.flipped += int(others.sum())
                if bool(others.any()):
                    self.report.farthest = max(self.report.farthest, off[others].max().item() - 0.5)
                return codes.view_as(scaled)
        self.report.missing += 1
        return scaled.round()


class _Graph:
    """A graph in onnxruntime, with the codes of its projections."""

    def __init__(self, path: Path) -> None:
        proto, self._rounded = with_codes(onnx.load(path))
        found = {each.key: each.value for each in proto.metadata_props}
        self.by_step = found.get("sterna.graph") == "step"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4      # error messages are in the exceptions
        self._session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        self.states = self._inputs[1:]

    def __call__(
        self, tokens: Tensor, state: list[np.ndarray], codes: GraphCodes,
    ) -> list[np.ndarray]:
        """Logits and state after tokens ``[batch]`` or ``[batch, time]``; codes go to ``codes``."""
        found = self._session.run(
            None, dict(zip(self._inputs, [tokens.numpy(), *state], strict=True)))
        last = len(found) - len(self._rounded)
        codes.take(zip(found[last:], (loop for _, loop in self._rounded), strict=True))
        return [np.asarray(each) for each in found[:last]]


@torch.no_grad()
def check_float(
    model: LanguageModel, path: str | Path, *, tokens: int = 256, seed: int = 0,
) -> FloatReport:
    """Compare a graph written by :func:`sterna.model.torch.onnx_float.writer.export_float` with its
    model on two random texts, of ``tokens`` or the maximum length of a mixer.

    A step graph reads them token by token, a sequence graph in increasingly long pieces, then in
    one. Every call continues from the state of the previous one, in the graph as in torch; logits
    and states are compared after each.
    """
    check_whole("tokens", tokens, 1)
    count = tokens if model.longest is None else min(tokens, model.longest)
    text = torch.randint(model.config.vocab, (_BATCH, count),
                         generator=torch.Generator().manual_seed(seed))
    report = FloatReport(count)
    codes = GraphCodes(report)
    try:
        graph = _Graph(Path(path))
        with round_codes.by(codes):
            for pieces in [[1] * count] if graph.by_step else [list(_pieces(count)), [count]]:
                _compare(model, graph, text, pieces, codes, report)
    except Exception as error:  # onnxruntime's errors have no other common class
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        report.difference, report.where = np.inf, f"it does not run: {str(error).splitlines()[0]}"
    return report


def _compare(
    model: LanguageModel, graph: _Graph, text: Tensor, pieces: list[int], codes: GraphCodes,
    report: FloatReport,
) -> None:
    expected: ModelState = model.initial_state(_BATCH)
    state = [each.numpy() for each in flat(expected)]
    done = 0
    for length in pieces:
        piece = text[:, done] if graph.by_step else text[:, done:done + length]
        run = model.step if graph.by_step else model
        logits, *state = graph(piece, state, codes)
        right, expected = run(piece, expected)
        done += length
        report.add("logits", done, logits, right)
        for name, got, value in zip(graph.states, state, flat(expected), strict=True):
            report.add(name, done, got, value)


def _pieces(count: int) -> Iterator[int]:
    """1, 2, 3, 5, 8, ... tokens, together ``count``."""
    size, after = 1, 2
    while count:
        yield min(size, count)
        count -= min(size, count)
        size, after = after, size + after
