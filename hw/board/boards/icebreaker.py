"""1BitSquared iCEBreaker with an iCE40 UP5K."""

from __future__ import annotations

from types import MappingProxyType

from amaranth_boards.icebreaker import ICEBreakerPlatform

from sterna.hw.board.board import Board
from sterna.hw.fpga.families import target_named

__all__ = ["BOARD"]

_UP5K = target_named("ice40-up5k")

BOARD = Board(
    "icebreaker", "1BitSquared iCEBreaker, Lattice iCE40 UP5K", ICEBreakerPlatform, _UP5K,
    {"clk": ("clk12", 0, None), "rx": ("uart", 0, "rx"), "tx": ("uart", 0, "tx"),
     "led": ("led_g", 0, None)},
    clock_hz=12_000_000, baud=115_200,
    sizes=MappingProxyType({"rows": 1, "cols": 8, "quant_lanes": 1, "compact": True}),
    network_sizes=_UP5K.family.small, fitting="micro")
