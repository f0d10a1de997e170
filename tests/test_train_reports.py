"""What a training run tells: its metrics file, and what it shows while it goes on."""

import csv
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from sterna.model.training.metrics import (
    COLUMNS,
    MetricsWriter,
    draw_loss,
    loss_limits,
    plot_loss,
    read_metrics,
)
from sterna.model.training.progress import (
    BarReporter,
    LineReporter,
    TrainProgress,
    default_reporter,
)


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
