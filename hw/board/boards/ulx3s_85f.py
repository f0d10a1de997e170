"""Radiona ULX3S with an ECP5 LFE5U-85F."""

from __future__ import annotations

from types import MappingProxyType

from amaranth_boards.ulx3s import ULX3S_85F_Platform

from sterna.hw.board.board import Board
from sterna.hw.fpga.families import target_named

__all__ = ["BOARD"]

BOARD = Board(
    "ulx3s-85f", "Radiona ULX3S, Lattice ECP5 LFE5U-85F", ULX3S_85F_Platform,
    target_named("ecp5-85k"),
    # GPIO 0 of the radio module held high keeps it from resetting the board.
    {"clk": ("clk25", 0, None), "rx": ("uart", 0, "rx"), "tx": ("uart", 0, "tx"),
     "led": ("led", 0, None), "radio_gpio0": ("esp32", 0, "gpio0")},
    # Reached by place and route with some margin, with the model in ROMs or in the SDRAM.
    clock_hz=75_000_000, baud=1_000_000, memory=("sdram", 0),
    sizes=MappingProxyType({"rows": 8, "cols": 64}),
    network_sizes=MappingProxyType({"rows": 8, "cols": 32}))
