"""What a run records and shows: figures, shares of codes, samples, TensorBoard's events, the page
of all of it, and what is said while it goes on."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from page_checks import check_page
from rich.console import Console
from training_parts import FILES, RECIPE, Recorder, contents, run

from sterna.cli.reports.run_page import write_run_report
from sterna.model.torch.training.metrics import (
    COLUMNS,
    CodeShares,
    CodesWriter,
    MetricsWriter,
    draw_loss,
    loss_limits,
    plot_loss,
    read_codes,
    read_metrics,
)
from sterna.model.torch.training.progress import (
    BarReporter,
    LineReporter,
    TrainProgress,
    default_reporter,
)
from sterna.model.torch.training.recipe import Recording
from sterna.model.torch.training.record import SampleWriter, read_samples
from sterna.model.torch.training.run_folder import RunFolder


def test_a_run_leaves_what_its_report_tells(tmp_path: Path) -> None:
    recording = Recording(sample_every=60, command=("sterna", "train", "--steps", "100"),
                          heldout_bytes=500, heldout_evaluations=2)
    folder = RunFolder(tmp_path / "a run")
    run(folder.path, 100, recording=recording)
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
    run(tmp_path, recording=Recording(heldout_bytes=500))
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
    run(tmp_path, 20, recording=Recording(
        heldout_bytes=500, heldout_evaluations=1, tensorboard=True))
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
    run(tmp_path, 1, recording=Recording(heldout_bytes=500))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"needs the package tensorboard: .*tensorboard\]"):
        run(tmp_path, overwrite=True, recording=Recording(tensorboard=True))
    assert contents(tmp_path) == before


def test_what_a_run_left_stays_until_the_checkpoint_of_the_one_that_replaces_it(
        tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    run(tmp_path, 20, recording=Recording(
        heldout_bytes=500, sample_every=20, command=("first",)))
    write_run_report(folder)
    before = contents(tmp_path)
    with pytest.raises(FloatingPointError):
        run(tmp_path, 500, recipe=replace(RECIPE, lr=1e38), overwrite=True)
    assert contents(tmp_path) == before

    class Looks(Recorder):
        """The files before and after the first checkpoint."""

        found: dict[int, dict[str, bytes]] = {}

        def update(self, progress: TrainProgress) -> None:
            self.found[progress.step] = contents(tmp_path)

    looks = Looks()
    run(tmp_path, 33, overwrite=True, seed=1, reporter=looks,
        recording=Recording(checkpoint_steps=15, heldout_evaluations=1))
    for step, there in looks.found.items():
        old = {name: there.get(name) == content for name, content in before.items()
               if name != "codes.csv"}       # too few steps for a row
        assert set(old.values()) == {step <= 15}, (step, old)
    assert read_metrics(folder.metrics)["step"] == [10, 20, 30, 33]
    assert sorted(contents(tmp_path)) == FILES


def test_metrics_of_a_killed_run_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    for step in (10, 20, 30):
        writer.add({"step": step, "seconds": 1.0, "tokens": step, "train_bpb": 2.0,
                    "heldout_bpb": None, "lr": 1e-3})
    writer.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write("40,1")  # killed in the middle of a line
    assert read_metrics(path)["step"] == [10.0, 20.0, 30.0]
    MetricsWriter(path, resume_step=20).close()
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [list(COLUMNS), *(
        [step, "1.00", step, "2.00000", "", "0.001", *[""] * 4] for step in ("10", "20"))]
    path.write_text(path.read_text().replace("2.00000", "two"))
    with pytest.raises(ValueError, match=r"metrics\.csv, line 2: train_bpb is not a number"):
        plot_loss(path, tmp_path / "x.png", title="x")
    for content, message in ((b"a,b\n", "columns must be step, seconds"),
                             (b"", r"got \[\]"), (b"\xff\n", r"metrics\.csv: not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_metrics(path)


def test_a_spike_does_not_ruin_the_scale_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    for step in range(1, 61):
        loss = 73.25 if step == 31 else 9.5 if step == 30 else 2.0 - step / 100
        writer.add({"step": step, "seconds": step, "tokens": 1e6 * step, "train_bpb": loss,
                    "heldout_bpb": 1.9 if step == 60 else None, "lr": 1e-3})
    writer.close()
    figure = Figure()
    draw_loss(figure, path)
    axes = figure.axes[0]
    bottom, top = axes.get_ylim()
    assert 1.0 < bottom < 1.4
    assert 2.0 < top < 3.0
    # One spike of two steps: marked once at the edge, with the value of its peak.
    assert [text.get_text() for text in axes.texts] == ["73.25"]
    marks = [line for line in axes.lines if line.get_marker() == "^"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks] == [(31.0, top)]


def test_a_curve_without_a_spike_is_shown_whole() -> None:
    values = [3.0 - each / 50 for each in range(100)]
    bottom, top = loss_limits([*values, float("nan"), float("inf")])
    assert bottom < min(values)
    assert top > max(values)
    assert loss_limits([float("nan")]) == (0.0, 1.0)
    assert loss_limits([2.0, 2.0]) == (1.5, 2.5)


def test_reporters_show_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TrainProgress(0.5, 70, 3.0, 2.0, 2.5, 1234.5)
    lines = LineReporter(interval_seconds=0.0)
    lines.update(replace(progress, fraction=0.0))
    assert "left" not in capsys.readouterr().err
    lines.update(progress)
    lines.measured(16, 64)
    lines.message("done")
    lines.close()
    text = capsys.readouterr().err
    assert ("50%  step     70  loss 1.386  2.000 bpb  held-out 2.500  1,234 tokens/s  0:00:03 left"
            in text)
    assert text.endswith("25% of the held-out text is measured\ndone\n")

    quiet = default_reporter(quiet=True)
    quiet.update(progress)
    quiet.measured(16, 64)
    quiet.message("unseen")
    quiet.close()
    assert capsys.readouterr() == ("", "")

    bar = BarReporter(Console(width=120))
    bar.update(progress)
    bar.measured(16, 64)
    bar.message("a [message]")
    bar.close()
    text = capsys.readouterr().out
    assert "a [message]" in text
    assert "measuring held-out text: 25%" in text
    assert isinstance(default_reporter(), LineReporter)
