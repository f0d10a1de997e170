"""``sterna bench``: measurements of parts of a model, each a command of the group."""

from __future__ import annotations

import typer

from sterna.cli.commands.bench_attention import attention

__all__ = ["GROUP"]

GROUP = typer.Typer(
    name="bench", rich_markup_mode=None, help="Measure how fast ways to mix tokens are.")

for command in (attention,):
    GROUP.command()(command)
