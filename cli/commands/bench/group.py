"""``sterna bench``: measurements of parts of a model, each a command of its own."""

from __future__ import annotations

import typer

from sterna.cli.commands.bench.attention import attention
from sterna.cli.commands.bench.streaming import streaming

__all__ = ["BENCH"]

BENCH = typer.Typer(
    name="bench", rich_markup_mode=None, help="Measure ways to mix tokens.")

for command in (attention, streaming):
    BENCH.command()(command)
