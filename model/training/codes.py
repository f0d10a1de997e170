"""Ternary codes in training: how many a step changes, how many are zero, what they lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.quantizers import SMALLEST_SCALE, ternary_codes_and_scale
from sterna.model.training.distributed import Processes, own
from sterna.model.training.metrics import CodeShares

__all__ = ["CodeCounts", "CodeWatch", "overall", "ternary_errors"]


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
    """Compares the codes before and after a step, of every
    :class:`~sterna.model.network.bitlinear.BitLinear` by the name of its module.

    It costs two more times of making the codes, about a tenth of a step, so it is for a sample of
    the steps. Of matrices that lie over several processes each counts its own rows; else the first
    process alone counts. Scales of rows may differ from those of training in the last bit, as sums
    are made in another order.
    """

    def __init__(self, model: nn.Module, processes: Processes) -> None:
        weights = {name: each.weight for name, each in model.named_modules()
                   if isinstance(each, BitLinear)}
        self._processes = processes
        self._in_parts = any(isinstance(each, DTensor) for each in weights.values())
        self._weights = weights if self._in_parts or processes.is_first else {}
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Note the codes before a step; called by all processes."""
        self._before = self._codes()

    def end(self) -> dict[str, CodeCounts]:
        """Compare with those after it, by projection; called by all processes. Empty for a model
        without such, and on a process that does not count."""
        counts: list[float] = []
        for before, after in zip(self._before, self._codes(), strict=True):
            counts += (after.numel(), int(torch.count_nonzero(after != before)),
                       after.numel() - int(torch.count_nonzero(after)))
        self._before = []
        numbers = iter(map(int, self._summed(counts)))
        return {name: CodeCounts(next(numbers), next(numbers), next(numbers))
                for name in self._weights}

    def _codes(self) -> list[Tensor]:
        """Those that this process has of each matrix, int8."""
        weights = list(self._weights.values())
        if not self._in_parts:
            return [ternary_codes_and_scale(each)[0].to(torch.int8) for each in weights]
        parts = [own(each).detach() for each in weights]
        means = self._summed([
            part.float().abs().mean(dim=1).sum().item() / each.shape[0]
            for part, each in zip(parts, weights, strict=True)])
        return [ternary_codes_and_scale(part, torch.tensor(max(mean, SMALLEST_SCALE)))[0]
                .to(torch.int8) for part, mean in zip(parts, means, strict=True)]

    def _summed(self, numbers: list[float]) -> list[float]:
        """The sums over all processes that count."""
        if not self._in_parts:
            return numbers
        return [sum(each) for each in zip(*self._processes.gather(numbers), strict=True)]


def overall(counts: Mapping[str, CodeCounts]) -> CodeShares | None:
    """The shares of all matrices together; None of none."""
    if not counts:
        return None
    weights = sum(each.weights for each in counts.values())
    return CodeShares(sum(each.flipped for each in counts.values()) / weights,
                      sum(each.zeros for each in counts.values()) / weights)


@torch.no_grad()
def ternary_errors(model: nn.Module) -> dict[str, float]:
    """``|W - s T| / |W|`` in the Frobenius norm of every ternary projection, by the name of its
    module; 0 for a matrix of zeros.

    Uniform weights have 0.40, normal ones 0.51.
    """
    found = {}
    for name, each in model.named_modules():
        if isinstance(each, BitLinear):
            codes, scale = ternary_codes_and_scale(each.weight)
            weight = each.weight.float()
            size = float(torch.linalg.vector_norm(weight))
            found[name] = float(
                torch.linalg.vector_norm(weight - scale * codes)) / size if size else 0.0
    return found
