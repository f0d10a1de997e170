"""Training takes the compiled kernels where they can be had, and says what computes."""

import shutil
from pathlib import Path

import pytest
import torch

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.cpp_library import CppLibrary
from sterna.model.native_cpu import kernels as native_kernels
from sterna.model.native_cpu.kernels import cpu_kernels
from sterna.model.native_cpu.library import KERNEL_SOURCES, kernel_library
from sterna.model.training.checkpoint import load_checkpoint
from sterna.model.training.recipe import Execution, TrainRecipe
from sterna.model.training.train import train


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


SENTENCES = "".join(f"Tern number {i} flies {i * i} miles. " for i in range(400)).encode()


CORPUS = Corpus("terns", SENTENCES[:-2000], SENTENCES[-2000:])


class Lines:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, progress: object) -> None:
        pass

    def measured(self, done: int, total: int) -> None:
        pass

    def message(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None:
        pass


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_training_says_what_computes_repeats_itself_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = TrainRecipe(batch=4, window=40, warmup_steps=5, float_start=0.0)
    results, lines = [], []
    for switch in ("1", "1", "0"):
        monkeypatch.setenv("STERNA_NATIVE", switch)
        reporter = Lines()
        results.append(train(ModelConfig(d=32, layers=2, dff=48), CORPUS, run_dir=tmp_path,
                             overwrite=True, recipe=recipe, steps=60, reporter=reporter,
                             execution=Execution(threads=1)))
        lines.append(reporter.lines[0])
    assert lines[0] == lines[1] != lines[2]
    assert lines[0].startswith("computing with compiled kernels (")
    first, second, torchs = (
        torch.cat([each.flatten() for each in result.model.state_dict().values()])
        for result in results)
    assert torch.equal(first, second)
    assert not torch.equal(first, torchs)   # gradients are rounded in other places
    assert results[0].train_bpb == pytest.approx(results[2].train_bpb, rel=0.02)

    monkeypatch.setenv("STERNA_NATIVE", "1")
    reporter, before = Lines(), load_checkpoint(tmp_path)
    train(before.config, CORPUS, run_dir=tmp_path, resume=True, recipe=TrainRecipe(**before.recipe),
          steps=61, reporter=reporter, execution=Execution(threads=1))
    assert any(line.startswith("the steps so far were computed with torch's operators:")
               for line in reporter.lines)
    assert before.computed_with == ("torch's operators",)
    assert load_checkpoint(tmp_path).computed_with == (
        "torch's operators", lines[0].removeprefix("computing with "))
