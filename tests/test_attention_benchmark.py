"""``sterna bench attention``: what it times, how, and what it says of it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from command_line import refusal, run
from page_checks import check_page, verdict_of

from sterna.model.network.recurrence import naive_mlgru
from sterna.model.study import attention_benchmark
from sterna.model.study.attention_benchmark import (
    CONTESTANTS,
    LEAST_RUNS,
    PARTS,
    AttentionResult,
    Cell,
    Settings,
    bench_attention,
    clock_for,
    contestant,
    contestants_of,
    findings,
    interleaved,
    materialised,
    ratios,
)
from sterna.model.study.machine import (
    extrapolated,
    memory_at_hand,
    memory_kept,
    peak_bytes,
    return_memory,
)

SMALL = ("--batch", 2, "--d", 16, "--heads", 2, "--runs", 2)


# What is timed ---------------------------------------------------------------------------


def core(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    return attention_benchmark._CORES[name](*inputs)


def test_cores_compute_what_they_are_called() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 2, 40, 8, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(materialised(q, k, v), F.scaled_dot_product_attention(q, k, v))
    scores = (q * 8 ** -0.5 @ k.transpose(-1, -2)).exp()
    features = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)
    for name, weights in (("softmax fused", scores), ("softmax causal", scores.tril()),
                          ("linear", features), ("linear causal", features.tril())):
        expected = weights / weights.sum(-1, keepdim=True) @ v
        torch.testing.assert_close(core(name, q, k, v), expected, rtol=1e-5, atol=1e-6)
    f, c, g = torch.randn(3, 40, 2, 8, generator=generator, dtype=torch.float64)
    states = naive_mlgru(f.sigmoid(), F.silu(c), torch.zeros(2, 8).double())
    torch.testing.assert_close(core("mlgru", f, c, g), g.sigmoid() * states)
    torch.testing.assert_close(core("mlgru scan", f.sigmoid(), F.silu(c)), states)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("backward", [False, True])
def test_every_contestant_has_a_call_for_every_part(part: str, backward: bool) -> None:
    settings = Settings(part=part, d=16, heads=2, backward=backward, seed=1)
    found = {name: contestant(settings, name, 12, 3)() for name in contestants_of(part)}
    assert list(found) == [name for name in CONTESTANTS if part == "core" or "scan" not in name]
    if not backward:
        recurrent, attention = (12, 3, 16), (3, 2, 12, 8) if part == "core" else (12, 3, 16)
        assert {name: tuple(y.shape) for name, y in found.items()} == {
            name: recurrent if "mlgru" in name else attention for name in found}
        assert not any(y.requires_grad for y in found.values())
    # Both forms of softmax are the same function of the same weights and inputs.
    torch.testing.assert_close(found["softmax"], found["softmax fused"])
    parameters = {"core": 0, "float": 8, "ternary": 8}[part]
    if backward:
        assert {name: len(grads) for name, grads in found.items()} == {
            name: 2 if "scan" in name else (1 if parameters else 3) + parameters
            for name in found}


# How -------------------------------------------------------------------------------------


def test_calls_are_made_in_turn_and_slow_ones_sit_out() -> None:
    now, order = 0.0, []

    def call(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        order.append(name)

    def clock() -> float:
        return now

    calls = {"a": lambda: call("a", 1), "b": lambda: call("b", 20), "c": lambda: call("c", 3)}
    taken = interleaved(calls, 6, 10.0, clock)
    assert taken == {"a": [1.0] * 6, "b": [20.0] * LEAST_RUNS, "c": [3.0] * 4}
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "ac" + "a" + "a"
    assert {name: len(each) for name, each in interleaved(calls, 2, 1.0, clock).items()} == {
        "a": 2, "b": 2, "c": 2}
    assert interleaved({}, 3, 1.0, clock) == {}


def test_one_thread_is_timed_by_the_processor_and_several_by_the_wall() -> None:
    threads = torch.get_num_threads()
    try:
        for count, name in ((1, "processor"), (2, "wall")):
            torch.set_num_threads(count)
            assert clock_for("cpu")[0] == name
    finally:
        torch.set_num_threads(threads)


def test_memory_is_that_of_the_tensors_alive_at_once() -> None:
    def some() -> torch.Tensor:
        x = torch.ones(1000)                    # 4,000 bytes
        x.view(10, 100).t()                     # none
        (x + 1).sum()                           # 4,000 for a moment, and 4
        y = x * 2                               # 4,000
        return y

    assert peak_bytes(some) == 8004
    x = torch.ones(1000, requires_grad=True)    # not made inside

    def chain() -> None:
        y = x.exp().exp().exp()                 # autograd keeps all three
        torch.autograd.grad(y, x, torch.ones(1000))

    with torch.no_grad():
        assert peak_bytes(lambda: x.exp().exp().exp()) == 8000
    assert peak_bytes(chain) > 12_000


@pytest.mark.parametrize("part", PARTS)
def test_memory_of_long_sequences_follows_from_short_ones(part: str) -> None:
    """Exactly that of two matrices for softmax; a little too large rather than too small."""
    settings = Settings(part=part, batch=4, backward=part == "float")
    needs = attention_benchmark._Needs(settings)
    for name in contestants_of(part):
        counted = peak_bytes(lambda name=name: contestant(settings, name, 640, 4)())
        assert 0.97 * counted < needs(name, 640, 4) < 1.5 * counted, name
    if part == "core":
        both = 4 * 4 * (3 * 640 * 64 + 2 * 4 * 640 ** 2)
        assert both <= needs("softmax", 640, 4) < 1.05 * both
        assert needs("softmax", 640, 2) == needs("softmax", 640, 4) // 2
    assert extrapolated((128, 256), (1280, 2560), 6000) == 60_000


def test_memory_of_many_sequences_is_counted_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made, batches = attention_benchmark.contestant, []

    def noted(settings: Settings, name: str, length: int, batch: int) -> object:
        batches.append(batch)
        return made(settings, name, length, batch)

    monkeypatch.setattr(attention_benchmark, "contestant", noted)
    many, few = (attention_benchmark._Needs(Settings(batch=batch, d=4, heads=1))
                 for batch in (4096, 32))
    assert many("softmax", 8, 4096) == 128 * few("softmax", 8, 32)
    assert batches == [32] * 4


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone can be told")
def test_memory_is_kept_inside_of_the_block_and_given_back_after_it() -> None:
    size = 400 * 2**20      # beside which what others give back meanwhile is little
    before = resident()
    with memory_kept() as kept:
        if not kept:
            pytest.skip("not glibc")
        torch.ones(size // 4)
        assert resident() - before > 0.75 * size
        return_memory()
        assert resident() - before < 0.5 * size
        torch.ones(size // 4)
    assert resident() - before < 0.5 * size


def test_the_memory_at_hand_is_known_here() -> None:
    free = memory_at_hand()
    assert free is not None
    assert 10**7 < free < 10**14


# What does not fit -----------------------------------------------------------------------


def test_what_does_not_fit_is_said_and_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    code, out, _ = run(capsys, "bench", "attention", *SMALL, "--lengths", "8,200",
                       "--memory-gb", 0.001, "-o", tmp_path, "--quiet")
    assert code == 0
    (line,) = re.findall(r"^softmax at N 200.*$", out, re.M)
    assert re.fullmatch(r"softmax at N 200, batch 2, needs [12] MB and may take 1 MB: not run\.",
                        line)
    assert re.search(r"^softmax +no fit +[12] MB *$", out, re.M)
    found = json.loads((tmp_path / "attention.json").read_text())
    fits = {(cell["contestant"], cell["length"]): cell["fits"] for cell in found["cells"]}
    assert [key for key, value in fits.items() if not value] == [("softmax", 200)]
    assert [set(each) for each in found["times_as_fast"]] == [
        {"length", "softmax", "softmax fused"}, {"length", "softmax fused"}]
    page = (tmp_path / "attention.html").read_text()
    assert line in page
    assert "does not fit in memory" in (tmp_path / "attention.svg").read_text()


def test_fit_takes_a_smaller_batch_for_all_and_says_so() -> None:
    notes: list[str] = []
    settings = Settings(lengths=(8, 200), batch=4, d=16, heads=2, runs=1, memory_gb=0.001, fit=True)
    result = bench_attention(settings, note=notes.append)
    assert {cell.length: cell.batch for cell in result.cells} == {8: 4, 200: 1}
    assert all(cell.seconds for cell in result.cells)
    assert notes[1] == ("N 200: batch 1 for all, as not every contestant fits in memory with 4")


# What is said ----------------------------------------------------------------------------


def result_of(times: dict[int, dict[str, float]]) -> AttentionResult:
    """A result with these seconds of one run."""
    return AttentionResult(Settings(), {
        "processor": "p", "threads": 1, "torch": "t", "clock": "wall",
        "memory_kept": False}, [
        Cell(name, length, 32, 10**6, None, (seconds,) if seconds else ())
        for length, row in times.items() for name, seconds in row.items()])


def test_ratios_and_findings_are_those_of_the_figures() -> None:
    names = ("softmax", "softmax fused", "linear", "linear causal", "mlgru")
    result = result_of({
        128: dict(zip(names, (0.1, 0.05, 0.01, 0.02, 0.02), strict=True)),
        512: dict(zip(names, (1.0, 0.5, 0.04, 0.1, 0.02), strict=True)),
        2048: dict(zip(names, (0.0, 5.0, 0.16, 0.4, 0.08), strict=True))})
    assert ratios(result.at(512), "softmax") == pytest.approx(
        {"softmax": 1, "softmax fused": 2, "linear": 25, "linear causal": 10, "mlgru": 50})
    assert ratios(result.at(2048), "softmax") == {}
    said = findings(result)
    assert said[0] == ("At N 512 linear is 25 times as fast as softmax attention that writes its "
                       "matrix, 12.5 times as fast as the fused one.")
    assert said[3:] == [
        "mlgru is faster than softmax fused at every N, 2.5 to 62.5 times.",
        "mlgru is not faster than linear at N 128 (0.5 times as fast).",
        "mlgru is not faster than linear causal at N 128 (1 times as fast)."]


def test_a_cell_has_mean_deviation_and_median() -> None:
    cell = Cell("linear", 8, 1, 5, None, (1.0, 2.0, 6.0))
    assert (cell.mean, cell.median) == (3.0, 2.0)
    assert cell.deviation == pytest.approx(7 ** 0.5)
    assert cell.as_dict() == {
        "contestant": "linear", "length": 8, "batch": 1, "needs_bytes": 5, "may_take_bytes": None,
        "fits": True, "runs": 3, "mean_ms": 3000.0, "deviation_ms": 2645.8, "median_ms": 2000.0,
        "least_ms": 1000.0}


# The command -----------------------------------------------------------------------------


def test_the_command_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(
        capsys, "bench", "attention", *SMALL, "--lengths", "4,9", "-o", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    assert [(cell["contestant"], cell["length"], cell["runs"]) for cell in found["cells"]] == [
        (name, length, 2) for length in (4, 9) for name in CONTESTANTS]
    assert "N 9, batch 2: 7 contestants in turn" in err
    assert json.loads((tmp_path / "attention.json").read_text()) == found
    page = (tmp_path / "attention.html").read_text()
    check_page(page)
    assert verdict_of(page) == ("note", "ATTENTION TIMED")
    svg = (tmp_path / "attention.svg").read_text()
    assert len(svg) < 80_000
    assert "prefers-color-scheme:dark" in svg       # ink that can be read there
    assert all(name in svg for name in CONTESTANTS)


def test_the_tables_fit_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sterna.cli.commands.bench import _show_attention
    names = [*CONTESTANTS]
    times = (123.456, 12.3456, 8.5, 1.23456, 0.123456, 0.01, 0.00123456)
    monkeypatch.setenv("COLUMNS", "80")
    _show_attention(result_of({6000: dict(zip(names, times, strict=True))}), [], False)
    out = capsys.readouterr().out
    assert re.search(r"^softmax +1 +123,456 +0 +123,456 +1 +0.1 +1 MB *$", out, re.M)
    assert re.search(r"^mlgru scan +1 +1.23 +0 +1.23 +100,000 +10,000 +1 MB *$", out, re.M)


def test_an_interruption_leaves_the_lengths_that_are_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = attention_benchmark.contestant

    def interrupted(settings: Settings, name: str, length: int, batch: int) -> object:
        if length == 9:
            raise KeyboardInterrupt
        return made(settings, name, length, batch)

    monkeypatch.setattr(attention_benchmark, "contestant", interrupted)
    code, out, err = run(
        capsys, "bench", "attention", *SMALL, "--lengths", "4,9", "-o", tmp_path, "--quiet")
    assert (code, err) == (130, "sterna: interrupted\n")
    assert "N 4, batch 2" in out
    assert "N 9" not in out
    found = json.loads((tmp_path / "attention.json").read_text())
    assert {cell["length"] for cell in found["cells"]} == {4}


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "bench", "attention", "--help")
    assert code == 0
    assert "Example: sterna bench attention --quick" in out


@pytest.mark.parametrize(("options", "message"), [
    (("--lengths", "many"), "--lengths must be whole numbers with commas between, such as "
                            "128,1024, got 'many'"),
    (("--lengths", "8,4"), "lengths must rise, got [8, 4]"),
    (("--lengths", "0"), "a length must be a whole number from 1 to 1048576, got 0"),
    (("--heads", 5), "d (64) must be a multiple of heads (5)"),
    (("--runs", 0), "runs must be a whole number from 1 to 100000, got 0"),
    (("--seconds", 0), "seconds must be above 0, got 0.0"),
    (("--memory-gb", -1), "--memory-gb must be above 0 and below 10^18, got -1"),
    (("--memory-gb", "inf"), "--memory-gb must be above 0 and below 10^18, got inf"),
    (("--seed", 1 << 63), f"--seed must be a whole number from 0 to {(1 << 63) - 1}, got "
                          f"{1 << 63}"),
    (("--part", "cores"), "--part must be one of core, float, ternary, got 'cores'"),
    (("--device", "tpu"), "device must be cpu or cuda, got 'tpu'"),
])
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[object, ...], message: str,
) -> None:
    assert refusal(capsys, "bench", "attention", "--quiet", *options) == f"sterna: {message}\n"
