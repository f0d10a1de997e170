"""``python -m sterna.cli`` is ``sterna``."""

from sterna.cli.entry import entry_point

entry_point()
