"""What commands show while they work."""

import io
import re
import threading
import time

import pytest
from rich.console import Console

from sterna.cli.terminal import console
from sterna.cli.terminal.console import Stages


def test_stages_are_said_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages() as stage:
        stage("one")
        assert capsys.readouterr() == ("", "one\n")     # at once, not at the end
        stage("two [bold]")
        stage.detail("half of it")
        stage("three", quick=True)
    assert capsys.readouterr() == ("", "two [bold]\n")
    with Stages(quiet=True) as stage:
        stage("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_long_stage_says_that_it_is_at_work_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "_REPEAT_S", 0.05)
    said = ""
    with Stages() as stage:
        stage("long")
        deadline = time.monotonic() + 30
        while said.count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capsys.readouterr().err
        stage("next")
    assert re.match(r"long\nlong: \d+ s\nlong: \d+ s\n", said)
    capsys.readouterr()
    time.sleep(0.3)
    assert capsys.readouterr().err == ""        # nothing goes on after it


@pytest.mark.parametrize("terminal", [False, True])
def test_stages_end_with_what_they_surround(
    monkeypatch: pytest.MonkeyPatch, terminal: bool,
) -> None:
    monkeypatch.setattr(
        console, "_notes", Console(file=io.StringIO(), force_terminal=terminal, **console._PLAIN))
    threads = threading.active_count()

    def be_interrupted() -> None:
        with Stages() as stage:
            stage("long")
            assert threading.active_count() == threads + 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    deadline = time.monotonic() + 10
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stage_on_a_terminal_has_a_clock_and_leaves_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "_notes", Console(
            file=screen, force_terminal=True, width=80, color_system=None, **console._PLAIN))
    with Stages() as stage:
        stage("first [bold]")
        time.sleep(1.5)
        stage("second")
        stage.detail("iteration 3")
        time.sleep(0.6)
        stage("third", quick=True)
    first, second = screen.getvalue().split("second", 1)
    assert "first [bold] 0:00:00" in first
    assert "first [bold] 0:00:01" in first
    assert re.search(r"first \[bold\] \(\d+\.\d s\)\n", first)
    assert second.startswith((" 0:00:00", ": iteration 3 0:00:00"))     # the clock begins again
    assert ": iteration 3 0:00:00" in second
    assert re.search(r"second \(\d+\.\d s\)\n", second)
    assert "third (" not in second
