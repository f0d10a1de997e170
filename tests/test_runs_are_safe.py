"""Runs are safe: nothing is replaced unasked, two never mix, and what fails leaves what was."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import refusal
from command_line import run as run_sterna
from training_parts import CORPUS, FILES, Recorder
from training_parts import run as run_model

from sterna.model.config import ModelConfig
from sterna.model.quantized.evaluate import Evaluation
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.training import run_folder
from sterna.model.torch.training import train as loop
from sterna.model.torch.training.checkpoint import load_checkpoint, save_checkpoint
from sterna.model.torch.training.metrics import read_metrics
from sterna.model.torch.training.recipe import Recording, TrainRecipe
from sterna.model.torch.training.run_folder import RunFolder
from sterna.model.torch.training.train import TrainResult

CONFIG = ModelConfig(d=8, layers=1, dff=8)
RECIPE = TrainRecipe(batch=2, window=16, warmup_steps=2, float_start=0.0)


def run(folder: Path, steps: int | None = 2, **options: object) -> TrainResult:
    """A run of a few milliseconds."""
    return run_model(folder, steps, **{"config": CONFIG, "recipe": RECIPE, **options})


def test_a_checkpoint_is_not_replaced_unasked(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run(tmp_path).checkpoint.read_bytes()
    with pytest.raises(ValueError, match=r"--resume, replace it with --overwrite, or train in ano"):
        run(tmp_path, 3)
    assert "has the checkpoint of a run" in refusal(
        capsys, "train", "--config", "micro", "--steps", 1, "--set", "lr=1e30", "-o", tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert "give one of --resume, --auto-resume and --overwrite" in refusal(
        capsys, "train", "--steps", 1, "--resume", "--overwrite", "-o", tmp_path)
    assert f"there is no run to resume in {tmp_path}/none" in refusal(
        capsys, "train", "--steps", 1, "--resume", "-o", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    run(tmp_path, 3, overwrite=True)
    assert load_checkpoint(tmp_path).step == 3


@pytest.mark.parametrize(("lr", "steps", "message"), [
    (1e38, 500, "10 steps in a row, up to step 1[12]; lower lr"), (1e300, 1, "not finite")])
def test_a_run_that_fails_leaves_the_checkpoint_before_it_and_torch_as_it_was(
        tmp_path: Path, lr: float, steps: int, message: str) -> None:
    """Whether the loss tells, after some steps, or the weights alone, after the last."""
    before = run(tmp_path).checkpoint.read_bytes()
    settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pytest.raises(FloatingPointError, match=message):
        run(tmp_path, steps, recipe=replace(RECIPE, lr=lr), overwrite=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not (tmp_path / ".lock").exists()
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == settings


HOLD = """
import sys, time
from sterna.model.torch.training.run_folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_one_runs_until_its_process_ends(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "locked\n"
    try:
        with pytest.raises(ValueError, match=f"in use by another run, process {child.pid}: wait"):
            run(tmp_path)
    finally:
        child.kill()
        child.communicate()
    run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_without_locks_a_run_goes_on_and_says_so(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: int, kind: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    notes: list[str] = []
    monkeypatch.setattr(run_folder.fcntl, "flock", unsupported)
    with RunFolder(tmp_path).locked(notes.append):
        pass
    monkeypatch.setattr(run_folder, "fcntl", None)
    with RunFolder(tmp_path).locked(notes.append):
        pass
    assert notes == [f"{tmp_path} cannot be locked ({why}): nothing keeps a second run out of it"
                     for why in ("Operation not supported", "flock is missing")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_a_second_one_is_not_held_back(tmp_path: Path, number: int) -> None:
    def asked_outside(signum: int, frame: object) -> None:
        raise InterruptedError(signum)

    before = {each: signal.signal(each, asked_outside) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = run(tmp_path / "one", 9, reporter=Recorder(3, number))
        assert (result.interrupted, result.stop_signal, result.step) == (True, number, 3)
        assert load_checkpoint(tmp_path / "one").step == 3
        for other in (signal.SIGINT, signal.SIGTERM):
            impatient = Recorder(3, number, other)
            with pytest.raises(InterruptedError):
                run(tmp_path / "two", 9, reporter=impatient)
            assert impatient.closed == 1
            assert signal.getsignal(other) is asked_outside
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_only_so_much_of_the_heldout_text_is_measured(tmp_path: Path) -> None:
    result = run(tmp_path, 1, recording=Recording(heldout_bytes=700))
    assert result.heldout_bytes == 700
    assert result.heldout_bpb == heldout_bpb(result.model, CORPUS.heldout[:700])
    result = run(tmp_path, 1, recipe=replace(RECIPE, eval_window=50), overwrite=True)
    assert result.heldout_bpb == heldout_bpb(result.model, CORPUS.heldout, window=50)


def test_a_run_killed_while_its_end_is_measured_is_measured_when_resumed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, asked = loop.measure_heldout, []

    def killed(*arguments: object, **options: object) -> Evaluation:
        asked.append(arguments)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    monkeypatch.setattr(loop, "measure_heldout", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert load_checkpoint(tmp_path).heldout_bpb is None    # not that of the step before
    result = run(tmp_path, resume=True)
    assert result.heldout_bpb == pytest.approx(heldout_bpb(result.model, CORPUS.heldout), rel=1e-5)
    assert load_checkpoint(tmp_path).heldout_bpb == result.heldout_bpb
    assert run(tmp_path, resume=True).heldout_bpb == result.heldout_bpb
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert metrics["step"] == [1, 2]
    assert metrics["heldout_bpb"][1] == pytest.approx(result.heldout_bpb, abs=1e-5)


def test_measuring_takes_nothing_from_the_budget(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which a step takes a second, and to measure takes an hour."""
    now = [0.0]
    step, measure = loop.TrainState.advance, loop.measure_heldout

    def advance(*arguments: object, **options: object) -> None:
        now[0] += 1.0
        step(*arguments, **options)

    def measured(*arguments: object, **options: object) -> Evaluation:
        now[0] += 3600.0
        return measure(*arguments, **options)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(loop.TrainState, "advance", advance)
    monkeypatch.setattr(loop, "measure_heldout", measured)
    result = run(tmp_path, None, minutes=1.0)
    assert 59 <= result.step <= 61
    assert result.seconds == result.step
    assert now[0] == result.step + 8 * 3600.0


def test_a_full_disk_leaves_the_old_checkpoint_and_one_line(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = run(tmp_path).checkpoint.read_bytes()
    fsync = os.fsync

    def disk_full(handle: int) -> None:
        if os.fstat(handle).st_size > 4096:     # there is room for the metrics
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", disk_full)
    code, out, err = run_sterna(
        capsys, "train", "--config", "micro", "--steps", 1, "--overwrite", "-o", tmp_path,
        "--quiet", "--set", "heldout_bytes=2000")
    assert (code, out) == (2, "")
    assert err == (f"sterna: {tmp_path}/checkpoint.pt: cannot write (No space left on device)\n")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_what_is_not_finite_is_no_success(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = load_checkpoint(run(tmp_path).checkpoint)
    found.weights["head.weight"][0, 0] = torch.nan
    save_checkpoint(found, tmp_path / "checkpoint.pt")
    for command in (("evaluate", tmp_path), ("generate", tmp_path, "--tokens", 2),
                    ("export", tmp_path, "-o", tmp_path / "onnx"),
                    ("quantize", tmp_path, "-o", tmp_path / "m.safetensors")):
        code, out, err = run_sterna(capsys, *command, "--quiet")
        assert (code, out) == (1, "")
        assert err == ("sterna: the weights of the checkpoint are not finite, such as those of "
                       "head.weight: its training failed\n")
    # Finite weights may give a loss that is not, where nothing is clamped.
    run(tmp_path, 1, config=replace(CONFIG, weights="float"), overwrite=True)
    found = load_checkpoint(tmp_path)
    for weight in found.weights.values():
        weight.fill_(3e38)
    save_checkpoint(found, tmp_path / "checkpoint.pt")
    code, out, err = run_sterna(capsys, "evaluate", tmp_path, "--bytes", 500, "--quiet")
    assert (code, out) == (1, "")
    assert "not finite" in err


def test_a_run_is_named_by_its_folder(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run")
    found = [run_sterna(capsys, "evaluate", tmp_path / name, "--bytes", 300, "--json")
             for name in ("run", "run/checkpoint.pt")]
    assert found[0][0] == 0
    assert json.loads(found[0][1]) == json.loads(found[1][1])
    assert run_sterna(capsys, "quantize", tmp_path / "run", "-o", tmp_path / "m.safetensors",
                      "--quiet")[0] == 0     # a text of one's own is not measured unasked
    assert run_sterna(capsys, "generate", tmp_path / "run", "--tokens", 2, "--quiet")[0] == 0
    for command in (("evaluate", tmp_path), ("generate", tmp_path),
                    ("quantize", tmp_path, "-o", tmp_path / "n.safetensors"),
                    ("export", tmp_path, "-o", tmp_path / "onnx")):
        assert f"cannot read the checkpoint {tmp_path}/checkpoint.pt (No such file or dire" in (
            refusal(capsys, *command))
    (tmp_path / "run" / "checkpoint.pt").rename(tmp_path / "checkpoint.pt")
    for command in (("evaluate",), ("report-run", "--quiet")):
        assert "run without a checkpoint.pt so far: it writes one every minute" in (
            refusal(capsys, *command, tmp_path / "run"))
    assert ".html" in refusal(capsys, "report-run", tmp_path, "-o", "x.txt")
    assert f"checkpoint.pt is a file: give the folder of a run, {tmp_path}" in (
        refusal(capsys, "report-run", tmp_path / "checkpoint.pt"))


def test_characters_that_a_vocabulary_lacks_are_counted(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "greek.txt").write_text("Café, Ω and Ω. \n" * 400, encoding="utf-8")
    code, _, err = run_sterna(
        capsys, "train", "--config", "micro", "--steps", 1, "--text", tmp_path / "greek.txt",
        "-o", tmp_path / "run")
    assert code == 0
    assert ("800 of 6,400 characters have no spelling in ASCII and are left out, most of them Ω"
            in err)
