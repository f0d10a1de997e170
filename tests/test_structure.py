"""The architecture as a rule: which folders may import which."""

from __future__ import annotations

from graphlib import CycleError
from pathlib import Path

import pytest
from import_graph import folder_graph, imports, layers, sources

BELOW = {
    "model": {"model"}, "export": {"model", "export"}, "hw": {"model", "hw"},
    "sim": {"model", "export", "hw", "sim"}, "cli": {"model", "export", "hw", "sim", "cli"}}


def test_data_flows_one_way_through_the_parts() -> None:
    assert [f"{source} -> {target}" for source, target in imports()
            if target.parts[0] not in BELOW[source.parts[0]]] == []


def test_no_folder_imports_back_up() -> None:
    found = layers(folder_graph())
    assert sum(map(len, found)) == len({path.parent for path in sources()})


def test_an_import_back_up_is_noticed(tmp_path: Path) -> None:
    for folder in ("hw/parts", "hw/units"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "hw/units/spec.py").write_text("from sterna.hw.parts.bits import to_bits\n")
    (tmp_path / "hw/parts/bits.py").write_text("x = 1\n")
    assert layers(folder_graph(tmp_path)) == [[Path("hw/parts")], [Path("hw/units")]]
    (tmp_path / "hw/parts/bits.py").write_text(
        "def late():\n    from sterna.hw.units.spec import UnitSpec\n")
    with pytest.raises(CycleError):
        layers(folder_graph(tmp_path))
