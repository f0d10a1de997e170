"""What is emitted maps with the synthesis scripts of the user's own Yosys, without help."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sterna.hw import emit_mlgru
from sterna.hw.emit.tools import run_yosys
from sterna.model.profile import C12


@pytest.mark.parametrize(("style", "script", "cells"), [
    ("generic", "synth_ice40", {"SB_LUT4"}), ("ecp5-table", "synth_ecp5", {"TRELLIS_DPR16X4"}),
    ("xc7-pair", "synth_xilinx -family xc7", {"LUT6_2"})])
def test_a_layer_maps_from_the_list_for_synthesis(style, script, cells, tmp_path):
    rng = np.random.default_rng(1)
    gates = [rng.integers(-1, 2, (3, 5)) for _ in range(3)]
    folder = emit_mlgru(
        *gates, rng.integers(-1, 2, (5, 3)), tmp_path / "mlgru", profile=C12, rows=1,
        style=style).folder
    moved = shutil.move(folder, tmp_path / "elsewhere")
    sources = " ".join(f"elsewhere/{name}"
                       for name in (Path(moved) / "synthesis.f").read_text().split())
    run_yosys(tmp_path, f"read_verilog {sources}\n{script} -top mlgru\n"
                        f"tee -o cells.json stat -json\n")
    found = json.loads((tmp_path / "cells.json").read_text())["design"]["num_cells_by_type"]
    assert cells <= found.keys()
    assert not any(kind.startswith("$") for kind in found.keys() - {"$scopeinfo"})
