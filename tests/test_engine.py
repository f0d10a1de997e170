"""The engine: any number of sequences, any model within its limits, against the reference."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cores import SHAPES, Shape

from sterna.hw.core.plan.request import Request
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.engine.engine import Engine
from sterna.hw.engine.engine_image import EngineImage, build_image, unpack_image
from sterna.hw.engine.engine_params import EngineParams, Limits
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Simulator
from sterna.sim.core.reference import answer
from sterna.sim.engine import run_engine, write_engine

SIMULATORS = [Simulator.VERILATOR, *([Simulator.ICARUS] if shutil.which("iverilog") else [])]
STYLES = [ArrayStyle.GENERIC, ArrayStyle.ECP5_CHAIN, ArrayStyle.XC7_PAIR]
SMALL = {"rows": 4, "cols": 8, "clusters": 2, "post_lanes": 2, "cell_lanes": 1, "quant_lanes": 4}


def requests(sequences: int, vocab: int) -> list[tuple[int, Request]]:
    """A distinct prompt for each sequence; then those that are done are replaced, one goes on."""
    rng = np.random.default_rng(sequences)

    def request(sequence: int, **changes) -> Request:
        prompt = tuple(map(int, rng.integers(0, vocab, size=1 + sequence % 3)))
        usual = Request(prompt, 2 + sequence % 3, (0.0, 0.7, 30.0)[sequence % 3], 5 + sequence)
        return replace(usual, **changes)

    first = [(each, request(each)) for each in range(sequences)]
    longest = (sequences - 1, replace(first[-1][1], tokens=9))
    return [*first[:-1], longest, (0, request(0, tokens=3, start=False)),
            *((each, request(each + 1)) for each in range(1, sequences // 2)),
            (0, request(0, tokens=0, prompt=(1, 0, 1), predict=(True, False, True)))]


def check(
    model: QuantizedModel, params: EngineParams, work: Path, simulator: Simulator = Simulator.VERILATOR,
    sources: list[Path] | None = None, pauses: bool = True,
) -> None:
    """Run the requests of every sequence twice; tokens and logits are those of the reference."""
    image = build_image(model, params)
    sources = sources or write_engine(image, work)
    asked = requests(params.sequences, model.config.vocab)
    reference = IntegerModel(model)
    answers = [answer(reference, [each for owner, each in asked if owner == sequence])
               for sequence in range(params.sequences)]
    tokens = [[token for each in found for token in each.generated] for found in answers]
    logits = [[each for one in found for each in one.logits] for found in answers]
    runs = run_engine(image, sources, [asked, asked], [sum(map(len, tokens))] * 2, work / "run",
                      simulator=simulator, random_pauses=pauses)
    for run in runs:
        assert [each.tokens for each in run] == tokens
        for each, expected in zip(run, logits, strict=True):
            np.testing.assert_array_equal(each.logits, np.array(expected))


def params_of(shape: Shape, model: QuantizedModel, **changes) -> EngineParams:
    return EngineParams(Limits.of(model), **(SMALL | changes))


@pytest.mark.parametrize(("shape", "sequences", "style", "changes"), [
    pytest.param(shape, sequences, style, changes,
                 id=f"{shape.name}-{sequences}-{style}-{'-'.join(changes)}",
                 marks=[] if number < 2 else [pytest.mark.long])
    for number, (shape, sequences, style, changes) in enumerate([
        (SHAPES[0], 4, ArrayStyle.GENERIC, {}),
        (SHAPES[1], 1, ArrayStyle.ECP5_CHAIN, {"clusters": 1}),
        *((shape, (1, 2, 16)[index % 3], STYLES[index % 3], (
            {}, {"phases": 1}, {"post_lanes": 4, "cell_lanes": 4, "quant_lanes": 8, "cols": 16},
            {"rows": 8, "cell_lanes": 2, "clusters": 1, "quant_lanes": 2})[index % 4])
          for index, shape in enumerate(SHAPES[2:]))])])
def test_every_sequence_follows_the_reference(
    shape: Shape, sequences: int, style: ArrayStyle, changes: dict, tmp_path: Path,
) -> None:
    model = shape.model()
    changes = changes if sequences > 1 else {k: v for k, v in changes.items() if k != "phases"}
    check(model, params_of(shape, model, sequences=sequences, style=style, **changes), tmp_path)
