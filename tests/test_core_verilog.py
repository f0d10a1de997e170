"""The emitted folder of the core: lint, what its manifest says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from simulated_cores import SHAPES, Shape

from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.tools import verilator_environment
from sterna.hw.oldcore.control import prompt_layout, token_layout
from sterna.hw.oldcore.core_product import CORE_MODULE
from sterna.hw.oldcore.plan.image import build_image, weight_request_layout
from sterna.hw.oldcore.trace import Tap, trace_layout

PORTS = [
    {}, {"trace": True}, {"external_weights": True, "logits": False},
    {"external_weights": True, "trace": True},
]
VARIANTS = [(SHAPES[1], PORTS[1]), (SHAPES[0], PORTS[0]), (SHAPES[3], PORTS[2]),
            (SHAPES[10], PORTS[3]), (SHAPES[9], PORTS[0])]


def emit(shape: Shape, folder: Path, ports: dict[str, bool]) -> EmittedUnit:
    return emit_verilog(
        shape.model(), "core", folder, rows=shape.rows, cols=shape.cols, sequences=shape.sequences,
        quant_lanes=shape.quant_lanes, **ports)


@pytest.mark.parametrize(("shape", "ports"), [
    # One, with its trace, is enough while working.
    pytest.param(shape, ports, id="-".join([shape.name, *ports]),
                 marks=pytest.mark.long if number else pytest.mark.slow)
    for number, (shape, ports) in enumerate(VARIANTS)])
def test_the_core_lints_clean(shape: Shape, ports: dict[str, bool], tmp_path: Path) -> None:
    emitted = emit(shape, tmp_path / "core", ports)
    done = subprocess.run(
        ["verilator", "--lint-only", "-Wall", "--top-module", CORE_MODULE, "sterna.vlt",
         f"{CORE_MODULE}.v"], cwd=emitted.folder, env=verilator_environment(),
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_says_where_every_bit_is(tmp_path: Path) -> None:
    shape = SHAPES[1]
    emitted = emit(shape, tmp_path / "core", {"trace": True, "external_weights": True})
    manifest = json.loads((emitted.folder / "params.json").read_text())
    image = build_image(shape.model(), emitted.params)
    for stream, layout in (
        ("prompts__1", prompt_layout(emitted.params)), ("tokens__0", token_layout(emitted.params)),
        ("weight_requests", weight_request_layout(image)),
    ):
        stated = [(each["name"], each["low"], each["high"]) for each in
                  manifest["payloads"][stream]]
        assert stated == [(each.name, each.low, each.high) for each in field_bits(layout)]
    assert list(manifest["trace"]) == [tap.name.lower() for tap in Tap]
    widths = {port["name"]: port["width"] for port in manifest["ports"]}
    assert widths["taps"] == trace_layout(image).size
    assert widths["control__1__limit"] == 16
    assert manifest["params"]["config"] == shape.config.to_json()
    assert "weights" not in manifest["memory_bits"]
    lines = (emitted.folder / "weights.hex").read_text().split()
    assert [int(line, 16) for line in lines] == image.weights
