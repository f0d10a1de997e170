"""Training takes the compiled kernels where they can be had, and says what computes; with blocks
that torch compiles it is the same run, but for rounding."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_distributed import TORCHRUN
from training_parts import CONFIG, Recorder, run

from sterna.model.cpp_library import CppLibrary
from sterna.model.torch.native_cpu import kernels as native_kernels
from sterna.model.torch.native_cpu.kernels import cpu_kernels
from sterna.model.torch.native_cpu.library import KERNEL_SOURCES, kernel_library
from sterna.model.torch.training import state
from sterna.model.torch.training.checkpoint import load_checkpoint
from sterna.model.torch.training.recipe import Execution, Recording, TrainRecipe


def test_without_a_compiler_or_with_the_switch_torch_computes_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    told: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        assert cpu_kernels(told.append) is None
    with monkeypatch.context() as patch:
        patch.setenv("STERNA_NATIVE", "0")
        assert cpu_kernels(told.append) is None
    with monkeypatch.context() as patch:
        sources = tmp_path / "sources"
        sources.mkdir()
        (sources / "broken.cpp").write_text("int main( { return 0; }")
        patch.setattr(native_kernels, "kernel_library", lambda: CppLibrary(
            "broken", sources, (), "the kernels of training"))
        assert cpu_kernels(told.append) is None
    assert [line.startswith("computing with torch's operators") for line in told] == [True] * 3
    assert "g++ is not installed" in told[0]
    assert "STERNA_NATIVE=0" in told[1]
    assert "g++ failed on the kernels of training (broken.cpp)" in told[2]


def test_a_library_of_another_processor_or_source_is_another_file(tmp_path: Path) -> None:
    shutil.copytree(KERNEL_SOURCES, tmp_path / "cpp")
    ours = kernel_library()
    names = {ours._stem(), kernel_library("x86-64-v3")._stem(),
             CppLibrary(ours.name, tmp_path / "cpp", ours.flags, ours.what)._stem()}
    source = tmp_path / "cpp" / "gates.cpp"
    source.write_text(source.read_text() + "\n")
    names.add(CppLibrary(ours.name, tmp_path / "cpp", ours.flags, ours.what)._stem())
    assert len(names) == 4


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_training_says_what_computes_repeats_itself_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    results, lines = [], []
    for switch in ("1", "1", "0"):
        monkeypatch.setenv("STERNA_NATIVE", switch)
        reporter = Recorder()
        results.append(run(tmp_path, 60, overwrite=True, reporter=reporter))
        lines.append(reporter.messages[0])
    assert lines[0] == lines[1] != lines[2]
    assert lines[0].startswith("computing with compiled kernels (")
    first, second, torchs = (
        torch.cat([each.flatten() for each in result.model.state_dict().values()])
        for result in results)
    assert torch.equal(first, second)
    assert not torch.equal(first, torchs)   # gradients are rounded in other places
    assert results[0].train_bpb == pytest.approx(results[2].train_bpb, rel=0.02)

    monkeypatch.setenv("STERNA_NATIVE", "1")
    reporter, before = Recorder(), load_checkpoint(tmp_path)
    run(tmp_path, 61, resume=True, reporter=reporter)
    assert any(line.startswith("the steps so far were computed with torch's operators:")
               for line in reporter.messages)
    assert before.computed_with == ("torch's operators",)
    assert load_checkpoint(tmp_path).computed_with == (
        "torch's operators", lines[0].removeprefix("computing with "))


COMPILED = Execution(compile=True)


def run_some(folder: Path, execution: Execution, steps: int = 6, **given: object) -> float | None:
    return run(folder, steps, execution=execution, recording=Recording(heldout_bytes=512),
               recipe=TrainRecipe(lr=1e-3, batch=2, window=16, warmup_steps=0, float_start=0.4),
               **given).heldout_bpb


def weights_apart(first: Path, second: Path) -> float:
    ours, theirs = (load_checkpoint(each / "checkpoint.pt").weights for each in (first, second))
    assert list(ours) == list(theirs)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.long
@pytest.mark.filterwarnings("default")      # torch's own compiler gives some
def test_a_compiled_run_is_the_run_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a float start, so that it is compiled again in between, and from a beginning
    that was not."""
    monkeypatch.setenv("STERNA_NATIVE", "0")
    plain = run_some(tmp_path / "plain", Execution())
    ours = run_some(tmp_path / "compiled", COMPILED)
    assert torch._dynamo.utils.counters["graph_break"] == {}    # whole blocks
    assert weights_apart(tmp_path / "plain", tmp_path / "compiled") < 1e-4
    assert ours == pytest.approx(plain, abs=1e-4)
    run_some(tmp_path / "on", Execution(), steps=0)
    run_some(tmp_path / "on", COMPILED, resume=True)
    assert weights_apart(tmp_path / "plain", tmp_path / "on") < 1e-4


@pytest.mark.long
def test_blocks_of_fsdp_are_compiled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STERNA_NATIVE", "0")    # its gradients are products of bfloat16
    for name, more in (("plain", []), ("compiled", ["--set", "compile=true"])):
        subprocess.run(
            [*TORCHRUN, "-m", "sterna.cli", "train", "--config", "nano", "--steps", "3", "--set",
             "lr=0.001", "--set", "parallel=fsdp", "--set", "heldout_bytes=512", "--threads", "1",
             "-o", tmp_path / name, *more], check=True, capture_output=True, timeout=600)
    assert weights_apart(tmp_path / "plain", tmp_path / "compiled") < 1e-4


def test_what_cannot_be_compiled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="with residual plain, got reversible"):
        run_some(tmp_path, COMPILED, config=replace(CONFIG, residual="reversible"))
    monkeypatch.setattr(state.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        run_some(tmp_path, COMPILED)
