"""The bench with several streams, and the payloads it carries, on hand-written Verilog."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from sterna.hw.emit.payloads import FieldBits, UnitPorts, pack_words, read_field
from sterna.hw.testbench.job import Job, Pause, Phase, PhaseResult, SimulationError
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, check_phase
from sterna.hw.testbench.stimulus import PhaseBuilder
from sterna.sim.bench import launch
from sterna.sim.bench.runner import Simulator, run_on

# Icarus compiles these in no time.
QUICK = Simulator.ICARUS
needs_quick = pytest.mark.needs("iverilog")

TWO_WAYS = """
module two_ways(input clk, input rst, input [7:0] add,
    input [7:0] a__payload, input a__valid, output a__ready,
    input [7:0] b__payload, input b__valid, output b__ready,
    output [7:0] c__payload, output c__valid, input c__ready,
    output [7:0] d__payload, output d__valid, input d__ready);
  // a goes to c with add added; b goes to d.
  assign c__payload = a__payload + add, c__valid = a__valid, a__ready = c__ready;
  assign d__payload = b__payload, d__valid = b__valid, b__ready = d__ready;
endmodule
"""


def run_two_ways(tmp_path: Path, phases: list[Phase], **options: int) -> list[PhaseResult]:
    source = tmp_path / "two_ways.v"
    source.write_text(TWO_WAYS)
    job = Job(["a", "b"], ["c", "d"], 1, phases, levels=["add"], **options)
    return run_on(QUICK, [source], "two_ways", job, tmp_path / "work")


@needs_quick
def test_streams_and_levels_of_a_phase(tmp_path: Path) -> None:
    a, b = list(range(20)), list(range(100, 130))
    plain, levelled, kept, slow, cut, fresh = run_two_ways(tmp_path, [
        Phase("plain", {"a": a, "b": b}, {"c": 20, "d": 30}, random_pauses=False),
        Phase("levelled", {"a": a, "b": b}, {"c": 20, "d": 30}, levels={"add": 7}),
        Phase("one only, levels stay", {"b": b}, {"d": 30}),
        Phase("slow", {"a": a, "b": b}, {"c": 20, "d": 30}, random_pauses=False,
              pauses={"c": Pause(0.9, 30)}),
        Phase("cut", {"a": a[:3]}, {}, random_pauses=False, cut_after=5),
        Phase("fresh", {"a": [1], "b": [1]}, {"c": 1, "d": 1}, reset=True, levels={"add": 0}),
    ])
    assert plain == PhaseResult({"c": a, "d": b}, 30, {"c": a, "d": list(range(30))})
    assert levelled.outputs == {"c": [each + 7 for each in a], "d": b}
    assert levelled.cycles > 30
    assert kept.outputs == {"c": [], "d": b}
    assert slow.outputs == {"c": [each + 7 for each in a], "d": b}
    assert slow.taken_at["d"] == list(range(30))       # only c pauses
    assert slow.cycles > 20 * 0.9 * 30
    assert cut.cycles == 3 + 5
    assert fresh.outputs == {"c": [1], "d": [1]}


@pytest.mark.parametrize(("phase", "message"), [
    (Phase("more", {"a": [1, 2]}, {"c": 1}), "more: more came out of c than the 1 words expected"),
    (Phase("none", {"a": [1], "b": [1]}, {"c": 1}),
     "none: more came out of d than the 0 words expected"),
    (Phase("hang", {"a": [1]}, {"c": 1, "d": 3}),
     "hang: no transfer for 50 cycles with 1 of 1 a sent, 0 of 0 b sent, 1 of 1 c received, "
     "0 of 3 d received"),
])
@needs_quick
def test_what_should_not_happen_names_the_stream(tmp_path, phase, message):
    with pytest.raises(SimulationError, match=message):
        run_two_ways(tmp_path, [phase], patience=50)


@pytest.mark.parametrize(("phase", "message"), [
    (Phase("p", {"c": [1]}, {}), "no input stream called 'c', only"),
    (Phase("p", {}, {"a": 1}), "no output stream called 'a', only"),
    (Phase("p", {}, {}, pauses={"e": Pause(0.5)}), "no stream called 'e', only"),
    (Phase("p", {}, {}, levels={"a": 1}), "no plain input called 'a', only"),
])
def test_a_phase_with_unknown_names_is_refused(phase, message):
    with pytest.raises(ValueError, match=message):
        Job(["a"], ["c"], 1, [phase], levels=["add"])


FIELDS = {
    "x": FieldBits("x", 0, 11, (3,), 4, True), "last": FieldBits("last", 12, 12, (), 1, False),
    "sequence": FieldBits("sequence", 13, 13, (), 1, False)}
PORTS = UnitPorts(["in"], ["out"], [], {"in": FIELDS, "out": FIELDS})


def test_payloads_are_packed_and_read_field_by_field() -> None:
    x = np.array([[-8, 7, 0], [1, -1, 3]])
    words = pack_words(FIELDS, {"x": x, "last": np.array([0, 1]), "sequence": np.array([1, 0])})
    assert words == [0x078 | 1 << 13, 0x3f1 | 1 << 12]
    np.testing.assert_array_equal(read_field(words, FIELDS["x"]), x)
    np.testing.assert_array_equal(read_field(words, FIELDS["last"]), [[0], [1]])
    assert read_field([], FIELDS["x"]).shape == (0, 3)


@pytest.mark.parametrize(("values", "message"), [
    ({"x": np.zeros((1, 3))}, "fields .* got"),
    ({"x": np.zeros((1, 2)), "last": np.zeros(1), "sequence": np.zeros(1)},
     "'x' has 3 elements, got 2"),
    ({"x": np.full((1, 3), 8), "last": np.zeros(1), "sequence": np.zeros(1)},
     "'x' takes -8 to 7, got 8 to 8"),
    ({"x": np.zeros((1, 3)), "last": np.array([2]), "sequence": np.zeros(1)},
     "'last' takes 0 to 1, got 2 to 2"),
])
def test_payloads_that_do_not_fit_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_words(FIELDS, values)


def test_a_builder_counts_words_by_stream() -> None:
    builder = PhaseBuilder(PORTS)
    vector = np.array([1, 2, 3, 4])
    for sequence in (0, 1, 1):
        builder.send("in", {"x": vector, "last": np.array([0, 1]), "sequence": sequence})
        builder.expect(0, "out", {"x": (f"x{sequence}", vector, None)})
    scored = builder.phase("echo")
    assert scored.phase.beats == 6
    assert scored.phase.outputs == {"out": 6}
    words = scored.phase.inputs["in"]
    assert check_phase(scored, {"out": words}).reference.passed
    wrong = check_phase(scored, {"out": [*words[:5], words[5] ^ 1]}).reference
    assert str(wrong.first) == "token 0, x1[3]: expected 4, got 5"
    with pytest.raises(SimulationError, match=r"out ends after 5 words, before x1 of token"):
        check_phase(scored, {"out": words[1:]})


def test_a_phase_without_expectations_passes_no_check() -> None:
    checks = check_phase(ScoredPhase(Phase("nothing", {}, {})), {"out": []})
    assert not checks.passed
    only_one = ScoredPhase(Phase("half", {}, {}), [
        ExpectedTensor(0, "x", "out", 0, 1, FIELDS["x"], np.array([1, 2, 3]))])
    words = pack_words(FIELDS, {
        "x": np.array([[1, 2, 3]]), "last": np.array([0]), "sequence": np.array([0])})
    assert check_phase(only_one, {"out": words}).reference.passed
    assert not check_phase(only_one, {"out": words}).passed


@pytest.mark.parametrize("large", [False, True])
def test_what_sets_the_memories_of_a_large_design_is_not_optimized(tmp_path, monkeypatch, large):
    """In one file it would be compiled like the rest, which took minutes for a core."""
    source = tmp_path / "unit.v"
    source.write_text("// " + "x" * (launch._SMALL if large else 10) + "\n")
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "compiled", lambda target, key, make: make())
    monkeypatch.setattr(launch, "simulation_key", lambda *made_of: "")
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    launch._verilate([str(source)], "unit", ["clk"], tmp_path, waves=None)
    verilate, make = commands
    split = int(verilate[verilate.index("--output-split") + 1])
    assert (split > 0) == large
    assert ("VM_PARALLEL_BUILDS=1" in make) == large
    assert "OPT_SLOW=-O0" in make
    assert ("OPT_FAST=-O1" if large else "OPT_FAST=-O0") in make
