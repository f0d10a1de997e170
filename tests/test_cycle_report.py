"""``sterna report``: where the cycles of a token go, and the bits of every memory."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from fractions import Fraction
from pathlib import Path

import pytest
from amaranth.back import rtlil
from command_line import check_width, run
from page_checks import check_page, drawings, verdict_of

from sterna.cli.reports.hardware_page import number, stage_bars
from sterna.hw.core.compute.core import Core
from sterna.hw.core.compute.request import Request
from sterna.hw.core.cycles.memories import memory_bits
from sterna.hw.core.cycles.model import (
    MemoryTiming,
    Use,
    _Model,
    _Prompt,
    _Repeats,
    cycles_per_token,
    run_cycles,
)
from sterna.hw.core.cycles.report import (
    CycleReport,
    TokenCycles,
    cycle_report,
    shape_limits,
    shape_stages,
    tokens_per_second,
)
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.program import place_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

NANO, ODD, TINIEST = ModelConfig.named("nano"), ModelConfig(12, 2, 21, 65), ModelConfig(1, 1, 8, 2)
PARAMS, NANO_STAGES = CoreParams(shape_limits(NANO, S16)), shape_stages(NANO, S16)
SMALL = {"rows": 4, "cols": 8, "clusters": 2, "post_lanes": 2, "cell_lanes": 1, "quant_lanes": 4}
SLOW = MemoryTiming(9, Fraction(2, 5))


@pytest.fixture(scope="module")
def nano() -> CycleReport:
    return cycle_report(PARAMS, NANO)


@pytest.mark.parametrize(("sequences", "changes", "memory"), [
    (1, {}, None), (4, {"phases": 1}, None), (4, {"cell_lanes": 2}, None),
    (2, {"port_bits": 16, "ring": 64}, SLOW)])
def test_every_cycle_is_a_beat_or_waits_for_one_thing(sequences, changes, memory):
    params = CoreParams(shape_limits(ODD, C12), **SMALL | changes, sequences=sequences)
    asked = [(owner, Request((0, 1), tokens=12, temperature=1.0)) for owner in range(sequences)]
    found = run_cycles(params, shape_stages(ODD, C12), [
        *asked, (0, Request((0, 2), tokens=1, start=False))], memory)
    uses = Counter[Use]()
    for (stage, use), cycles in found.uses().items():
        assert (stage is None) == (use is Use.TOKEN)
        uses[use] += cycles
    assert uses.total() == found.cycles
    assert uses[Use.BEATS] == found.beats
    assert (Use.WEIGHTS in uses) == bool(params.port_bits)
    # In the long run the sequences go at the same pace, which the report takes from one of them.
    assert len({own[-4] - own[-8] for own in found.tokens[1:]}) <= 1


@pytest.mark.parametrize(("layers", "sizes", "memory"), [
    (1, {}, None), (5, {}, None), (4, {"sequences": 4}, None), (3, {"compact": True}, None),
    (3, {"sequences": 2, "phases": 1, "quant_lanes": 2, "post_lanes": 1}, None),
    (5, {"port_bits": 64}, MemoryTiming()), (3, {"sequences": 2, "port_bits": 16}, SLOW),
    (1, {"rows": 1, "cols": 32, "sequences": 4}, None)])
def test_leaps_leave_every_cycle_as_it_is(monkeypatch, layers, sizes, memory):
    shape = ModelConfig(24, layers, 40, 100)
    params = CoreParams(shape_limits(shape, S16), **{"rows": 4, "cols": 16} | sizes)
    # Sequences that begin, end and are followed by others at different times.
    asked = [(number % params.sequences,
              Request((0,) * (1 + number % 3), tokens=9 - number, temperature=number % 2))
             for number in range(params.sequences + 2)]
    stages = shape_stages(shape, S16)
    found = run_cycles(params, stages, asked, memory)
    leap = _Repeats.leap
    monkeypatch.setattr(_Repeats, "leap", lambda self: None)
    assert run_cycles(params, stages, asked, memory) == found
    # Where there is something to leap over, it is leapt over.
    monkeypatch.setattr(_Repeats, "leap", leap)
    model = _Model(params, stages, memory or MemoryTiming())
    model.run(deque([_Prompt(0, True, 9, False)]), 9)
    assert model.skipped > model.cycle


@pytest.mark.parametrize("rate", [Fraction(2, 5), Fraction(3, 4), Fraction(97, 100)], ids=str)
def test_a_core_that_waits_for_its_memory_takes_what_that_gives(rate):
    params = CoreParams(PARAMS.limits, port_bits=16)
    found = run_cycles(
        params, NANO_STAGES, [(0, Request((0,), tokens=3))], MemoryTiming(9, rate))
    assert 0.995 * rate <= found.words / found.cycles <= rate


@pytest.mark.parametrize(("sequences", "port_bits"), [(1, 0), (2, 0), (4, 128)])
def test_the_stages_have_all_cycles_of_a_token(sequences, port_bits):
    params = CoreParams(PARAMS.limits, sequences=sequences, port_bits=port_bits)
    memory = SLOW if port_bits else None
    for sampled in (False, True):
        token = TokenCycles.of(params, NANO_STAGES, memory, sampled=sampled)
        assert token.total == cycles_per_token(
            params, NANO_STAGES, sampled=sampled, memory=memory)
        assert token.spent(Use.BEATS) == sum(
            stage.words for stage in place_stages(NANO_STAGES, params))
        stages = [name for name in token.stages if name != "token"]
        assert stages == ["f c g", "out", "gate up", "down", "head"]


@pytest.mark.parametrize(("sizes", "lanes"), [
    ({}, (8, 4, 2)), ({"rows": 16}, (8, 4, 2)), ({"sequences": 16}, (8, 4, 2)),
    ({"rows": 16, "sequences": 4}, (16, 8, 4)), ({"rows": 32, "sequences": 4}, (32, 16, 8)),
    ({"rows": 16, "sequences": 4, "compact": True}, (8, 4, 2)),
    # A word of the port has 40 of the 1,024 weights that a beat takes.
    ({"rows": 16, "sequences": 4, "port_bits": 64}, (8, 4, 2)),
    ({"rows": 16, "sequences": 4, "post_lanes": 4}, (16, 4, 4))])
def test_lanes_keep_up_with_the_sums_of_several_sequences(sizes, lanes):
    params = CoreParams(shape_limits(ModelConfig.named("tiny"), S16), **sizes)
    assert (params.quant_lanes, params.post_lanes, params.cell_lanes) == lanes


def test_one_sequence_waits_for_its_norms_and_pipelines(nano):
    stages = nano.greedy.stages
    assert [use for use in Use if not nano.greedy.spent(use)] == [Use.WEIGHTS]
    assert nano.drawn.total > nano.greedy.total
    # Vectors of the same length take as long to be normalised; those of GLU are longer.
    assert stages["f c g"][Use.NORM] == stages["gate up"][Use.NORM] == stages["out"][Use.NORM]
    assert stages["down"][Use.NORM] > stages["out"][Use.NORM]
    assert [name for name, uses in stages.items() if uses[Use.TOKEN]] == ["token"]


def test_choices_are_runs_of_those_cores(nano):
    assert list(nano.choices) == [
        "sequences 2", "sequences 4", "rows 16", "cols 128", "quant_lanes 16",
        "post_lanes 8"]
    for name in ("sequences 2", "cols 128", "post_lanes 8"):
        size, value = name.split()
        changed = CoreParams(PARAMS.limits, **{size: int(value)})
        assert nano.choices[name].total == cycles_per_token(changed, NANO_STAGES)
    # A core of one row has one result a cycle at most.
    narrow = CoreParams(shape_limits(TINIEST, C12), rows=1, cols=8, sequences=4)
    assert list(cycle_report(narrow, TINIEST).choices) == [
        "sequences 2", "rows 2", "cols 16"]


@pytest.mark.parametrize(("shape", "profile", "changes"), [
    (ODD, S16, {}), (ODD, C12, {"sequences": 4}),
    (ModelConfig(5, 1, 3, 100), C12, {"sequences": 2}),
    (ODD, C12, {"port_bits": 64, "ring": 16}), (TINIEST, C12, {"compact": True})])
def test_memory_bits_are_those_of_the_emitted_core(shape, profile, changes):
    model = random_model(shape, profile, seed=4)
    params = CoreParams(Limits.of(model), **SMALL, **changes)
    found = memory_bits(params)
    text = rtlil.convert(Core(build_image(model, params)))
    memories = re.findall(r"^ *memory width (\d+) size (\d+) ", text, re.M)
    assert sum(found.values()) == sum(int(width) * int(size) for width, size in memories)
    words = params.ring if params.port_bits else params.most_weights
    assert found["weights"] == 2 * params.rows * params.cols * words
    assert found["states"] == (
        shape.layers * 4 * -(-shape.d // 4) * profile.h.bits * params.sequences)
    assert bool(found["embedding"]) == (not params.port_bits)
    assert found["others"] < 2000


def test_the_report_is_json_and_a_rate_is_tagged_as_estimated(nano):
    data = json.loads(json.dumps(nano.as_dict(50.0)))
    rate = data.pop("estimated")
    assert data == json.loads(json.dumps(nano.as_dict()))
    assert rate["tokens_per_second"]["greedy"] == pytest.approx(
        50e6 / data["cycles_per_token"]["greedy"])
    assert sum(sum(uses.values()) for uses in data["stages"].values()) == (
        data["cycles_per_token"]["greedy"])
    with pytest.raises(ValueError, match="the clock must be a positive number of MHz, got nan"):
        tokens_per_second(nano.greedy, float("nan"))


# The command --------------------------------------------------------------------------


def test_it_prints_cycles_bars_choices_and_memory(capsys, nano):
    code, out, err = run(capsys, "report", "--config", "nano", "--clock-mhz", 120.5, "--quiet")
    assert (code, err) == (0, "")
    check_width(out)
    assert "It waits mostly for " in out
    assert out.startswith("nano (no weights)\nd 64, 2 layers, dff 192, vocabulary 256, profile S16")
    assert re.search(rf"^greedy +{number(nano.greedy.total)} +[\d.]+% "
                     rf"+{120.5e6 / nano.greedy.total:,.0f}$", out, re.M)
    assert f"in {number(nano.greedy.spent(Use.BEATS))} of {number(nano.greedy.total)} cycles" in out
    assert re.search(rf"^states +{nano.memory_bits['states']:,}$", out, re.M)
    bars = dict(re.findall(r"^(\S.*?) +([█nwsrpc]+) [\d,.]+$", out, re.M))
    scale = len(bars["gate up"]) / sum(nano.greedy.stages["gate up"].values())
    for name, uses in nano.greedy.stages.items():
        assert abs(len(bars[name]) - scale * sum(uses.values())) <= 1
        assert abs(bars[name].count("n") - scale * uses[Use.NORM]) <= 1


def test_json_has_the_figures_of_the_report_and_goes_with_a_page(capsys, tmp_path: Path):
    target = tmp_path / "new" / "report.html"
    # 0.15616 GB/s at 39.04 MHz are four bytes a cycle.
    options = ("micro", "--rows", 4, "--cols", 32, "--sequences", 2, "--clock-mhz", 39.04,
               "--port-bits", 64, "--board", "ulx3s-85f")
    code, out, _ = run(capsys, "report", *options, "--json", "--quiet", "-o", target)
    model = load_model("micro")
    params = CoreParams(Limits.of(model), 4, 32, sequences=2, port_bits=64)
    found = cycle_report(params, model.config, MemoryTiming(rate=Fraction(1, 2)))
    assert found.greedy.spent(Use.WEIGHTS) > found.greedy.spent(Use.NORM)
    assert (code, json.loads(out)) == (
        0, {"model": "micro", **json.loads(json.dumps(found.as_dict(39.04)))})
    page = target.read_text(encoding="utf-8")
    check_page(page)
    assert drawings(page) == [stage_bars(found.greedy)]
    assert verdict_of(page) == ("note", f"{number(found.greedy.total)} cycles per token")
    assert "memory: 0.5 x 64 bits a cycle, the first after 20 cycles" in page
    assert "(estimated)" in page
    for uses in found.greedy.stages.values():
        for cycles in filter(None, uses.values()):
            assert f">{number(cycles)}</td>" in page
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
