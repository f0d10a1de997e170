"""Draw the handshake of a stream, from a simulation of the ternary array.

The signals of ``clk``, ``beats`` and ``sums`` are recorded in Amaranth's simulator, cycle by
cycle, while the consumer pauses; WaveDrom draws them. The SVG also holds its source as WaveJSON,
so that a test can compare it with another simulation.

    pip install yowasp-wavedrom
    python benchmarks/handshake.py -o docs/handshake.svg
"""

from __future__ import annotations

import argparse
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import beat_payloads, pack_projection
from sterna.model.files import write_atomically

__all__ = ["drawn_waves", "picture", "waves"]

CYCLES = 14
PAUSES = (5, 6, 7)
"""Cycles in which the consumer is not ready."""

_SOURCE = '<desc id="wavejson">'


def waves() -> dict[str, Any]:
    """Two rows of three beats through an array of one row and four columns, as WaveJSON."""
    params = MacParams(rows=1, cols=4, max_columns=12)
    weight = np.array([[1, -1, 0, 1] * 3, [-1, -1, 1, 1] * 3], dtype=np.int8)
    acts = np.arange(1, 13)
    payloads = beat_payloads(pack_projection(weight, params), acts, params)
    array = TernaryMacArray(params)
    seen: list[tuple[int, ...]] = []

    async def bench(ctx: Any) -> None:
        sent = 0
        for cycle in range(CYCLES):
            ctx.set(array.beats.valid, sent < len(payloads))
            if sent < len(payloads):
                ctx.set(array.beats.payload.as_value(), payloads[sent])
            ctx.set(array.sums.ready, cycle not in PAUSES)
            _, _, taken, last, valid, total = await ctx.tick().sample(
                array.beats.ready, array.beats.payload.last, array.sums.valid,
                array.sums.payload[0])
            seen.append((sent < len(payloads), taken, sent if sent < len(payloads) else -1,
                         last, valid, cycle not in PAUSES, total))
            sent += int(sent < len(payloads) and taken)

    run_bench(array, bench)
    offered, ready, beat, last, valid, taking, total = zip(*seen, strict=True)
    return {"signal": [
        {"name": "clk", "wave": "p" + "." * (CYCLES - 1)},
        {},
        {"name": "beats__valid", "wave": _bits(offered)},
        {"name": "beats__ready", "wave": _bits(ready)},
        _data("beats__payload", offered, [f"b{each}" for each in beat], "="),
        {"name": "beats__payload.last", "wave": _bits([o and each for o, each in
                                           zip(offered, last, strict=True)])},
        {},
        {"name": "sums__valid", "wave": _bits(valid)},
        {"name": "sums__ready", "wave": _bits(taking)},
        _data("sums__payload", valid, [str(each) for each in total], "5"),
    ], "head": {"tick": 0}, "config": {"hscale": 1}}


def _bits(values: Any) -> str:
    """A wave of a bit: a dot where it does not change."""
    text, before = "", None
    for value in map(int, values):
        text += "." if value == before else str(value)
        before = value
    return text


def _data(name: str, valid: Any, labels: list[str], colour: str) -> dict[str, Any]:
    """A wave of a payload: without a value where it is not valid."""
    wave, data, before = "", [], None
    for is_valid, label in zip(valid, labels, strict=True):
        now = label if is_valid else "x"
        wave += "." if now == before else (colour if is_valid else "x")
        if is_valid and now != before:
            data.append(label)
        before = now
    return {"name": name, "wave": wave, "data": data}


def picture(source: dict[str, Any]) -> str:
    """Draw WaveJSON on white paper; return SVG that holds its source."""
    from yowasp_wavedrom import render

    svg = str(render(source))
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    held = f"{_SOURCE}{html.escape(json.dumps(source), quote=False)}</desc>"
    return re.sub(r"(<svg[^>]*>)", rf"\1{held}{paper}".replace("\\u", "\\\\u"), svg, count=1) + "\n"


def drawn_waves(svg: str) -> dict[str, Any]:
    """The WaveJSON that a picture was drawn from."""
    found = svg.split(_SOURCE)[1].split("</desc>")[0]
    source = json.loads(html.unescape(found))
    assert isinstance(source, dict)
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.svg")
    write_atomically(parser.parse_args().output, picture(waves()))


if __name__ == "__main__":
    main()
