"""The picture of a handshake in the documents shows what a simulation gives."""

from __future__ import annotations

from pathlib import Path

import handshake
import pytest

SVG = Path(__file__).parents[1] / "docs" / "handshake.svg"


def test_the_waves_in_the_documents_are_those_of_a_simulation() -> None:
    waves = handshake.waves()
    assert handshake.drawn_waves(SVG.read_text(encoding="utf-8")) == waves
    rows = {row["name"]: row for row in waves["signal"] if row}
    # The rule that the picture is for: what waits does not change, and all of it passes.
    assert len(rows["beats__payload"]["data"]) == 6
    assert rows["sums__payload"]["data"] == ["21", "12"]
    assert "0" in rows["beats__ready"]["wave"]


def test_the_drawing_is_what_the_script_writes() -> None:
    pytest.importorskip("yowasp_wavedrom", reason="WaveDrom is in the extra docs")
    assert handshake.picture(handshake.waves()) == SVG.read_text(encoding="utf-8")
