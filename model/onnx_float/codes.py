"""The 8-bit codes that a graph computed, for torch to compute with.

A ternary projection rounds its input to 8 bits. Float sums in another order differ in their last
digit; where a number lies on a half, a code then differs by 1, and all that follows by a hundred
times more than float arithmetic explains. So a comparison takes the codes of the graph, which must
be those of torch save where a number lies on a half, and with the same codes nothing else rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor

__all__ = ["GraphCodes", "with_codes"]

_SLACK = 0.01
"""How far from a half a number may be that the graph rounds the other way; codes reach 127."""


def with_codes(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[tuple[str, bool]]]:
    """A copy of a graph with every rounded tensor as one more output.

    Returns
    -------
    The copy, and for each output its name and whether it is from inside of a loop, which makes
    time its first axis.
    """
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


class GraphCodes:
    """Takes the place of :func:`sterna.model.network.quantizers.round_codes`.

    Counts over all calls: ``codes``; ``flipped``, those that torch rounds the other way, at most
    ``farthest`` from a half; and ``missing``, tensors that the graph has nothing like.
    """

    def __init__(self) -> None:
        self.codes = self.flipped = self.missing = 0
        self.farthest = 0.0
        self._found: dict[int, list[Tensor]] = {}

    def take(self, rounded: Iterable[tuple[np.ndarray, bool]]) -> None:
        """Go on with the tensors of one call of the graph, each with whether a loop made it."""
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
                self.codes += codes.numel()
                self.flipped += int(others.sum())
                if bool(others.any()):
                    self.farthest = max(self.farthest, off[others].max().item() - 0.5)
                return codes.view_as(scaled)
        self.missing += 1
        return scaled.round()
