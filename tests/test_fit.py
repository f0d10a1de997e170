"""What fits an FPGA, and what is advised where a design does not."""

from __future__ import annotations

import re

import pytest

from sterna.hw.catalog import UNITS
from sterna.hw.core.core_product import CORE
from sterna.hw.core.plan.core_params import COMPACT
from sterna.hw.flow.fit import (
    FITTING,
    FitError,
    block_rams,
    check_fit,
    check_memories,
    usual_sizes,
    what_fits,
)
from sterna.hw.flow.synth_report import BlockArea, Usage
from sterna.hw.flow.synthesis import Family, Synthesis
from sterna.hw.flow.target import (
    TARGETS,
    FpgaTarget,
)
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.mlgru_product import MLGRU
from sterna.hw.units.norm_product import NORM
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model


def usage(target: FpgaTarget, *needed: int) -> list[Usage]:
    return [Usage(name, number, target.available[name], "nextpnr")
            for name, number in zip(target.available, needed, strict=True)]


def test_the_message_has_needed_available_and_what_has_enough():
    target = TARGETS["ecp5-25k"]
    check_fit(CORE, target, usage(target, 5000, 2000, 20, 28))
    with pytest.raises(FitError) as error:
        check_fit(CORE, target, usage(target, 5000, 2000, 20, 49))
    assert str(error.value) == (
        "core does not fit ecp5-25k: DSP 49 needed, 28 available (nextpnr). --target ecp5-85k has "
        "enough.")
    with pytest.raises(FitError, match=r"LUT 90,000 needed, 24,288 available \(nextpnr\)\.$"):
        check_fit(MAC, target, usage(target, 90000, 2000, 0, 0))


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
        " Without size options, sizes that fit are chosen: --rows 1 --cols 64 --quant-lanes 4.")
    assert what_fits(MICRO, MAC, TARGETS["ecp5-25k"], {"rows": 4}) == (
        " Without size options, sizes that fit are chosen: --rows 1 --cols 64.")
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


def test_area_counts_the_luts_of_carries_and_lut_ram():
    synthesis = Synthesis(Family.ECP5, "Yosys", {}, {})
    assert BlockArea.of_cells(synthesis, {
        "LUT4": 10, "CCU2C": 4, "TRELLIS_DPR16X4": 2, "TRELLIS_FF": 7, "DP16KD": 1,
        "MULT18X18D": 3, "PFUMX": 9}) == BlockArea(lut=30, carry=4, ff=7, block_ram=1, dsp=3)
