"""The command line inside a test's own process."""

from __future__ import annotations

import pytest

from sterna.cli.main import main

__all__ = ["check_width", "refusal", "run", "settings"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``sterna`` with these arguments."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that bad input gets."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("sterna: ")
    return err


def check_width(text: str) -> None:
    """Refuse nothing, lines of more than 80 characters, and what was cut off to fit."""
    assert text.strip()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "…" not in text


def settings(**values: object) -> tuple[str, ...]:
    """``--set name=value`` for each, as ``sterna train`` takes them."""
    return sum((("--set", f"{name}={value}") for name, value in values.items()), ())
