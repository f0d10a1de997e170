"""The C++ clock loop around a core: right results, exact cycles, errors that say what is wrong."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from wave_names import declared_signals

from sterna.hw.core.request import Request
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.oldcore.core import MatMulFreeCore
from sterna.hw.oldcore.core_product import CORE
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.image import CoreImage, build_image
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.testbench.job import SimulationError
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core import simulate as simulate_module
from sterna.sim.core.cpp_engine import CoreRun, CppCore
from sterna.sim.core.reference import Answer, answer
from sterna.sim.core.simulate import simulate_core

pytestmark = pytest.mark.usefixtures("quick_build")

SMALL = ModelConfig(d=12, layers=2, dff=21, vocab=20)

# Word widths from a byte to several machine words: each is stored in another way.
SHAPES: dict[str, tuple[NumericProfile, dict[str, int]]] = {
    "one sequence": (S16, {"rows": 4, "cols": 8}),
    "two sequences, weights of 48 bits from outside": (
        C12, {"rows": 2, "cols": 12, "sequences": 2, "external_weights": True}),
    "one row, weights of 16 bits from outside": (
        S16, {"rows": 1, "cols": 8, "external_weights": True}),
    "weights of 192 bits from outside, no logits": (
        C12, {"rows": 4, "cols": 24, "quant_lanes": 4, "external_weights": True,
              "logits": False}),
}

# Sampled after greedy, a prompt that goes on, logits only, a fresh sequence again, and tokens
# written in the middle of a prompt.
REQUESTS = (
    (Request((3, 0, 19), 5), Request((7,), 4, temperature=1.5, start=False),
     Request((1, 2, 3, 4), predict=(True,) * 4, start=False),
     Request((19, 5), 3, 0.5, seed=2**32 - 1),
     Request((3, 7, 5, 2), 3, predict=(False, True, False, True), start=False)),
    (Request((11,), 9, temperature=2.0, seed=77), Request((4, 4), 2, start=False)),
)


@dataclass(frozen=True)
class Built:
    """A compiled core and where it came from."""

    model: QuantizedModel
    image: CoreImage
    source: Path
    core: CppCore

    @property
    def requests(self) -> tuple[tuple[Request, ...], ...]:
        return REQUESTS[:self.core.params.sequences]

    @property
    def answers(self) -> list[list[Answer]]:
        return answers(self.model, self.requests)


def answers(
    model: QuantizedModel, requests: tuple[tuple[Request, ...], ...],
) -> list[list[Answer]]:
    return [answer(IntegerModel(model), each, model.profile.logit.frac) for each in requests]


def small_image(**sizes: int) -> CoreImage:
    return build_image(
        random_model(SMALL, S16), CoreParams(SMALL, S16, **{"rows": 4, "cols": 8, **sizes}))


def build(name: str, folder: Path) -> Built:
    profile, sizes = SHAPES[name]
    model = random_model(SMALL, profile, seed=11)
    image = build_image(model, CoreParams(SMALL, profile, **sizes))
    source = write_verilog(MatMulFreeCore(image), "core", folder)
    return Built(model, image, source, CppCore([source], "core", image, folder))


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Cores by name, each compiled once."""
    return functools.cache(lambda name: build(name, tmp_path_factory.mktemp("core")))


@pytest.fixture(params=[
    pytest.param(name, marks=[pytest.mark.long] if name.startswith("one row") else [])
    for name in SHAPES])
def built(request: pytest.FixtureRequest, cores: Callable[[str], Built]) -> Built:
    return cores(request.param)


@pytest.fixture
def single(cores: Callable[[str], Built]) -> Built:
    return cores("one sequence")


def ran_from_prompt(reply: Answer) -> np.ndarray:
    """Of each token that ran, whether it was given; of what is written, all but the last runs."""
    given = np.ones(len(reply.run), dtype=bool)
    for each in reply.generations:
        given[each.first:each.first + len(each.tokens) - 1] = False
    return given


def check(built: Built, run: CoreRun, expected: list[list[Answer]]) -> None:
    """Tokens, ends of generations, logits, and the state at the end."""
    for sequence, replies in enumerate(expected):
        written = np.split(run.tokens[sequence], np.flatnonzero(run.lasts[sequence]) + 1)
        assert [each.tolist() for each in written] == [
            *(generation.tokens for reply in replies for generation in reply.generations), []]
        if built.core.params.logits:
            logits = np.concatenate([reply.logits for reply in replies])
            assert np.array_equal(run.logits[sequence], logits)
        assert np.array_equal(built.core.states(sequence), replies[-1].state)


@pytest.mark.slow
def test_everything_equals_the_reference_and_the_cycle_model(built):
    expected = built.answers
    run = built.core.run(built.requests)
    check(built, run, expected)
    assert run.cycles - len(built.requests[0]) * 4 < run.busy_cycles < run.cycles
    times = CycleModel(built.core.params).run(
        [[ran for reply in replies for ran in reply.as_ran()] for replies in expected])
    for sequence, replies in enumerate(expected):
        tokens = [token for token in times if token.sequence == sequence]
        assert run.token_cycles[sequence].tolist() == [
            token.done + 1 for token in tokens if token.generates]
        from_prompt = np.concatenate([ran_from_prompt(reply) for reply in replies])
        idle = np.array([0, *(token.done + 1 for token in tokens[:-1])])
        assert np.array_equal(run.prompt_cycles[sequence], idle[from_prompt])
        if built.core.params.logits:
            predicts = np.concatenate([reply.predict for reply in replies])
            last = [token.stages[-1].last_result for token in tokens]
            assert np.array_equal(run.logit_cycles[sequence], np.array(last)[predicts])


@pytest.mark.slow
def test_a_stop_token_ends_a_generation_early(single):
    written = answers(single.model, ((Request((3, 0, 19), 30, 2.0, 5),),))[0][0].generated
    stop = next(token for token in written[3:] if token not in written[:3])
    requests = ((Request((3, 0, 19), 30, 2.0, 5, stop_token=stop), Request((1,), 2, start=False)),)
    expected = answers(single.model, requests)
    assert 3 < len(expected[0][0].generated) < 30
    check(single, single.core.run(requests), expected)


@pytest.mark.slow
def test_every_token_is_shown_once_and_an_interrupt_leaves_a_core_that_works(
    single, monkeypatch,
):
    monkeypatch.setattr("sterna.sim.core.cpp_engine.CHUNK", 500)
    shown: list[list[int]] = []
    run = single.core.run(single.requests, on_tokens=lambda _, tokens: shown.append(tokens))
    assert [token for tokens in shown for token in tokens] == run.tokens[0].tolist()
    assert len(shown) > 3

    def interrupt(sequence: int, tokens: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        single.core.run(single.requests, on_tokens=interrupt)
    check(single, single.core.run(single.requests), single.answers)


@pytest.mark.slow
def test_a_build_is_used_again_until_something_changes(single, monkeypatch):
    folder = single.source.parent
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.so")}
    with monkeypatch.context() as patch:
        patch.setattr("sterna.sim.bench.cpp_build.run_tool", None)      # nothing is compiled
        core = CppCore([single.source], "core", single.image, folder)
    check(replace(single, core=core), core.run(single.requests), single.answers)
    check(single, single.core.run(single.requests), single.answers)

    changed = folder / "changed.v"
    changed.write_text(RULE_BREAKER)
    other = CppCore([changed], "core", single.image, folder)
    with pytest.raises(SimulationError, match="something came out after the end"):
        other.run([[Request((1,), 9, seed=4)]])
    check(single, single.core.run(single.requests), single.answers)
    after = {path: path.stat().st_mtime_ns for path in folder.glob("*.so")}
    assert len(after) == 2
    assert before.items() < after.items()
    assert {path.suffix for path in folder.iterdir()} <= {".v", ".mem", ".so", ".log"}


@pytest.mark.slow
def test_requests_that_do_not_fit_the_core_are_refused(single):
    foreign = r"a request has token .*, the model knows 0 to 19"
    for requests, message in (
        ([[], []], "a list of requests for each of 1 sequences, got 2"),
        ([[Request((20,))]], foreign), ([[Request((1,), 3, stop_token=20)]], foreign),
    ):
        with pytest.raises(ValueError, match=message):
            single.core.run(requests)


@pytest.mark.slow
def test_a_core_without_logits_is_compared_without_them(cores, monkeypatch, tmp_path):
    built = cores("weights of 192 bits from outside, no logits")
    monkeypatch.setattr(simulate_module, "CppCore", lambda *made_of, waves: built.core)
    (tmp_path / "filelist.f").touch()
    emitted = EmittedUnit(tmp_path, CORE.module, built.core.params, {})
    report = simulate_core(built.model, [[1, 2]], 3, engine="cpp", emitted=emitted)
    assert report.passed, report.failure
    # Tokens and state, and nothing else.
    assert report.checks.reference.values == 3 + built.core.states().size


# A core that keeps the rules of no stream; `seed` says which one it breaks.
RULE_BREAKER = """
module core(
    input clk, input rst, input go, output busy, output reg [31:0] cycles,
    input [15:0] control__0__limit, input control__0__stop, input [4:0] control__0__stop_token,
    input [17:0] control__0__beta, input [31:0] control__0__seed,
    input [6:0] prompts__0__payload, input prompts__0__valid, output prompts__0__ready,
    output [5:0] tokens__0__payload, output tokens__0__valid, input tokens__0__ready,
    output [64:0] logits__0__payload, output logits__0__valid, input logits__0__ready);
  reg [7:0] age = 0;
  always @(posedge clk)
    if (rst) begin age <= 0; cycles <= 0; end
    else if (age != 0 && age != 255) age <= age + 1;
    else if (prompts__0__valid && prompts__0__ready) age <= 1;
  assign prompts__0__ready = go && age == 0;
  assign busy = age != 0 && (age < 20 || control__0__seed == 3);
  assign tokens__0__payload = 6'd0;
  assign tokens__0__valid = control__0__seed == 4 && age == 30;
  assign logits__0__payload = 65'd0;
  assign logits__0__valid = control__0__seed == 5 && age > 2 && age < 11;
  core__mlgru mlgru(clk, age);
endmodule
module core__mlgru (input clk, input [7:0] age);
  reg [63:0] state [2:0];
  always @(posedge clk) state[0] <= {56'd0, age};
endmodule
"""


@pytest.mark.slow
def test_a_core_that_breaks_the_rules_is_caught(tmp_path):
    source = tmp_path / "core.v"
    source.write_text(RULE_BREAKER)
    core = CppCore([source], "core", small_image(), tmp_path)
    for seed, message in (
        (3, r"nothing moved for \d+ cycles \(cycle \d+\); sequence 0: 1 of 1 prompt tokens "
            "taken, 0 tokens and 0 words of logits out"),
        (4, "something came out after the end"),
        (5, "vectors of logits have 5 words, but word 4 of sequence 0 has last = 0"),
    ):
        with pytest.raises(SimulationError, match=message):
            core.run([[Request((1,), 9, seed=seed)]])
    with pytest.raises(SimulationError, match="must have 6 words, has 3"):
        core.states()
    with pytest.raises(SimulationError, match="core does not fit its image: the design has no "):
        CppCore([source], "core", small_image(sequences=2), tmp_path)


@pytest.mark.slow
def test_verilog_that_does_not_compile_is_an_error_with_a_log(tmp_path):
    source = tmp_path / "core.v"
    source.write_text("module core(input clk); nonsense endmodule")
    with pytest.raises(SimulationError, match=r"verilator failed on core: .*cpp_build\.log"):
        CppCore([source], "core", small_image(), tmp_path / "work")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"cpp_build.log"}
    with pytest.raises(ValueError, match="path with a space"):
        CppCore([source], "core", small_image(), tmp_path / "a b")


@pytest.mark.long
def test_waves_of_a_run_show_its_tokens(cores, tmp_path):
    plain = cores(next(iter(SHAPES)))
    waves = tmp_path / "core.vcd"
    core = CppCore([plain.source], "core", plain.image, tmp_path, waves=waves)
    run = core.run(plain.requests)
    written = sum(len(each) for each in run.tokens)
    del core, run
    gc.collect()        # the file is complete now
    # As the views of a core name them.
    assert {"core.clk", "core.tokens__0__valid"} <= declared_signals(waves)
    text = waves.read_text()
    code = re.search(r"\$var wire 1 (\S+) tokens__0__valid ", text)
    assert code
    rises = re.findall(rf"^1{re.escape(code[1])}$", text, re.M)
    assert 0 < len(rises) <= written
