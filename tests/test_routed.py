"""Where cells are and how much time paths have left, read from what nextpnr writes."""

from __future__ import annotations

import json
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from sterna.hw.flow.hierarchy import Hierarchy
from sterna.hw.flow.routed import (
    PlacedCells,
    Placement,
    SlackBin,
    SlackHistogram,
    placement_of,
    slack_histogram,
)
from sterna.hw.flow.synthesis import Family
from sterna.hw.flow.target import TARGETS, Resource

LOG = """\
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


def cell(kind: str, place: str) -> dict:
    return {"type": kind, "attributes": {"NEXTPNR_BEL": place}}


def test_cells_are_counted_by_tile_resource_and_block():
    scope = {"type": "$scopeinfo", "attributes": {}, "connections": {}, "port_directions": {}}
    made = {"type": "TRELLIS_FF", "attributes": {}, "connections": {}, "port_directions": {}}
    netlist = {"modules": {"top": {"netnames": {}, "cells": {
        "norm": scope, "norm.a": made, "norm.b": made, "norm.carry": {**made, "type": "CCU2C"},
        "free": made}}}}
    written = {"modules": {
        "blackbox": {"cells": {}},
        "top": {"cells": {
            "norm.a": cell("TRELLIS_FF", "X40/Y6/SLICEA.FF0"),
            "norm.b": cell("TRELLIS_FF", "X40/Y6/SLICEA.FF1"),
            "norm.carry$CCU2_COMB0": cell("TRELLIS_COMB", "X40/Y6/SLICEC.K0"),
            "norm.carry$CCU2_COMB1": cell("TRELLIS_COMB", "X41/Y6/SLICEC.K1"),
            "free": cell("TRELLIS_FF", "X2/Y9/SLICEA.FF0"),
            "$PACKER_GND": cell("TRELLIS_COMB", "X2/Y9/SLICEA.K0"),
            "clock": cell("DCCA", "X0/Y24/DCC0")}}}}
    router = TARGETS["ecp5-25k"].router
    found = placement_of(written, router, Hierarchy(netlist, "top"))
    assert found.tiles == (
        PlacedCells(2, 9, Resource.FF, "", 1), PlacedCells(2, 9, Resource.LUT, None, 1),
        PlacedCells(40, 6, Resource.FF, "norm", 2), PlacedCells(40, 6, Resource.LUT, "norm", 1),
        PlacedCells(41, 6, Resource.LUT, "norm", 1))
    assert Placement.from_data(json.loads(json.dumps(found.as_data()))) == found


def test_the_last_histogram_of_a_log_is_read():
    found = slack_histogram(LOG)
    assert found == SlackHistogram(3, (
        SlackBin(-1781, -900, 6), SlackBin(-900, -19, 0), SlackBin(-19, 862, 12),
        SlackBin(862, 1743, 0)))
    assert SlackHistogram.from_data(json.loads(json.dumps(found.as_data()))) == found
    assert slack_histogram("Info: Routing..\n") is None


@pytest.mark.parametrize("name", [name for name, each in TARGETS.items() if each.grid])
def test_the_grid_of_a_device_is_that_of_the_router(name):
    target = TARGETS[name]
    spec = find_spec(target.router.module)
    if spec is None:
        pytest.skip(f"{target.router.package} is not installed")
    share = Path(spec.origin).parent / "share"
    if target.family is Family.ECP5:
        devices = json.loads((share / "trellis" / "database" / "devices.json").read_text())
        model = {"ecp5-25k": "LFE5U-25F", "ecp5-85k": "LFE5U-85F"}[name]
        device = devices["families"]["ECP5"]["devices"][model]
        assert target.grid == (device["max_col"] + 1, device["max_row"] + 1)
    else:
        size = {"ice40-hx8k": "8k", "ice40-up5k": "5k"}[name]
        data = (share / "ice40" / f"chipdb-{size}.bin").read_bytes()
        # The first word is where the description of the device is, which begins with its size.
        (start,) = struct.unpack_from("<i", data)
        assert target.grid == struct.unpack_from("<ii", data, start)
