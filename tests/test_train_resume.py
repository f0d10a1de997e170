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
from test_train import CONFIG, CORPUS, RECIPE, Recorder, assert_same_weights, run

from sterna.model.corpus import Corpus
from sterna.model.training.checkpoint import CheckpointError, load_checkpoint
from sterna.model.training.metrics import read_metrics
from sterna.model.training.progress import TrainProgress
from sterna.model.training.recipe import Execution
from sterna.model.training.state import TrainState
from sterna.model.training.train import TrainResult, train

CHILD = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_train import CONFIG, CORPUS, RECIPE
from sterna.model.training.recipe import Execution, Recording
from sterna.model.training.train import train
result = train(CONFIG, CORPUS, run_dir=sys.argv[1], recipe=RECIPE, steps=int(sys.argv[2]),
               execution=Execution(threads=1), recording=Recording(checkpoint_steps=7),
               auto_resume=True)
print("interrupted" if result.interrupted else "done", result.step)
"""


def start_child(folder: Path, steps: int) -> subprocess.Popen[str]:
    """Train in another process, which resumes if it can."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD, str(folder), str(steps)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(folder: Path, step: int, child: subprocess.Popen[str]) -> None:
    """Return once the child's metrics have reached ``step``."""
    deadline = time.monotonic() + 120
    path = folder / "metrics.csv"
    while time.monotonic() < deadline:
        if path.exists() and any(row >= step for row in read_metrics(path)["step"]):
            return
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.kill()
    raise AssertionError(f"no step {step} in time: {child.communicate()}")


@pytest.mark.parametrize("carry", [False, True])
def test_interrupted_run_goes_on_exactly(tmp_path: Path, carry: bool) -> None:
    recipe = replace(RECIPE, carry_state=carry)
    whole = run(tmp_path / "whole", 25, recipe=recipe)
    recorder = Recorder(stop_at=11)
    handler = signal.getsignal(signal.SIGINT)
    stopped = train(CONFIG, CORPUS, run_dir=tmp_path / "cut", steps=25, recipe=recipe,
                    reporter=recorder, execution=Execution(threads=1))
    assert stopped.interrupted
    assert stopped.step == 11
    assert "interrupted at step 11" in recorder.messages[-1]
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = run(tmp_path / "cut", 25, resume=True, recipe=recipe)
    assert not resumed.interrupted
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())
    assert resumed.train_bpb == whole.train_bpb
    assert resumed.heldout_bpb == whole.heldout_bpb
    rows = [read_metrics(tmp_path / name / "metrics.csv") for name in ("whole", "cut")]
    for column in ("step", "tokens", "train_bpb", "lr"):
        assert rows[0][column] == pytest.approx(rows[1][column], rel=1e-5)


def test_a_run_that_began_with_general_text_goes_on_exactly_and_with_that_text_alone(
    tmp_path: Path,
) -> None:
    def trained(name: str, corpus: Corpus, **options: Any) -> TrainResult:
        return train(CONFIG, corpus, run_dir=tmp_path / name, steps=25, recipe=RECIPE, **options,
                     execution=Execution(threads=1))

    begun = replace(CORPUS, general=CORPUS.train.upper())
    whole, plain = trained("whole", begun, quiet=True), trained("plain", CORPUS, quiet=True)
    assert whole.train_bpb != plain.train_bpb
    assert trained("cut", begun, reporter=Recorder(stop_at=11)).step == 11
    for other, said in ((CORPUS, "None"), (replace(begun, general=CORPUS.train), r"\w+")):
        with pytest.raises(CheckpointError, match=rf"general text \w+, not {said}"):
            trained("cut", other, resume=True, quiet=True)
    resumed = trained("cut", begun, resume=True, quiet=True)
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())


def test_second_ctrl_c_is_not_held_back(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def update(self, progress: TrainProgress) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    impatient = Impatient()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, CORPUS, run_dir=tmp_path, steps=9, recipe=RECIPE, reporter=impatient)
    assert impatient.closed == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_auto_resume_starts_without_a_checkpoint_and_after_the_end_does_nothing(
    tmp_path: Path,
) -> None:
    first = run(tmp_path, 5, auto_resume=True)
    again = run(tmp_path, 5, auto_resume=True)
    assert again.step == 5
    assert not again.interrupted
    assert again.heldout_bpb == first.heldout_bpb
    assert_same_weights(first.model.state_dict(), again.model.state_dict())


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    run(tmp_path, 2)
    other_text = Corpus("sparrows", CORPUS.train + b"!", CORPUS.heldout)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: it was trained with seed 0, not 3"):
        run(tmp_path, 4, resume=True, seed=3)
    with pytest.raises(CheckpointError, match=r"lr 0\.01, not 0\.02; window 40, not 20"):
        run(tmp_path, 4, resume=True, recipe=replace(RECIPE, lr=0.02, window=20))
    with pytest.raises(CheckpointError, match=r"it was trained with d 16, not 20\. Resume"):
        run(tmp_path, 4, resume=True, config=replace(CONFIG, d=20))
    with pytest.raises(CheckpointError, match="text swallows, not sparrows"):
        run(tmp_path, 4, resume=True, corpus=other_text)
    with pytest.raises(CheckpointError, match="another text of the name swallows"):
        run(tmp_path, 4, resume=True, corpus=replace(other_text, name="swallows"))
    renamed = replace(CORPUS, name="the same swallows")
    assert run(tmp_path, 4, resume=True, corpus=renamed).step == 4


@pytest.mark.slow
def test_killed_run_goes_on_exactly(tmp_path: Path) -> None:
    steps = 120
    child = start_child(tmp_path / "killed", steps)
    try:
        wait_for_step(tmp_path / "killed", 50, child)
    finally:
        child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert 7 <= load_checkpoint(tmp_path / "killed" / "checkpoint.pt").step < steps
    child = start_child(tmp_path / "killed", steps)
    output, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert "resumed" in errors
    assert output.endswith(f"done {steps}\n")
    whole = run(tmp_path / "whole", steps)
    assert_same_weights(
        load_checkpoint(tmp_path / "killed" / "checkpoint.pt").weights, whole.model.state_dict())


@pytest.mark.slow
def test_ctrl_c_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    child = start_child(tmp_path, 100_000)
    wait_for_step(tmp_path, 20, child)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert "Traceback" not in errors
    found = load_checkpoint(tmp_path / "checkpoint.pt")
    assert f"interrupted at step {found.step}; " in errors
    assert output.endswith(f"interrupted {found.step}\n")
    assert found.step >= 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.pt", "codes.csv", "loss.png", "metrics.csv", "run.json"]


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
