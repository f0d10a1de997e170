"""Area before synthesis, and sizes chosen by it."""

from __future__ import annotations

import json
import re

import pytest

from sterna.cli.main import main
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.core_product import CORE
from sterna.hw.flow import estimate
from sterna.hw.flow.estimate import estimated, fitted, fitting, fold, has_room, shape_of, sizes_of
from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.family import Resource
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

MICRO = load_model("micro")
MEASURED = estimate._measured()


def test_what_was_measured_is_estimated_within_a_tenth():
    assert len({each["kind"] for each in MEASURED}) == 10
    for each in MEASURED:
        found = fitted(each["kind"], each["shape"], MEASURED)
        for index, bound in ((0, 0.1), (1, 0.1), (2, 0.02)):
            whole = sum(area[index] for area in each["blocks"].values())
            assert found[index] == pytest.approx(whole, rel=bound, abs=0.5), each


def test_an_estimate_is_of_the_kind_and_the_shape():
    params = CORE.params_for(MICRO, {"rows": 2, "cols": 16, "style": "ecp5-chain"})
    small = estimated(params, TARGETS["ecp5-85k"])
    for changes in ({"rows": 8}, {"cols": 64}, {"quant_lanes": 16, "cols": 64}, {"sequences": 4}):
        sizes = {"rows": 2, "cols": 16, "style": "ecp5-chain"} | changes
        large = estimated(CORE.params_for(MICRO, sizes), TARGETS["ecp5-85k"])
        assert large[Resource.LUT] > small[Resource.LUT]
    assert estimated(params, TARGETS["xc7"]) is None
    assert estimated(params, TARGETS["ice40-up5k"]) is None     # only compact ones were measured
    ported = CORE.params_for(MICRO, {"port_bits": 32})
    assert estimated(ported, TARGETS["ecp5-85k"]) is None


@pytest.mark.parametrize(("target", "sequences", "budget"), [
    ("ecp5-25k", 1, {"lut": 6000}), ("ecp5-25k", 2, {"period": 300}), ("ice40-up5k", 1, {}),
    ("ecp5-85k", 1, {"period": 500, "lut": 9000})])
def test_the_core_chosen_is_the_best_of_all(target, sequences, budget, monkeypatch):
    monkeypatch.setattr(estimate, "_ROWS", (1, 2, 4))
    monkeypatch.setattr(estimate, "_COLS", (8, 32))
    fold.cache_clear()
    limits, stages = Limits.of(MICRO), MICRO.stages
    device = TARGETS[target]
    chosen = fold(limits, stages, device, sequences=sequences, **budget)
    fold.cache_clear()
    area = {params: lut for lut, params in fitting(
        limits, device, sequences=sequences, lut=budget.get("lut")) if has_room(params, device)}
    cycles = {params: cycles_per_token(params, stages) for params in area}
    period = budget.get("period")
    if period is None:
        assert (cycles[chosen], area[chosen]) == min((cycles[each], area[each]) for each in area)
    else:
        assert area[chosen] == min(area[each] for each in area if cycles[each] <= period)
    # The options say the same core.
    assert shape_of(CORE.params_for(MICRO, sizes_of(chosen))) == shape_of(chosen)


def test_the_report_chooses_sizes_and_shows_the_area(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "_ROWS", (1, 2))
    fold.cache_clear()
    assert main(["report", "micro", "--target", "ecp5-25k", "--lut", "5000", "--json"]) == 0
    area = json.loads(capsys.readouterr().out)["area"]
    assert area["target"] == "ecp5-25k"
    assert area["LUT"] <= 5000
    assert main(["report", "micro", "--target", "ecp5-85k"]) == 0
    out = capsys.readouterr().out
    params = CoreParams(Limits.of(MICRO), style="ecp5-chain")
    needed = estimated(params, TARGETS["ecp5-85k"])
    assert re.search(rf"LUT +{needed[Resource.LUT]:,} +83,640", out)
    assert "sizes: --rows 8 --cols 64" in out


@pytest.mark.parametrize(("options", "message"), [
    (["--lut", "5000"], "--lut goes with a --target"),
    (["--target", "ecp5-25k", "--lut", "100"], "no core on ecp5-25k is known to take 100 LUTs"),
    (["--target", "ecp5-25k", "--period", "9"], "is known to take 9 cycles per token at most"),
    (["--target", "ecp5-25k", "--lut", "9000", "--rows", "2"], "--rows does not go with --lut"),
    (["--target", "xc7"], "there is no estimate for this core on xc7"),
])
def test_what_cannot_be_chosen_is_refused_in_a_line(options, message, capsys):
    assert main(["report", "micro", *options]) == 2
    error = capsys.readouterr().err
    assert message in error


def test_a_model_that_fits_nowhere_has_no_core():
    large = random_model(ModelConfig(256, 2, 512, 256), S16, seed=1)
    assert fold(Limits.of(large), large.stages, TARGETS["ice40-hx8k"]) is None
