"""``python -m sterna.cli`` is ``sterna``."""

from sterna.cli.main import entry_point

entry_point()
