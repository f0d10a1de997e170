"""The emitted folder of the core: lint, what its manifest says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from simulated_cores import SHAPES, Shape, params_of

from sterna.hw.core.compute.core import logit_layout
from sterna.hw.core.compute.sequences import prompt_layout, token_layout
from sterna.hw.core.compute.trace import lanes_of, trace_layout
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.linear import pack_image
from sterna.hw.core.product.core_product import CORE_MODULE, core_design
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.tools.process import verilator_environment

VARIANTS: list[tuple[Shape, dict]] = [
    (SHAPES[1], {"trace": True, "sequences": 4}), (SHAPES[0], {"port_bits": 64}),
    (SHAPES[3], {"compact": True, "rows": 1, "post_lanes": 1}), (SHAPES[9], {"sequences": 2}),
]


def emit(shape: Shape, folder: Path, sizes: dict) -> EmittedUnit:
    model = shape.model()
    return emit_component(model, core_design(model, params_of(model, **sizes)), folder)


@pytest.mark.parametrize(("shape", "sizes"), [
    # One, with its trace, is enough while working.
    pytest.param(shape, sizes, id="-".join([shape.name, *sizes]),
                 marks=pytest.mark.long if number else pytest.mark.slow)
    for number, (shape, sizes) in enumerate(VARIANTS)])
def test_the_core_lints_clean(shape: Shape, sizes: dict, tmp_path: Path) -> None:
    emitted = emit(shape, tmp_path / "core", sizes)
    done = subprocess.run(
        ["verilator", "--lint-only", "-Wall", "--top-module", CORE_MODULE, "sterna.vlt",
         f"{CORE_MODULE}.v"], cwd=emitted.folder, env=verilator_environment(),
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_says_where_every_bit_is(tmp_path: Path) -> None:
    emitted = emit(SHAPES[1], tmp_path / "core", {"trace": True, "port_bits": 32})
    params = emitted.params
    manifest = json.loads((emitted.folder / "params.json").read_text())
    for stream, layout in (("prompts", prompt_layout(params)), ("tokens", token_layout(params)),
                           ("logits", logit_layout(params))):
        stated = [(each["name"], each["low"], each["high"]) for each in
                  manifest["payloads"][stream]]
        assert stated == [(each.name, each.low, each.high) for each in field_bits(layout)]
    assert list(manifest["trace"]) == [lane.name for lane in lanes_of(params)]
    widths = {port["name"]: port["width"] for port in manifest["ports"]}
    assert widths["taps"] == trace_layout(params).size
    assert widths["data__payload"] == 32
    assert manifest["params"]["limits"]["program"][0]["columns"] == SHAPES[1].config.d
    image = pack_image(build_image(SHAPES[1].model(), params))
    words = (emitted.folder / "image.hex").read_text().split()
    assert b"".join(int(word, 16).to_bytes(4, "little") for word in words) == image
    assert not (emitted.folder / "vectors.json").exists()
