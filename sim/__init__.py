"""Simulation of the emitted Verilog, by its own benches and by your own cocotb test.

The names here are loaded when they are used: a test in a simulator loads no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sterna.sim.testing.run import CocotbRun, build_options, run_cocotb, simulator_environment
    from sterna.sim.testing.streams import StreamDriver, StreamSink, start
    from sterna.sim.testing.words import check

__all__ = [
    "CocotbRun", "StreamDriver", "StreamSink", "build_options", "check", "run_cocotb",
    "simulator_environment", "start"]

_ROOMS = {
    "check": "words", "CocotbRun": "run", "build_options": "run", "run_cocotb": "run",
    "simulator_environment": "run",
    "StreamDriver": "streams", "StreamSink": "streams", "start": "streams"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sterna.sim.testing.{_ROOMS[name]}"), name)
