"""What fits an FPGA, and what is advised where a design does not."""

from __future__ import annotations

import re

import pytest

from sterna.hw.catalog import UNITS
from sterna.hw.core.core_product import CORE, core_params
from sterna.hw.core.plan.core_params import COMPACT, CoreParams
from sterna.hw.flow.estimate import block_rams, estimate
from sterna.hw.flow.fit import FitError, check_fit, check_memories
from sterna.hw.flow.synth_report import BlockArea, Usage
from sterna.hw.flow.synthesis import Family, Synthesis
from sterna.hw.flow.target import (
    TARGETS,
    FpgaTarget,
    Resource,
)
from sterna.hw.flow.usual import FITTING, usual_sizes, what_fits
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.mlgru_product import MLGRU
from sterna.hw.units.norm_product import NORM
from sterna.hw.units.spec import UnitSpec
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

PARAMS = CoreParams(ModelConfig(d=16, layers=1, dff=24, vocab=32), S16, rows=2, cols=8)
BLOCKS = {
    "": BlockArea(lut=10, ff=10), "array.row0": BlockArea(lut=400, ff=300),
    "norm": BlockArea(lut=800, ff=200, dsp=16), "norm.reciprocal": BlockArea(lut=500, ff=100),
    "mlgru.lane0": BlockArea(lut=300, ff=90, block_ram=3, dsp=6),
    "weights": BlockArea(lut=10, ff=20, block_ram=1)}


def usage(target: FpgaTarget, *needed: int) -> list[Usage]:
    return [Usage(name, number, target.available[name], "nextpnr")
            for name, number in zip(target.available, needed, strict=True)]


def test_an_estimate_of_what_was_built_is_what_was_counted():
    counted = usage(TARGETS["ecp5-25k"], 2500, 720, 4, 22)
    assert estimate(PARAMS, PARAMS, TARGETS["ecp5-25k"], counted, BLOCKS) == {
        Resource.LUT: 2500, Resource.FF: 720, Resource.BLOCK_RAM: 4, Resource.DSP: 22}


def test_the_message_has_needed_available_and_what_fits():
    target = TARGETS["ecp5-25k"]
    model = random_model(PARAMS.config, S16, seed=1)
    core = core_params(model, rows=2, cols=8)
    check_fit(CORE, core, target, usage(target, 5000, 2000, 20, 28), BLOCKS)
    with pytest.raises(FitError) as error:
        check_fit(CORE, core, target, usage(target, 5000, 2000, 20, 49), BLOCKS)
    text = str(error.value)
    assert text.startswith(
        "core does not fit ecp5-25k: DSP 49 needed, 28 available (nextpnr). "
        "Nearest that fits, estimated: --rows ")
    assert "cycles per token" in text
    assert text.endswith("--target ecp5-85k has enough.")
    with pytest.raises(FitError, match=r"LUT 25,000 needed, 24,288 available.*--rows 7 --cols 64"):
        check_fit(MAC, MacParams(8, 64, 64), target,
                  usage(target, 25000, 2000, 0, 0), {})


@pytest.mark.parametrize(("spec", "sizes", "dsp", "advice"), [
    (MLGRU, {"lanes": 8}, 20, "Nearest that fits, estimated: --lanes 2."),
    (NORM, {"rows": 8, "lanes": 16}, 12, "Nearest that fits, estimated: --lanes 8."),
    # A word has 8 channels, so there are no fewer lanes.
    (NORM, {"rows": 8}, 16, ""),
    (NORM, {"rows": 8, "lanes": 16}, 20, "Not even --lanes 8 is estimated to fit."),
    (UnitSpec("bare", "", "bare", lambda model: None, MLGRU.design, None, 1), {}, 20, ""),
], ids=["mlgru", "norm", "norm at its least", "norm, still too large", "no size"])
def test_the_size_that_is_advised_is_one_that_the_unit_takes(spec, sizes, dsp, advice):
    target = TARGETS["ice40-up5k"]
    model = random_model(ModelConfig(d=128, layers=1, dff=24, vocab=32), S16, seed=1)
    with pytest.raises(FitError) as error:
        check_fit(spec, spec.params_for(model, sizes), target, usage(target, 100, 0, dsp), {})
    assert str(error.value) == (
        f"{spec.name} does not fit ice40-up5k: DSP {dsp} needed, 8 available (nextpnr)."
        f"{advice and ' '}{advice}")
    for lanes in re.findall(r"estimated: --lanes (\d+)", advice):
        spec.params_for(model, {**sizes, "lanes": int(lanes)})


MICRO = load_model("micro")


def test_sizes_are_chosen_where_the_usual_core_does_not_fit():
    chosen = usual_sizes(MICRO, CORE, TARGETS["ice40-up5k"])
    assert chosen.sizes == {"rows": 1, "cols": 8, "quant_lanes": 1, "logits": False,
                            "sampling": False, "compact": True}
    options = "--rows 1 --cols 8 --quant-lanes 1 --no-logits --no-sampling --compact"
    assert re.fullmatch(
        rf"sizes chosen for ice40-up5k: {options}; the usual core of 8 x 128 does not fit: "
        rf"block RAM \d+ needed \(estimated\), 30 available", chosen.reason)
    params = CORE.params_for(MICRO, chosen.sizes)
    assert all(getattr(params, name) == value for name, value in COMPACT.items())
    assert params.compact
    assert not CORE.params_for(MICRO, {}).compact
    check_memories(CORE, params, TARGETS["ice40-up5k"])
    # A unit alone gets what it has in that core.
    assert usual_sizes(MICRO, MAC, TARGETS["ice40-up5k"]).sizes == {"rows": 1, "cols": 8}
    assert usual_sizes(MICRO, NORM, TARGETS["ice40-up5k"]).sizes == {"rows": 1, "lanes": 1}
    assert usual_sizes(MICRO, MLGRU, TARGETS["ice40-up5k"]).sizes == {"lanes": 1}


def test_sizes_are_left_alone_where_the_usual_core_fits_or_none_does():
    tiny = load_model("tiny")
    for model, target in ((tiny, "ecp5-85k"), (tiny, "ice40-up5k"), (tiny, "xc7"), (MICRO, "xc7")):
        assert usual_sizes(model, CORE, TARGETS[target]) is None
    # Profile S16 wants more multipliers than a UP5K has.
    assert usual_sizes(random_model(MICRO.config, S16, seed=1), CORE,
                       TARGETS["ice40-up5k"]) is None
    # So does a unit alone: a small one is no nearer to a core that fits.
    assert usual_sizes(tiny, MAC, TARGETS["ecp5-25k"]) is None


@pytest.mark.parametrize("model", [
    MICRO, random_model(MICRO.config, S16, seed=1), load_model("tiny"),
    random_model(ModelConfig.named("small"), S16, seed=1)],
    ids=["micro", "micro S16", "tiny", "small"])
def test_the_sizes_chosen_for_any_unit_are_its_own(model):
    for target in TARGETS.values():
        core = usual_sizes(model, CORE, target)
        for spec in UNITS.values():
            chosen = usual_sizes(model, spec, target)
            assert (chosen is None) == (core is None)
            if chosen is not None:
                assert chosen.sizes
                spec.params_for(model, chosen.sizes)
                assert ("as in a core that fits" in chosen.reason) == (spec is not CORE)


def test_what_fits_is_named_as_options_as_a_target_or_as_a_model():
    sizes = usual_sizes(MICRO, CORE, TARGETS["ecp5-25k"]).sizes
    assert what_fits(MICRO, CORE, TARGETS["ecp5-25k"], {"rows": 4}) == (
        " Without sizes those are taken that fit: --rows 1 --cols 64 --quant-lanes 4.")
    # What does not fit is not advised, whether it was chosen or given.
    for tried in (sizes, {**sizes, "logits": True}):
        assert what_fits(MICRO, CORE, TARGETS["ecp5-25k"], tried) == (
            " The next larger device with room for a core of this model: --target ecp5-85k. A "
            "bundled model that fits: sterna synth micro --target ecp5-25k.")
    assert what_fits(load_model("tiny"), CORE, TARGETS["ice40-up5k"], {}) == (
        " The next larger device with room for a core of this model: --target ecp5-85k. A "
        "bundled model that fits: sterna synth micro --target ice40-up5k.")
    for target, name in FITTING.items():
        model = load_model(name)
        chosen = usual_sizes(model, CORE, TARGETS[target])
        check_memories(CORE, CORE.params_for(model, chosen.sizes if chosen else {}),
                       TARGETS[target])


@pytest.mark.parametrize(("depth", "width", "family", "expected"), [
    (512, 36, Family.ECP5, 1), (512, 37, Family.ECP5, 2), (1024, 18, Family.ECP5, 1),
    (513, 36, Family.ECP5, 2), (16384, 1, Family.ECP5, 1), (256, 16, Family.ICE40, 1),
    (257, 16, Family.ICE40, 2), (2048, 2, Family.ICE40, 1)])
def test_block_rams_take_the_best_shape(depth, width, family, expected):
    assert block_rams(depth, width, family) == expected


def test_profile_c12_is_estimated_smaller():
    target = TARGETS["ecp5-25k"]
    counted = usage(target, 2500, 720, 4, 22)
    compact = CoreParams(PARAMS.config, C12, rows=2, cols=8)
    assert estimate(compact, PARAMS, target, counted, BLOCKS)[Resource.LUT] < 2500


def test_area_counts_the_luts_of_carries_and_lut_ram():
    synthesis = Synthesis(Family.ECP5, "Yosys", {}, {})
    assert BlockArea.of_cells(synthesis, {
        "LUT4": 10, "CCU2C": 4, "TRELLIS_DPR16X4": 2, "TRELLIS_FF": 7, "DP16KD": 1,
        "MULT18X18D": 3, "PFUMX": 9}) == BlockArea(lut=30, carry=4, ff=7, block_ram=1, dsp=3)
