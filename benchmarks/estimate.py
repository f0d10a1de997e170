"""Synthesise cores of many sizes, and evaluate the estimates of their area.

    python benchmarks/estimate.py [--only TEXT] [--check]

Writes the area of each block to hw/flow/measured.json, from which ``sterna.hw.flow.estimate`` fits
its estimates; then estimates each core from the others of its kind only. Existing syntheses are
reused: all of them take an hour. ``--check`` makes none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sterna.cli.terminal.tables import Table
from sterna.hw.core.product.core_product import CORE
from sterna.hw.flow import estimate
from sterna.hw.flow.synth import synth
from sterna.hw.fpga.families import TARGETS, style_for
from sterna.hw.fpga.family import Resource
from sterna.model.cache import user_cache
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model

_SMALL, _MICRO, _MID = (16, 1, 24, 64), (32, 1, 64, 128), (64, 2, 96, 256)
_COMPACT = [{"rows": 1, "cols": 8, "quant_lanes": 1, "compact": True},
            {"rows": 2, "cols": 8, "quant_lanes": 2, "compact": True},
            {"rows": 2, "cols": 16, "quant_lanes": 1, "compact": True}]
_USUAL = [(_MICRO, {"rows": 1, "cols": 64, "quant_lanes": 4}),
          (_MICRO, {"rows": 2, "cols": 16}),
          (_MID, {"rows": 4, "cols": 32}),
          (_MID, {"rows": 4, "cols": 32, "sequences": 4}),
          (_MID, {"rows": 8, "cols": 64}),
          (_MID, {"rows": 8, "cols": 64, "quant_lanes": 8, "post_lanes": 4, "cell_lanes": 2,
                  "sequences": 16}),
          (_MID, {"rows": 16, "cols": 64, "quant_lanes": 16, "post_lanes": 8, "cell_lanes": 4,
                  "sequences": 2})]
_SMALLER = [{"rows": 1, "cols": 64, "quant_lanes": 4}, {"rows": 2, "cols": 16},
            {"rows": 4, "cols": 32}, {"rows": 4, "cols": 32, "sequences": 4},
            {"rows": 8, "cols": 32}]
# No S16 core fits an iCE40.
_DESIGNS = {
    ("ecp5-85k", profile): _USUAL + [(_MICRO, sizes) for sizes in _COMPACT]
    for profile in (C12, S16)} | {
    (target, C12): [(_SMALL, sizes) for sizes in _COMPACT]
    for target in ("ice40-up5k", "ice40-hx8k")} | {
    (target, C12): [(_MICRO, sizes) for sizes in _SMALLER + _COMPACT]
    for target in ("gw2a-18", "lifcl-40")}


def designs() -> list[tuple[str, QuantizedModel, dict[str, Any]]]:
    """Targets, models and sizes to be measured."""
    return [(target, random_model(ModelConfig(*shape), profile, seed=1), sizes)
            for (target, profile), cores in _DESIGNS.items() for shape, sizes in cores]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and print how far each estimate is off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="targets and profiles with this in their name")
    parser.add_argument("--check", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    path = Path(estimate.__file__).with_name(estimate.MEASURED)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for target, model, sizes in [] if options.check else designs():
        kind = estimate.kind_of(TARGETS[target], model.profile, sizes.get("compact", False))
        if options.only not in f"{target} {kind}":
            continue
        params = CORE.params_for(model, {**sizes, "style": style_for(TARGETS[target])})
        entry = {"kind": kind, "shape": estimate.shape_of(params)}
        if any(entry.items() <= each.items() for each in kept):
            continue
        try:
            report = synth(model, target, sizes=sizes, cache=user_cache("synthesis"))
        except ValueError as error:     # synthesised, but does not fit
            report = getattr(error, "report", None)
            if report is None:
                raise
        entry["blocks"] = {name: [area.lut, area.ff, area.dsp]
                           for name, area in sorted(report.parts.items())}
        kept.append(entry)
        path.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", encoding="utf-8")
        print(f"{kind} {sizes}: {report.needed(Resource.LUT):,} LUTs by {report.usage[0].tool}",
              flush=True)
    return report_errors(kept)


def report_errors(kept: Sequence[dict[str, Any]]) -> int:
    """Print the leave-one-out error of each estimate."""
    rows, worst = [], 0.0
    for each in kept:
        others = [other for other in kept if other is not each]
        found = estimate.fitted(each["kind"], each["shape"], others)
        whole = [sum(area[index] for area in each["blocks"].values()) for index in range(3)]
        errors = [found[index] / whole[index] - 1 for index in range(2)]
        worst = max(worst, *map(abs, errors))
        shape = each["shape"]
        rows.append((each["kind"], f"{shape['rows']} x {shape['cols']}", shape["sequences"],
                     whole[0], f"{errors[0]:+.1%}", whole[1], f"{errors[1]:+.1%}", whole[2],
                     round(found[2])))
    Table("each core, estimated from the others",
          ("kind", "array", "sequences", "LUT", "off by", "FF", "off by", "DSP", "estimated"),
          rows).print()
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main())
