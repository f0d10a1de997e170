"""A run that was stopped, by a signal or by force, goes on exactly; another one is refused."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run as run_command
from command_line import settings
from training_parts import CONFIG, CORPUS, RECIPE, Recorder, assert_same_weights, run

from sterna.model.corpus import Corpus
from sterna.model.torch.training.checkpoint import CheckpointError, load_checkpoint
from sterna.model.torch.training.metrics import read_metrics
from sterna.model.torch.training.state import TrainState

CHILD = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from training_parts import run
from sterna.model.torch.training.recipe import Recording
result = run(Path(sys.argv[1]), int(sys.argv[2]), auto_resume=True, quiet=False,
             recording=Recording(checkpoint_steps=7))
print("done", result.step)
"""

BEGUN = replace(CORPUS, general=CORPUS.train.upper())
"""With a more general text to begin with."""


@pytest.mark.parametrize("options", [
    {}, {"recipe": replace(RECIPE, carry_state=True)}, {"corpus": BEGUN}])
def test_interrupted_run_goes_on_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", 25, **options)
    recorder = Recorder(stop_at=11)
    stopped = run(tmp_path / "cut", 25, **options, reporter=recorder)
    assert (stopped.interrupted, stopped.step) == (True, 11)
    assert "interrupted at step 11" in recorder.messages[-1]
    resumed = run(tmp_path / "cut", 25, resume=True, **options)
    assert not resumed.interrupted
    assert_same_weights(resumed.model, whole.model)
    assert (resumed.train_bpb, resumed.heldout_bpb) == (whole.train_bpb, whole.heldout_bpb)
    rows = [read_metrics(tmp_path / name / "metrics.csv") for name in ("whole", "cut")]
    for column in ("step", "tokens", "train_bpb", "lr"):
        assert rows[0][column] == pytest.approx(rows[1][column], rel=1e-5)


def test_auto_resume_starts_without_a_checkpoint_and_after_the_end_does_nothing(
    tmp_path: Path,
) -> None:
    first, again = (run(tmp_path, 5, auto_resume=True) for _ in range(2))
    assert (again.step, again.interrupted) == (5, False)
    assert again.heldout_bpb == first.heldout_bpb
    assert_same_weights(first.model, again.model)


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    plain = run(tmp_path)
    other_text = Corpus("sparrows", CORPUS.train + b"!", CORPUS.heldout)
    for change, message in (
            ({"seed": 3}, r"checkpoint\.pt: it was trained with seed 0, not 3"),
            ({"recipe": replace(RECIPE, lr=0.02, window=20)},
             r"lr 0\.01, not 0\.02; window 40, not 20"),
            ({"config": replace(CONFIG, d=20)}, r"it was trained with d 16, not 20\. Resume"),
            ({"corpus": other_text}, "text swallows, not sparrows"),
            ({"corpus": replace(other_text, name="swallows")}, "another text of the name swallows"),
    ):
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path, 4, resume=True, **change)
    assert run(tmp_path, 4, resume=True, corpus=replace(CORPUS, name="the same")).step == 4
    assert run(tmp_path, corpus=BEGUN, overwrite=True).train_bpb != plain.train_bpb
    for other, said in ((CORPUS, "None"), (replace(BEGUN, general=CORPUS.train), r"\w+")):
        with pytest.raises(CheckpointError, match=rf"general text \w+, not {said}"):
            run(tmp_path, 4, corpus=other, resume=True)


@pytest.mark.slow
def test_killed_run_goes_on_exactly(tmp_path: Path) -> None:
    killed, steps = tmp_path / "killed", 120

    def child() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CHILD, killed, str(steps)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    metrics, deadline = killed / "metrics.csv", time.monotonic() + 120
    with child() as first:
        try:
            while not metrics.exists() or max(read_metrics(metrics)["step"], default=0) < 50:
                assert first.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            first.kill()
    assert first.returncode == -signal.SIGKILL
    assert 7 <= load_checkpoint(killed).step < steps
    with child() as second:
        output, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    assert "resumed" in errors
    assert output.endswith(f"done {steps}\n")
    whole = run(tmp_path / "whole", steps)
    assert_same_weights(load_checkpoint(killed).weights, whole.model.state_dict())


def test_the_hint_after_an_interruption_is_a_command_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = TrainState.advance

    def interrupted_after_two(self: TrainState, *args: Any, **options: Any) -> None:
        step(self, *args, **options)
        if self.step % 2 == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainState, "advance", interrupted_after_two)
    command = ("train", "--steps", 9, "--quiet", "-o", tmp_path, *settings(
        d=16, layers=1, dff=16, batch=1, window=8, heldout_bytes=256))
    with_resume = f"go on with the same command and --resume -o {tmp_path}"
    for options, hint, done in (
            ((), with_resume, 2), (("--overwrite",), f"{with_resume} in place of --overwrite", 2),
            (("--resume",), with_resume, 4), (("--auto-resume",), "go on with the same command", 6),
    ):
        code, _, err = run_command(capsys, *command, *options)
        assert code == 130
        assert hint in err.split("\n")
        assert load_checkpoint(tmp_path).step == done
