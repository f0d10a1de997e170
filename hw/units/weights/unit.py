"""The unit ``weights`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.mac.unit import mac_params
from sterna.hw.units.spec import UnitSpec
from sterna.hw.units.weights.stimulus import WEIGHTS_STIMULUS
from sterna.hw.units.weights.verilog import WEIGHTS_MODULE, weights_design

__all__ = ["WEIGHTS"]


WEIGHTS = UnitSpec(
    "weights", "the memory of the packed weights",
    WEIGHTS_MODULE, mac_params, weights_design, WEIGHTS_STIMULUS, tokens=1)
