"""A run of several processes is the run of one: weights, stopping, going on, losing a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from command_line import refusal, settings
from distributed_worker import CARRIED, IN_PARTS, REVERSIBLE, STEPS, STOPPED_AT, UNEVEN, run
from training_parts import FILES, SENTENCES

from sterna.model.torch.training.checkpoint import CheckpointError, load_checkpoint
from sterna.model.torch.training.distributed import meet
from sterna.model.torch.training.metrics import read_metrics

HERE = Path(__file__).parent
LAYOUTS = pytest.mark.parametrize("layout", ["ddp", "fsdp"])
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def off(found: Path, expected: Path, steps: int = STEPS) -> float:
    """The largest difference of weights, moments and carried states of two finished runs."""
    ours, theirs = load_checkpoint(found), load_checkpoint(expected)
    assert ours.step == theirs.step == steps
    pairs = [(ours.weights[name], each) for name, each in theirs.weights.items()]
    pairs += [(ours.optimizer["state"][number][name], each)
              for number, moments in theirs.optimizer["state"].items()
              for name, each in moments.items()]
    pairs += [(a, b) for mine, other in zip(ours.carried, theirs.carried, strict=True)
              for a, b in zip(mine, other, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process here, and of two by tests/distributed_worker.py."""
    folder = tmp_path_factory.mktemp("distributed")
    run(folder / "one")
    run(folder / "one parts", recipe=IN_PARTS, config=UNEVEN)
    run(folder / "one reversible", config=REVERSIBLE)
    run(folder / "one carried", recipe=CARRIED)
    for layout in ("ddp", "fsdp"):
        stopped = run(folder / f"one to {layout}", recipe=CARRIED,
                      pieces=STOPPED_AT * CARRIED.batch)
        assert stopped.step == STOPPED_AT
        run(folder / f"seed to {layout}", steps=0)
    done = subprocess.run(
        [*TORCHRUN, HERE / "distributed_worker.py", folder], capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What the worker wrote down."""
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.slow
@LAYOUTS
def test_two_halves_of_a_batch_are_the_batch(
        folder: Path, found: dict[str, Any], layout: str) -> None:
    for kind in ("", " carried", " parts"):
        assert off(folder / (layout + kind), folder / ("one" + kind)) <= 1e-6, kind
    ours, theirs = (read_metrics(folder / name / "metrics.csv") for name in (layout, "one"))
    looked = [share for share in theirs["flips"] if share == share]
    assert len(looked) == STEPS // 10
    assert max(looked) > 0.0
    for column in ("step", "tokens", "flips", "zeros"):
        assert ours[column] == pytest.approx(theirs[column], abs=2e-4, nan_ok=True), column
    assert found[f"{layout} bpb"] == pytest.approx(
        load_checkpoint(folder / "one carried").heldout_bpb, abs=1e-5)


@pytest.mark.slow
def test_blocks_gather_no_weights_for_the_backward_pass_of_codes(
        folder: Path, found: dict[str, Any]) -> None:
    """Two layers and the embedding forward; back, in floats, both layers again."""
    assert found["gathers"] == [5, 3]
    assert off(folder / "fsdp compact", folder / "compact", steps=5) <= 1e-6


@pytest.mark.slow
@LAYOUTS
def test_a_signal_to_one_process_stops_all_at_one_step_and_resuming_is_exact(
        folder: Path, found: dict[str, Any], layout: str) -> None:
    assert found[f"{layout} stopped"] == [[STOPPED_AT, 15, True]] * 2
    assert off(folder / f"{layout} resumed", folder / f"{layout} carried") == 0.0
    assert found[f"{layout} files"] == FILES


@pytest.mark.slow
def test_a_time_is_the_same_number_of_steps_for_every_process(
        folder: Path, found: dict[str, Any]) -> None:
    """One is slower than the other, is interrupted, and all go on."""
    for first, second in found["timed"]:
        assert first == second
    (cut, _), (end, _) = (first for first, _ in found["timed"])
    assert cut == STOPPED_AT < end
    rates = read_metrics(folder / "timed" / "metrics.csv")["lr"]
    assert rates[-1] < 0.5 * max(rates)
    assert off(folder / "ddp reversible", folder / "one reversible") <= 1e-6


@pytest.mark.slow
def test_the_command_ends_for_all_when_the_first_process_has_said_and_written_all(
        folder: Path, found: dict[str, Any]) -> None:
    """Else the launcher would end the first while it writes."""
    (first, second), (resumed, other) = found["commanded"]
    place = folder / "commanded" / "shards" / "a"
    assert first[1].startswith(f"{place}: {STOPPED_AT} steps, ")
    assert (first[0], second) == (143, [143, "", False])
    assert resumed[1].startswith(f"{folder / 'commanded' / 'checkpoint.pt'}: {STEPS} steps, ")
    assert (resumed[0], other) == (0, [0, "", True])


@pytest.mark.slow
def test_a_checkpoint_in_parts_that_is_damaged_is_refused_in_a_line(
        folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, there = folder / "fsdp to one" / "shards", tmp_path / "run" / "shards"
    parts = [f"a/__{rank}_0.distcp" for rank in (0, 1)]
    names = ["latest", *(f"a/{name}" for name in (".metadata", "run.pt", "sha256.json")), *parts]
    assert sorted(path.name for path in (whole / "a").iterdir()) == sorted(
        Path(name).name for name in names[1:])

    def refused(name: str) -> str:
        return refusal(capsys, "train", "--resume", "--steps", 20, "-o", there.parent, "--quiet")

    for name in names:
        content = (whole / name).read_bytes()
        for cut in {0, 1, len(content) // 2, len(content) - 1} - {len(content.strip())}:
            shutil.rmtree(there, ignore_errors=True)
            shutil.copytree(whole, there)
            (there / name).write_bytes(content[:cut])
            assert "is damaged" in refused(name), (name, cut)
        (there / name).unlink()
        assert ("missing" in refused(name)) or (
            name == "latest" and "there is no run to resume" in refused(name)), name
    shutil.rmtree(there)
    shutil.copytree(whole, there)
    for name, other in (parts, parts[::-1]):
        (there / name).write_bytes((whole / other).read_bytes())
    assert "a: __0_0.distcp is damaged" in refused(parts[0])


@pytest.mark.slow
@LAYOUTS
def test_a_run_goes_on_with_another_number_of_processes(
        folder: Path, tmp_path: Path, layout: str) -> None:
    assert off(folder / f"one to {layout}", folder / "one carried") <= 1e-6
    assert off(folder / f"seed to {layout}", folder / "one") <= 1e-6
    there = tmp_path / "run"
    shutil.copytree(folder / f"{layout} to one", there)
    shutil.copytree(there / "shards" / "a", there / "shards" / "b")     # a later one, cut off
    for path in (there / "shards" / "b").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="of several processes that is not finished"):
        load_checkpoint(there)
    run(there, recipe=CARRIED, resume=True)
    assert off(there, folder / "one carried") <= 1e-6
    assert not (there / "shards").exists()


def test_processes_that_start_anew_meet_in_spite_of_what_ended_ones_left() -> None:
    """Twice in one store: now the first comes first, now last, which finds the words of before."""
    store, words = dist.HashStore(), set()
    with ThreadPoolExecutor() as threads:
        for order in ((0, 1, 2), (1, 2, 0)):
            found = []
            for rank in order:
                found.append(threads.submit(meet, store, rank, 3))
                time.sleep(0.1)
            (word,) = {each.result(60) for each in found}
            words.add(word)
    assert len(words) == 2
    for rank in (0, 1):
        with pytest.raises(ConnectionError, match="did not find each other"):
            meet(store, rank, 2, timedelta(seconds=0.1))


@pytest.mark.slow
def test_what_cannot_be_shared_is_refused_by_every_process(found: dict[str, Any]) -> None:
    said = found["refused"]
    assert said["batch"] == ("ValueError: batch must be a multiple of the number of processes "
                             "times accumulate (2 x 1), got 3")
    assert "(2 x 4), got 4" in said["accumulate"]
    assert "parallel must be ddp or fsdp, got 'tp'" in said["layout"]
    assert "residual plain, got reversible; ddp takes both" in said["reversible"]
    assert "sample_every is for one process, got 2" in said["samples"]
    assert "ema is for one process that has all weights, got 2" in said["average"]
    assert "has the checkpoint of a run" in said["finished"]
    assert "is in use by another run, process" in said["locked"]


def processes_of(launcher: int) -> list[int]:
    """Those that it started and that train, in the order of their starts."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return sorted(int(child) for child in children
                  if b"sterna.cli" in Path(f"/proc/{child}/cmdline").read_bytes())


def steps_in(folder: Path) -> float:
    """The last step in the metrics of a run."""
    path = folder / "metrics.csv"
    return max(read_metrics(path)["step"], default=0) if path.exists() else 0


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_run_whose_processes_are_killed_ends_with_the_weights_of_one_that_was_not(
        tmp_path: Path) -> None:
    """Once the first is killed and once the second, between two checkpoints."""
    (tmp_path / "text").write_bytes(SENTENCES)
    command = [
        *TORCHRUN, "--max-restarts", "3", "-m", "--", "sterna.cli", "train", "--auto-resume",
        *settings(d=16, layers=2, dff=24, batch=4, window=40, checkpoint_steps=7,
                  heldout_bytes=2000, parallel="fsdp"),
        "--steps", "400", "--text", str(tmp_path / "text"), "--threads", "1", "-o"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True, timeout=300)
    killed = tmp_path / "killed"
    with (tmp_path / "errors").open("w+") as errors, subprocess.Popen(
            [*command, killed], stderr=errors, stdout=subprocess.PIPE) as launcher:
        for victim, step in ((0, 53), (1, 160)):
            deadline = time.monotonic() + 120
            while steps_in(killed) < step:
                assert launcher.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(processes_of(launcher.pid)[victim], signal.SIGKILL)
        launcher.wait(300)
        errors.seek(0)
        said = errors.read()
    assert launcher.returncode == 0, said
    assert said.count("resumed") == 2
    assert off(killed, tmp_path / "whole", 400) == 0.0
