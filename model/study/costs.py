"""What a model costs a token: multiplications, state, and the time of a step."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sterna.model.stack.block import Block
from sterna.model.stack.classifier import Classifier
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.tasks.row import Row

__all__ = ["Costs", "count", "measure_costs"]

_PIECE = 250
_ROUNDS, _STEPS = 5, 10


@dataclass(frozen=True, slots=True)
class Costs:
    """At what sizes costs are measured.

    Parameters
    ----------
    d, layers
        Of the model, a language model of bytes.
    lengths
        Numbers of tokens: each is the number of the token that is timed and counted.
    """

    d: int = 64
    layers: int = 4
    lengths: tuple[int, ...] = (128, 1024, 6000)


def measure_costs(row: Row, costs: Costs) -> dict[str, Any]:
    """Count and time the step of a row's model at each length. Mixers of a fixed length are made
    for it; one that was made for less is left out there.

    Returns
    -------
    ``{length: {"decode_us": ..., "state_words": ..., ...}}``; the time is the median of CPU time
    in microseconds of one step of the whole model for one sequence, None if it is not causal.
    """
    found: dict[str, Any] = {}
    causal = row.is_causal(costs.d)
    for length in costs.lengths:
        config = row.config(d=costs.d, layers=costs.layers, vocab=256, length=length)
        model = LanguageModel(config) if causal else Classifier(config, 256, length)
        if any(block.mixer.longest is not None and block.mixer.longest < length
               for block in model.blocks()):
            continue
        found[str(length)] = {
            "decode_us": _step_microseconds(model, length) if isinstance(model, LanguageModel)
            else None, **count(model, length)}
    return found


def count(model: nn.Module, length: int) -> dict[str, int]:
    """Parameters, words of state, MACs and multiplications of the token number ``length`` in all
    blocks; embedding and head, which are the same for all, are left out of the last three."""
    blocks = [each for each in model.modules() if isinstance(each, Block)]
    parts = [part for block in blocks for part in (block.mixer, block.channel)]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "state_words": sum(block.mixer.state_words(length) for block in blocks),
        "macs": sum(part.macs(length) for part in parts),
        "multiplies": sum(part.multiplies(length) for part in parts),
    }


@torch.no_grad()
def _step_microseconds(model: LanguageModel, length: int) -> float:
    """The median time of the step that reads token number ``length``."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (length, 1), generator=generator)
    state = model.initial_state(1)
    for piece in tokens[:-1].split(_PIECE):
        state = model.forward_time_major(piece, state)[1]
    return statistics.median(_timed(model, tokens[-1], state) for _ in range(_ROUNDS))


def _timed(model: LanguageModel, token: Tensor, state: Any) -> float:
    """Microseconds of CPU time of a step, the mean over a few."""
    start = time.process_time()
    for _ in range(_STEPS):
        model.step(token, state)
    return 1e6 * (time.process_time() - start) / _STEPS
