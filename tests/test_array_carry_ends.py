"""Opening the ends of carry chains."""

from __future__ import annotations

import copy

import pytest

from sterna.hw.flow.netlist import CarryEnds, free_carry_ends


def cell(init0: int, carry_in, carry_out: int, s0: int, **pins) -> dict:
    connections = {f"{pin}{side}": ["0"] for pin in "ABCD" for side in "01"}
    connections |= {"CIN": [carry_in], "COUT": [carry_out], "S0": [s0], "S1": [s0 + 1]}
    return {"type": "CCU2C", "connections": connections | pins, "parameters": {
        "INIT0": f"{init0:016b}", "INIT1": f"{0x6666:016b}",
        "INJECT1_0": "NO", "INJECT1_1": "NO"}}


def netlist(*cells: dict) -> dict:
    return {"modules": {"top": {
        "ports": {"sum": {"direction": "output", "bits": [31, 40]}},
        "cells": {f"cell{index}": each for index, each in enumerate(cells)}}}}


def test_both_ends_of_a_guarded_chain_are_opened():
    design = netlist(cell(0, "0", 20, 30), cell(0x6666, 20, 21, 40))
    assert free_carry_ends(design, "top") == CarryEnds(inputs=1, outputs=1)
    first, second = (each["connections"] for each in design["modules"]["top"]["cells"].values())
    assert (first["CIN"], first["COUT"]) == (["x"], [20])
    assert (second["CIN"], second["COUT"]) == ([20], ["x"])


def test_a_carry_that_comes_from_an_input_of_the_half_is_guarded():
    # Contents 000A with D at 1: never passes on, starts with A.
    assert free_carry_ends(netlist(cell(0x000A, "0", 20, 50, A0=[7], D0=["1"])), "top").inputs == 1
    assert free_carry_ends(netlist(cell(0x000A, "0", 20, 50, A0=[7], D0=[8])), "top").inputs == 0


@pytest.mark.parametrize("changed", [
    cell(0x6666, "0", 20, 50, A0=[7]),      # adds: the carry matters
    cell(0, "0", 20, 40),                   # shows its carry
    cell(0, 19, 20, 50),                    # a carry from elsewhere
])
def test_an_input_that_matters_stays(changed):
    design = netlist(changed)
    before = copy.deepcopy(changed["connections"]["CIN"])
    assert free_carry_ends(design, "top").inputs == 0
    assert changed["connections"]["CIN"] == before


def test_a_carry_that_is_read_stays():
    design = netlist(cell(0, "0", 40, 50))
    assert free_carry_ends(design, "top").outputs == 0


def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="no module other"):
        free_carry_ends(netlist(), "other")
