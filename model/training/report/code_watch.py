"""What a step does to the ternary codes: how many change, and how many are zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.quantizers import ternary_codes_and_scale
from sterna.model.training.report.codes import CodeShares

__all__ = ["CodeCounts", "CodeWatch", "overall"]


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """Codes of one matrix: all, those that a step changed, and those that are zero after it."""

    weights: int
    flipped: int
    zeros: int

    @property
    def shares(self) -> CodeShares:
        """Of all codes."""
        return CodeShares(self.flipped / self.weights, self.zeros / self.weights)


class CodeWatch:
    """Compares the codes before and after a step.

    It costs two more times of making the codes, about a tenth of a step, so it is for a sample of
    the steps.

    Parameters
    ----------
    model
        Its :class:`~sterna.model.network.bitlinear.BitLinear` projections are watched, by the
        names of their modules; but none that lies over several processes, as of FSDP.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = {name: each.weight for name, each in model.named_modules()
                         if isinstance(each, BitLinear) and not isinstance(each.weight, DTensor)}
        self._before: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Note the codes before a step."""
        self._before = {name: self._codes(weight) for name, weight in self._weights.items()}

    def end(self) -> dict[str, CodeCounts]:
        """Compare with those after it, by projection; empty for a model without such."""
        found = {}
        for name, weight in self._weights.items():
            codes = self._codes(weight)
            found[name] = CodeCounts(
                codes.numel(), int(torch.count_nonzero(codes != self._before[name])),
                codes.numel() - int(torch.count_nonzero(codes)))
        self._before = {}
        return found

    @staticmethod
    def _codes(weight: Tensor) -> Tensor:
        return ternary_codes_and_scale(weight)[0].to(torch.int8)


def overall(counts: Mapping[str, CodeCounts]) -> CodeShares | None:
    """The shares of all matrices together; None of none."""
    if not counts:
        return None
    weights = sum(each.weights for each in counts.values())
    return CodeShares(sum(each.flipped for each in counts.values()) / weights,
                      sum(each.zeros for each in counts.values()) / weights)
