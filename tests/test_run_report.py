"""What a run records: shares of codes, samples, TensorBoard's events and the page of all of it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal
from page_checks import check_page
from test_train import CONFIG, CORPUS, RECIPE

from sterna.cli.reports.run_page import write_run_report
from sterna.model.training.metrics import CodeShares, CodesWriter, read_codes, read_metrics
from sterna.model.training.progress import TrainProgress, TrainReporter
from sterna.model.training.recipe import Execution, Recording
from sterna.model.training.record import SampleWriter, read_samples
from sterna.model.training.run_folder import RunFolder
from sterna.model.training.train import train


def test_a_run_leaves_what_its_report_tells(tmp_path: Path) -> None:
    recording = Recording(sample_every=60, command=("sterna", "train", "--steps", "100"),
                          heldout_bytes=500, heldout_evaluations=2)
    folder = RunFolder(tmp_path / "a run")
    train(CONFIG, CORPUS, run_dir=folder.path, steps=100, recipe=RECIPE, quiet=True,
          recording=recording, execution=Execution(threads=1))
    columns = read_metrics(folder.metrics)
    watched = [share for share in columns["flips"] if share == share]
    assert len(watched) == 10
    assert all(0.0 < share < 0.2 for share in watched)
    (step, shares), = read_codes(folder.codes).items()
    assert (step, len(shares)) == (100, 2 * 7 + 1)
    assert list(read_samples(folder.samples)) == [60]
    assert json.loads(folder.description.read_text())["command"][:2] == ["sterna", "train"]

    path = write_run_report(folder)
    page = path.read_text(encoding="utf-8")
    assert path == folder.report
    check_page(page)
    for said in ("sterna train --steps 100", "layers.1.channel.down", "Text while training",
                 "bits per byte", "learning rate", "changed by a step", "weight_decay", "torch",
                 "computed with"):
        assert said in page, said
    assert not re.search(r'(?:src|href)="http', page)


def test_a_page_leaves_out_what_a_run_did_not_write(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    train(CONFIG, CORPUS, run_dir=tmp_path, steps=2, recipe=RECIPE, quiet=True,
          execution=Execution(threads=1), recording=Recording(heldout_bytes=500))
    for path in (folder.codes, folder.description):
        path.unlink()
    page = write_run_report(folder, tmp_path / "other.html").read_text(encoding="utf-8")
    assert "Ternary codes" not in page
    assert "Projections" in page


def test_codes_of_a_resumed_run_are_kept_up_to_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    writer = CodesWriter(path)
    for step in (100, 200, 300):
        writer.add(step, {"head": CodeShares(step / 1e6, 0.25)})
    writer.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write("400,head,0.1,0.2")      # killed: it was to be 0.25
    assert list(read_codes(path)) == [100, 200, 300]
    CodesWriter(path, resume_step=200).close()
    assert read_codes(path) == {step: {"head": CodeShares(step / 1e6, 0.25)}
                                for step in (100, 200)}
    path.write_text("step,projection,flips,zeros\nx,head,0,0\n1,head,0,0\n")
    with pytest.raises(ValueError, match=r"codes\.csv, line 2"):
        read_codes(path)


def test_samples_are_read_back_whatever_the_model_wrote(tmp_path: Path) -> None:
    path = tmp_path / "samples.txt"
    path.write_bytes(b"--- step 10 ---\nThe a\r--- step 7 ---\n\n--- step 20 ---\nThe c\n\n")
    first = {10: "The a\r--- step 7 ---"}
    assert read_samples(path) == first | {20: "The c"}
    SampleWriter(path, resume_step=10).close()
    assert read_samples(path) == first


def test_tensorboard_gets_the_same_figures(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = RunFolder(tmp_path)
    train(CONFIG, CORPUS, run_dir=tmp_path, steps=20, recipe=RECIPE, quiet=True,
          execution=Execution(threads=1),
          recording=Recording(heldout_bytes=500, heldout_evaluations=1, tensorboard=True))
    events = accumulator.EventAccumulator(str(folder.tensorboard)).Reload()
    losses = {each.step: each.value for each in events.Scalars("train_bpb")}
    columns = read_metrics(folder.metrics)
    assert losses == pytest.approx(dict(zip(columns["step"], columns["train_bpb"], strict=True)),
                                   abs=1e-4)
    assert "zeros" in events.Tags()["scalars"]


def test_without_its_package_tensorboard_is_refused_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    train(CONFIG, CORPUS, run_dir=tmp_path, steps=1, recipe=RECIPE, quiet=True,
          recording=Recording(heldout_bytes=500))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"needs the package tensorboard: .*tensorboard\]"):
        train(CONFIG, CORPUS, run_dir=tmp_path, steps=2, recipe=RECIPE, quiet=True, overwrite=True,
              recording=Recording(tensorboard=True))
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_what_a_run_left_stays_until_the_checkpoint_of_the_one_that_replaces_it(
        tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recording = Recording(heldout_bytes=500, sample_every=20, command=("first",))
    options: dict[str, Any] = {"run_dir": tmp_path, "execution": Execution(threads=1)}
    train(CONFIG, CORPUS, **options, steps=20, recipe=RECIPE, quiet=True, recording=recording)
    write_run_report(folder)
    before = contents(tmp_path)
    with pytest.raises(FloatingPointError):
        train(CONFIG, CORPUS, **options, steps=500, recipe=replace(RECIPE, lr=1e38),
              overwrite=True, quiet=True)
    assert contents(tmp_path) == before

    class Looks(TrainReporter):
        """The files before and after the first checkpoint."""

        def __init__(self) -> None:
            self.found: dict[int, dict[str, bytes]] = {}

        def update(self, progress: TrainProgress) -> None:
            self.found[progress.step] = contents(tmp_path)

    looks = Looks()
    train(CONFIG, CORPUS, **options, steps=33, recipe=RECIPE, overwrite=True, seed=1,
          reporter=looks, recording=Recording(checkpoint_steps=15, heldout_evaluations=1))
    for step, there in looks.found.items():
        old = {name: there.get(name) == content for name, content in before.items()
               if name != "codes.csv"}       # too few steps for a row
        assert set(old.values()) == {step <= 15}, (step, old)
    assert read_metrics(folder.metrics)["step"] == [10, 20, 30, 33]
    assert sorted(contents(tmp_path)) == [
        "checkpoint.pt", "codes.csv", "loss.png", "metrics.csv", "run.json"]


def test_a_report_of_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    assert "checkpoint" in refusal(capsys, "report-run", tmp_path, "--quiet")
    assert ".html" in refusal(capsys, "report-run", tmp_path, "-o", "x.txt")
