"""The signals that a wave file declares, and those that its views show, by full name."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["declared_signals", "shown_signals"]


def declared_signals(waves: Path) -> set[str]:
    """The signals of a VCD file: ``module.instance.name[7:0]``, every scope by its name."""
    scopes: list[str] = []
    declared = set()
    with waves.open(encoding="utf-8") as lines:
        for words in map(str.split, lines):
            match words:
                case ["$scope", _, scope, *_]:
                    scopes.append(scope)
                case ["$upscope", *_]:
                    scopes.pop()
                case ["$var", _, _, _, *name, "$end"]:
                    declared.add(".".join([*scopes, "".join(name)]))
                case ["$enddefinitions", *_]:
                    return declared
    raise AssertionError(f"{waves} has no end of its declarations")


def shown_signals(waves: Path) -> set[str]:
    """The signals that both views of a wave file show, which must be the same ones."""
    gtkwave, surfer = (waves.with_name(waves.name + suffix).read_text(encoding="utf-8").splitlines()
                       for suffix in (".gtkw", ".sucl"))
    shown = [line for line in gtkwave if re.match(r"\w+\.\w", line)]
    assert [line.partition("[")[0] for line in shown] == [
        line.removeprefix("variable_add ") for line in surfer if line.startswith("variable_add")]
    return set(shown)
