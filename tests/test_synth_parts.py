"""Parts of the flow to a placed design: what fits, progress, targets, the router, names, places."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from sterna.hw.catalog import UNITS
from sterna.hw.core.product.core_product import CORE
from sterna.hw.emit.documents import Port
from sterna.hw.flow import estimate
from sterna.hw.flow.fit import (
    FitError,
    check_fit,
    check_memories,
    options_text,
    usual_sizes,
    what_fits,
)
from sterna.hw.flow.place_route import (
    PlaceRouteError,
    RouterPhase,
    RouterStep,
    resources_of,
    route,
    step_of,
    timing_of,
)
from sterna.hw.flow.routed import (
    PlacedCells,
    SlackBin,
    SlackHistogram,
    critical_path,
    place_of_cells,
    placement_of,
    slack_histogram,
)
from sterna.hw.flow.synth import synth, wrapper_text
from sterna.hw.flow.synth_report import Usage
from sterna.hw.fpga.families import FAMILIES, TARGETS, style_for
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.families.ice40 import ICE40
from sterna.hw.fpga.family import Area, FpgaTarget, Resource
from sterna.hw.fpga.hierarchy import Hierarchy
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.mlgru_product import MLGRU
from sterna.model.cache import Cache
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

LOG = """\
Info: Packing constants..
Info: Running main analytical placer, max placement attempts per cell = 9649224.
Info:     at iteration #3, type ALL: wirelen solved = 7423, spread = 53725, legal = 69813; time
Info: Running simulated annealing placer for refinement.
Info:   at iteration #10: temp = 0.000000, timing cost = 618, wirelen = 46269
Info: Routing..
Info:       9000 |     1723       7276 |  184   816 |     16267|       0.44       7.04|
Info:     iter=4 wires=81234 overused=17 overuse=19 tmgfail=0 archfail=NA
Info: Routing complete.
"""


def test_the_log_of_nextpnr_tells_the_steps():
    steps = [step for line in LOG.splitlines() if (step := step_of(line)) is not None]
    assert steps == [
        RouterStep(RouterPhase.PACK), RouterStep(RouterPhase.PLACE),
        RouterStep(RouterPhase.PLACE, 3), RouterStep(RouterPhase.REFINE),
        RouterStep(RouterPhase.REFINE, 10), RouterStep(RouterPhase.ROUTE),
        RouterStep(RouterPhase.ROUTE, 9000, 16267), RouterStep(RouterPhase.ROUTE, 4, 17)]


def test_a_style_among_the_sizes_is_refused():
    model = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=32), S16, seed=1)
    with pytest.raises(ValueError, match="give the style as style=, not among the sizes"):
        synth(model, "xc7", unit="mac", sizes={"style": "xc7-pair"}, cache=Cache(None))


def test_styles_go_with_the_family_whose_cells_they_are_built_of():
    for wanted in ("auto", *ArrayStyle):
        for target in TARGETS.values():
            vendor = wanted.partition("-")[0]
            if vendor in ("auto", "generic", target.family.name):
                assert style_for(target, wanted) in list(ArrayStyle)
            else:
                with pytest.raises(ValueError, match="does not have: take --style auto"):
                    style_for(target, wanted)
    with pytest.raises(ValueError, match="auto or one of generic, ecp5-chain"):
        style_for(TARGETS["xc7"], "fast")


def test_luts_are_counted_once():
    # TRELLIS_COMB holds what TRELLIS_RAMW blocks, as the sums in nextpnr's log show.
    router = TARGETS["ecp5-85k"].router
    counts = resources_of(router, {
        "TRELLIS_COMB": (100, 1000), "TRELLIS_RAMW": (7, 125), "TRELLIS_FF": (50, 1000),
        "DP16KD": (3, 10), "MULT18X18D": (2, 10)})
    assert counts == {Resource.LUT: 100, Resource.FF: 50, Resource.BLOCK_RAM: 3, Resource.DSP: 2}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    def make(body: str) -> FpgaTarget:
        (tmp_path / "fake_nextpnr.py").write_text(
            "import json, os, sys, time\ndef run(arguments):\n"
            + "".join(f"    {line}\n" for line in body.splitlines()))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)
        router = replace(ECP5.router, package="fake", module="fake_nextpnr",
                         function="run", bels={})
        return FpgaTarget("fake", "", replace(ECP5, router=router), router_options=("--big",))

    return make


def test_the_router_gets_its_options_and_gives_a_report(fake, tmp_path):
    target = fake("""\
print("Info: Routing..", file=sys.stderr)
json.dump({"arguments": arguments, "netlist": open("netlist.json").read()},
          open("report.json", "w"))""")
    steps = []
    report = route(tmp_path, target, b"{}", ["--seed", "7"], progress=steps.append)
    assert report["netlist"] == "{}"
    text = " ".join(report["arguments"])
    assert text.startswith("--big --out-of-context")
    assert text.endswith("--seed 7")
    assert steps == [RouterStep(RouterPhase.ROUTE)]
    assert (tmp_path / "nextpnr.log").read_text() == "Info: Routing..\n"


def test_a_router_that_fails_says_why(fake, tmp_path):
    target = fake("""\
print("Info: hm", file=sys.stderr)
print("ERROR: Unable to place cell 'x', no BELs remaining", file=sys.stderr)
print("1 warning, 1 error", file=sys.stderr)
return 1""")
    with pytest.raises(PlaceRouteError, match="failed: Unable to place cell 'x'"):
        route(tmp_path, target, b"{}", [])


def check_ended(folder: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_a_router_that_takes_too_long_is_ended(fake, tmp_path, monkeypatch):
    target = fake("""\
open("pid", "w").write(str(os.getpid()))
time.sleep(600)""")
    monkeypatch.setattr("sterna.hw.flow.place_route._TIMEOUT_S", 1)
    with pytest.raises(PlaceRouteError, match="did not finish within 1 s"):
        route(tmp_path, target, b"{}", [])
    check_ended(tmp_path)


def test_an_interrupt_ends_the_router(fake, tmp_path):
    target = fake("""\
open("pid", "w").write(str(os.getpid()))
print("Info: Routing..", file=sys.stderr, flush=True)
time.sleep(600)""")

    def interrupt(step: RouterStep) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        route(tmp_path, target, b"{}", [], progress=interrupt)
    check_ended(tmp_path)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before       # the timer, too


def test_a_design_without_a_clock_is_refused():
    with pytest.raises(ValueError, match="no clock to time"):
        timing_of({"fmax": {}})


def cell(kind: str, source: str = "", **ports: list) -> dict:
    outputs = {"Z", "Q", "DOA0", "COUT", "S0"}
    return {
        "type": kind, "attributes": {"src": source} if source else {},
        "connections": ports,
        "port_directions": {port: "output" if port in outputs else "input" for port in ports}}


def scope(lines: str) -> dict:
    return {"type": "$scopeinfo", "attributes": {"module_src": f"design.v:{lines}"},
            "connections": {}, "port_directions": {}}


def net(bits: list[int], source: str = "", **other: int) -> dict:
    return {"bits": bits, "attributes": {"src": source} if source else {}, **other}


NETLIST = {"modules": {"top": {
    "cells": {
        "norm": scope("10.1-50.10"), "norm.root": scope("51.1-80.10"),
        "norm.x_FF": cell("TRELLIS_FF", "design.v:20.1-20.9|/share/a.v:1.1", Q=[5], DI=[9]),
        # Mapping named it after a port of the top module; its lines say what it is.
        "start_FF": cell("TRELLIS_FF", "design.v:60.1-60.9", Q=[6], DI=[8], CE=[7]),
        "start_LUT": cell("LUT4", "/share/b.v:1.1", A=[5], Z=[7]),
        "start_LUT_2": cell("LUT4", A=[7], B=[6], Z=[9]),
        "norm.root_carry": cell("CCU2C", "design.v:70.1", A0=[6], S0=[8]),
        "norm.bank.0.0": cell("DP16KD", "/share/c.v:1.1", DOA0=[10]),
    },
    "netnames": {
        "start": net([1], "design.v:2.1"),
        "norm.x": net([4, 5], "design.v:12.1", offset=3),
        "norm.root.digit": net([6], "design.v:52.1"), "digit": net([6], "design.v:3.1"),
        "norm.root_carry_S0": net([8], "design.v:70.1|/share/a.v:2.1"),
        "norm.up": net([10, 11], "design.v:13.1", upto=1),
    }}}}


def test_every_cell_belongs_to_a_block():
    hierarchy = Hierarchy(NETLIST, "top", ECP5)
    assert {name: hierarchy.block(name) for name in hierarchy.cells} == {
        "norm.x_FF": "norm", "start_FF": "norm.root", "start_LUT": "norm",
        "start_LUT_2": "norm", "norm.root_carry": "norm.root", "norm.bank.0.0": "norm"}
    assert hierarchy.area()["norm.root"] == {"TRELLIS_FF": 1, "CCU2C": 1}
    inner = Hierarchy(NETLIST, "top", ECP5, prefix="norm")
    assert inner.area().keys() == {"", "root"}
    assert inner.wire("norm.root.digit") == "root.digit"
    assert Hierarchy(NETLIST, "top", ECP5, prefix="norm.root").block("norm.x_FF") is None


def test_a_look_up_table_belongs_to_what_it_drives_through_others():
    netlist = {"modules": {"top": {"netnames": {}, "cells": {
        "norm": scope("10.1-50.10"), "a": cell("LUT4", A=[1], Z=[2]),
        "b": cell("LUT4", A=[2], B=[3], Z=[4]), "c": cell("LUT4", A=[2], Z=[3]),
        "norm.x_FF": cell("TRELLIS_FF", "design.v:20.1", DI=[4], Q=[5])}}}}
    assert Hierarchy(netlist, "top", ECP5).area() == {"norm": {"LUT4": 3, "TRELLIS_FF": 1}}


def test_a_net_is_named_by_the_wire_of_the_design():
    hierarchy = Hierarchy(NETLIST, "top", ECP5)
    assert hierarchy.wire("norm.x[4]") == "norm.x[4]"
    assert hierarchy.wire("digit") == "norm.root.digit"
    assert hierarchy.wire("norm.up[0]") == "norm.up[0]"
    assert hierarchy.wire("norm.root_carry_S0") is None
    assert hierarchy.wire("norm.x[99]") is None
    assert hierarchy.wire("$nextpnr$1") is None
    assert hierarchy.register("start_FF") == "norm.root.digit"
    assert hierarchy.register("norm.root_carry") == "norm.root.digit"
    assert hierarchy.register("start_LUT") == "norm.root.digit"


def hop(kind: str, delay: float, start: str, end: str, net: str | None = None) -> dict:
    (first, first_port), (last, last_port) = (each.split("/") for each in (start, end))
    return {"type": kind, "delay": delay, "from": {"cell": first, "port": first_port},
            "to": {"cell": last, "port": last_port}, **({"net": net} if net else {})}


def test_a_path_is_told_in_the_names_of_the_design():
    path = critical_path(Hierarchy(NETLIST, "top", ECP5), [
        hop("clk-to-q", 0.5, "norm.x_FF/Q", "norm.x_FF/Q"),
        hop("routing", 1.0, "norm.x_FF/Q", "norm.root_carry$CCU2_COMB0/A", "norm.x[4]"),
        hop("logic", 0.4, "norm.root_carry$CCU2_COMB0/A", "norm.root_carry$CCU2_COMB0/FCO"),
        hop("routing", 0.0, "norm.root_carry$CCU2_COMB0/FCO", "norm.root_carry$CCU2_COMB1/FCI",
            "norm.root_carry$CCU2_FCI_INT"),
        hop("logic", 0.1, "norm.root_carry$CCU2_COMB1/FCI", "norm.root_carry$CCU2_COMB1/F"),
        hop("routing", 2.0, "norm.root_carry$CCU2_COMB1/F", "start_FF/CE", "norm.root_carry_S0"),
        hop("setup", 0.0, "start_FF/CE", "start_FF/CE"),
    ])
    assert (path.start, path.end) == ("norm.x[4]", "norm.root.digit (enable)")
    assert [(each.kind, each.block, each.cells) for each in path.hops] == [
        ("register", "norm", 1), ("carry", "norm.root", 2), ("register", "norm.root", 1)]
    assert (path.logic_ns, path.routing_ns) == pytest.approx((1.0, 3.0))
    assert str(path) == ("norm.x[4] -> norm.root.digit (enable): 4.00 ns, 1.00 in logic and "
                         "3.00 in routing")


def test_a_memory_is_named_as_the_start_of_a_path():
    path = critical_path(Hierarchy(NETLIST, "top", ECP5), [
        hop("clk-to-q", 5.6, "norm.bank.0.0/DOA0", "norm.bank.0.0/DOA0"),
        hop("routing", 1.0, "norm.bank.0.0/DOA0", "norm.x_FF/DI", "made_up"),
        hop("setup", 0.1, "norm.x_FF/DI", "norm.x_FF/DI")])
    assert (path.start, path.end, path.hops[0].kind) == ("norm.bank", "norm.x[4]", "block RAM")


def test_a_wrapper_needs_inputs_and_outputs():
    with pytest.raises(ValueError, match="beside clk and rst"):
        wrapper_text("unit", [Port("clk", "input", 1), Port("data", "input", 3)])


SLACK_LOG = """\
Info: Slack histogram:
Info:  legend: * represents 9 endpoint(s)
Info:          + represents [1,9) endpoint(s)
Info: [   100,    200) |****+
Info: Routing..
Info: Slack histogram:
Info:  legend: * represents 3 endpoint(s)
Info:          + represents [1,3) endpoint(s)
Info: [ -1781,   -900) |**+
Info: [  -900,    -19) |+
Info: [   -19,    862) |****\x20
Info: [   862,   1743) |\x20
"""


def test_cells_are_counted_by_tile_resource_and_block():
    made = cell("TRELLIS_FF")
    netlist = {"modules": {"top": {"netnames": {}, "cells": {
        "norm": scope(""), "norm.a": made, "norm.b": made, "norm.carry": cell("CCU2C"),
        "free": made}}}}
    cells = {
        "norm.a": ("TRELLIS_FF", "X40/Y6/SLICEA.FF0"),
        "norm.b": ("TRELLIS_FF", "X40/Y6/SLICEA.FF1"),
        "norm.carry$CCU2_COMB0": ("TRELLIS_COMB", "X40/Y6/SLICEC.K0"),
        "norm.carry$CCU2_COMB1": ("TRELLIS_COMB", "X41/Y6/SLICEC.K1"),
        "free": ("TRELLIS_FF", "X2/Y9/SLICEA.FF0"),
        "$PACKER_GND": ("TRELLIS_COMB", "X2/Y9/SLICEA.K0"),
        "clock": ("DCCA", "X0/Y24/DCC0")}
    places = place_of_cells({"modules": {"blackbox": {"cells": {}}, "top": {"cells": {
        name: {"type": kind, "attributes": {"NEXTPNR_BEL": place}}
        for name, (kind, place) in cells.items()}}}})
    assert places == cells
    found = placement_of(places, TARGETS["ecp5-25k"].router, Hierarchy(netlist, "top", ECP5))
    assert found == (
        PlacedCells(2, 9, Resource.FF, "", 1), PlacedCells(2, 9, Resource.LUT, None, 1),
        PlacedCells(40, 6, Resource.FF, "norm", 2), PlacedCells(40, 6, Resource.LUT, "norm", 1),
        PlacedCells(41, 6, Resource.LUT, "norm", 1))


def test_the_last_histogram_of_a_log_is_read():
    found = slack_histogram(SLACK_LOG)
    assert found == SlackHistogram(3, (
        SlackBin(-1781, -900, 6), SlackBin(-900, -19, 0), SlackBin(-19, 862, 12),
        SlackBin(862, 1743, 0)))
    assert slack_histogram("Info: Routing..\n") is None


@pytest.mark.parametrize("name", [name for name, each in TARGETS.items() if each.grid])
def test_the_grid_of_a_device_is_that_of_the_router(name):
    target = TARGETS[name]
    share = Path(find_spec(target.router.module).origin).parent / "share"
    if target.family is ECP5:
        devices = json.loads((share / "trellis" / "database" / "devices.json").read_text())
        model = {"ecp5-25k": "LFE5U-25F", "ecp5-85k": "LFE5U-85F"}[name]
        device = devices["families"]["ECP5"]["devices"][model]
        assert target.grid == (device["max_col"] + 1, device["max_row"] + 1)
    else:
        # The first word is where the description of the device is, which begins with its size, in
        # Gowin's after two words.
        place, size_at = {
            "ice40-hx8k": ("ice40/chipdb-8k.bin", 0), "ice40-up5k": ("ice40/chipdb-5k.bin", 0),
            "gw2a-18": ("himbaechel/gowin/chipdb-GW2A-18C.bin", 8)}[name]
        data = (share / place).read_bytes()
        (start,) = struct.unpack_from("<i", data)
        assert target.grid == struct.unpack_from("<ii", data, start + size_at)


# What fits, and what is advised where a design does not ------------------------------


def usage(target: FpgaTarget, *needed: int) -> list[Usage]:
    return [Usage(name, number, target.available[name], "nextpnr")
            for name, number in zip(target.available, needed, strict=True)]


def test_the_message_has_needed_and_available():
    target = TARGETS["ecp5-25k"]
    check_fit("core", target, usage(target, 5000, 2000, 20, 28))
    with pytest.raises(FitError) as error:
        check_fit("core", target, usage(target, 5000, 2000, 20, 49))
    assert str(error.value) == (
        "core does not fit ecp5-25k: DSP 49 needed, 28 available (nextpnr).")
    with pytest.raises(FitError, match=r"LUT 90,000 needed, 24,288 available \(nextpnr\)\.$"):
        check_fit("mac", target, usage(target, 90000, 2000, 0, 0))
    # A target has words of its own, and whoever asks has advice.
    target = TARGETS["ice40-up5k"]
    with pytest.raises(FitError, match=r"^the design does not fit ice40-up5k: logic cells 5,281 "
                                       r"needed, 5,280 available \(nextpnr\)\. Take less\.$"):
        check_fit("the design", target, usage(target, 5281, 0, 0), ["take less"])


MICRO = load_model("micro")


@pytest.fixture
def few_sizes(monkeypatch):
    """A search among few cores, which finds what the search among all does."""
    monkeypatch.setattr(estimate, "_ROWS", (1, 2, 8))
    monkeypatch.setattr(estimate, "_COLS", (8, 64))
    estimate.fold.cache_clear()
    yield
    estimate.fold.cache_clear()


def test_sizes_are_chosen_where_the_usual_core_does_not_fit(few_sizes):
    chosen = usual_sizes(MICRO, CORE, TARGETS["ice40-up5k"])
    assert chosen.sizes == {"rows": 2, "cols": 8, "quant_lanes": 1, "compact": True}
    options = "--rows 2 --cols 8 --quant-lanes 1 --compact"
    assert re.fullmatch(
        rf"sizes chosen for ice40-up5k: {options}; the usual core of 8 x 64 does not fit: "
        rf"block RAM \d+ needed \(estimated\), 30 available", chosen.reason)
    params = CORE.params_for(MICRO, chosen.sizes)
    assert params.compact
    assert not CORE.params_for(MICRO, {}).compact
    check_memories(CORE, params, TARGETS["ice40-up5k"])
    # A unit alone gets what it has in that core.
    assert usual_sizes(MICRO, MAC, TARGETS["ice40-up5k"]).sizes == {"rows": 2, "cols": 8}
    assert usual_sizes(MICRO, MLGRU, TARGETS["ice40-up5k"]).sizes == {"lanes": params.cell_lanes}


def test_sizes_are_left_alone_where_the_usual_core_fits_or_none_does(few_sizes):
    tiny = load_model("tiny")
    for model, target in ((tiny, "ecp5-85k"), (tiny, "ice40-up5k"), (tiny, "xc7"), (MICRO, "xc7")):
        assert usual_sizes(model, CORE, TARGETS[target]) is None
    # No core in profile S16 was measured to fit a UP5K.
    assert usual_sizes(random_model(MICRO.config, S16, seed=1), CORE,
                       TARGETS["ice40-up5k"]) is None
    # So does a unit alone: a small one is no nearer to a core that fits.
    assert usual_sizes(tiny, MAC, TARGETS["ecp5-25k"]) is None


@pytest.mark.parametrize("model", [
    MICRO, random_model(MICRO.config, S16, seed=1), load_model("tiny")],
    ids=["micro", "micro S16", "tiny"])
def test_the_sizes_chosen_for_any_unit_are_its_own(model, few_sizes):
    for target in TARGETS.values():
        core = usual_sizes(model, CORE, target)
        for spec in [each for each in UNITS.values() if each is not NETWORK]:
            chosen = usual_sizes(model, spec, target)
            assert (chosen is None) == (core is None)
            if chosen is not None:
                assert chosen.sizes
                spec.params_for(model, chosen.sizes)
                assert ("as in a core that fits" in chosen.reason) == (spec is not CORE)


def test_a_network_has_small_sizes_on_an_ice40(few_sizes):
    vowels = load_model("vowels")
    chosen = usual_sizes(vowels, NETWORK, TARGETS["ice40-up5k"])
    assert chosen is not None
    assert NETWORK.params_for(vowels, chosen.sizes).compact
    assert chosen.reason.endswith(options_text(chosen.sizes))
    assert usual_sizes(vowels, NETWORK, TARGETS["ecp5-25k"]) is None


def test_what_fits_is_named_as_options_as_a_target_or_as_a_model(few_sizes):
    sizes = usual_sizes(MICRO, CORE, TARGETS["ecp5-25k"]).sizes
    assert what_fits(MICRO, CORE, TARGETS["ecp5-25k"], {"rows": 4}) == (
        " Without size options, sizes that fit are chosen: --rows 2 --cols 64 --quant-lanes 4.")
    assert what_fits(MICRO, MAC, TARGETS["ecp5-25k"], {"rows": 4}) == (
        " Without size options, sizes that fit are chosen: --rows 2 --cols 64.")
    # What does not fit is not advised, whether it was chosen or given.
    for tried in (sizes, {**sizes, "trace": False}):
        assert what_fits(MICRO, CORE, TARGETS["ecp5-25k"], tried) == (
            " The next larger device with room for a core of this model: --target ecp5-85k. A "
            "bundled model that fits: sterna synth micro --target ecp5-25k.")
    assert what_fits(load_model("tiny"), CORE, TARGETS["ice40-up5k"], {}) == (
        " The next larger device with room for a core of this model: --target ecp5-85k. A "
        "bundled model that fits: sterna synth micro --target ice40-up5k.")
    for target in [each for each in TARGETS.values() if each.fitting]:
        model = load_model(target.fitting)
        chosen = usual_sizes(model, CORE, target)
        check_memories(CORE, CORE.params_for(model, chosen.sizes if chosen else {}), target)


@pytest.mark.parametrize(("depth", "width", "family", "expected"), [
    (512, 36, ECP5, 1), (512, 37, ECP5, 2), (1024, 18, ECP5, 1),
    (513, 36, ECP5, 2), (16384, 1, ECP5, 1), (256, 16, ICE40, 1),
    (257, 16, ICE40, 2), (2048, 2, ICE40, 1)])
def test_block_rams_take_the_best_shape(depth, width, family, expected):
    assert family.block_rams(depth, width) == expected


@pytest.mark.parametrize(("family", "cells", "area"), [
    ("ecp5", {"LUT4": 10, "CCU2C": 4, "TRELLIS_DPR16X4": 2, "TRELLIS_FF": 7, "DP16KD": 1,
      "PDPW16KD": 1, "MULT18X18D": 3, "PFUMX": 9}, Area(lut=30, carry=4, ff=7, block_ram=2, dsp=3)),
    ("xc7", {"LUT6": 3, "CARRY4": 2, "FDRE": 5, "RAM32M": 1, "SRL16E": 1, "RAMB36E1": 1,
      "DSP48E1": 1, "MUXF7": 1, "INV": 1}, Area(lut=8, carry=2, ff=5, block_ram=2, dsp=1)),
    ("gowin", {"LUT3": 1, "ALU": 2, "RAM16SDP4": 1, "DFFRE": 3, "DFF": 1, "SDPX9B": 1, "SP": 1,
      "MULT9X9": 1, "MUX2_LUT5": 1, "OBUF": 1}, Area(lut=11, carry=2, ff=4, block_ram=2, dsp=1)),
    ("nexus", {"LUT4": 1, "WIDEFN9": 2, "DPR16X4": 1, "FD1P3IX": 3, "PDPSC16K": 1, "MULT18X18": 1,
      "VHI": 1}, Area(lut=11, ff=3, block_ram=1, dsp=1))])
def test_area_counts_the_luts_of_carries_and_lut_ram(family, cells, area):
    assert FAMILIES[family].area(cells) == area
