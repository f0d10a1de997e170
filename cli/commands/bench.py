"""``sterna bench``: measurements of parts of a model, each a command of the group."""

from __future__ import annotations

import typer

from sterna.cli.commands.bench_attention import attention
from sterna.cli.commands.bench_streaming import streaming

__all__ = ["GROUP"]

GROUP = typer.Typer(
    name="bench", rich_markup_mode=None, help="Measure ways to mix tokens.")

for command in (attention, streaming):
    GROUP.command()(command)
