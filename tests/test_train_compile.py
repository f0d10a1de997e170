"""Training with blocks that torch compiles: the same run, but for rounding."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_distributed import TORCHRUN
from test_train import CONFIG, CORPUS

from sterna.model.training import state
from sterna.model.training.checkpoint import load_checkpoint
from sterna.model.training.recipe import Execution, Recording, TrainRecipe
from sterna.model.training.train import TrainResult, train

RECIPE = TrainRecipe(lr=1e-3, batch=2, window=16, warmup_steps=0, float_start=0.4)
COMPILED = Execution(compile=True)


def run(folder: Path, execution: Execution, **given: object) -> TrainResult:
    return train(CONFIG, CORPUS, **{  # type: ignore[arg-type]  # options of many types
        "run_dir": folder, "steps": 6, "recipe": RECIPE, "quiet": True, "execution": execution,
        "recording": Recording(heldout_bytes=512), **given})


def weights_apart(first: Path, second: Path) -> float:
    ours, theirs = (load_checkpoint(each / "checkpoint.pt").weights for each in (first, second))
    assert list(ours) == list(theirs)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.long
@pytest.mark.filterwarnings("default")      # torch's own compiler gives some
def test_a_compiled_run_is_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a float start, so that it is compiled again in between, and from a beginning
    that was not."""
    monkeypatch.setenv("STERNA_NATIVE", "0")
    plain = run(tmp_path / "plain", Execution())
    ours = run(tmp_path / "compiled", COMPILED)
    assert torch._dynamo.utils.counters["graph_break"] == {}    # whole blocks
    assert weights_apart(tmp_path / "plain", tmp_path / "compiled") < 1e-4
    assert ours.heldout_bpb == pytest.approx(plain.heldout_bpb, abs=1e-4)
    run(tmp_path / "on", Execution(), steps=0)
    run(tmp_path / "on", COMPILED, resume=True)
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
        train(replace(CONFIG, residual="reversible"), CORPUS, run_dir=tmp_path, steps=1,
              execution=COMPILED, quiet=True)
    monkeypatch.setattr(state.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        run(tmp_path, COMPILED)
