"""The mixers that there are, as a table."""

from __future__ import annotations

import inspect
import re
from typing import Any

import sterna.model.mixers  # noqa: F401  (registers them)
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.pattern import Choice
from sterna.model.study.tasks.row import NAMED_ROWS

__all__ = ["list_mixers"]

_PAPER = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")


def list_mixers(d: int = 64) -> list[dict[str, Any]]:
    """Name, kind (token, channel or row), options with their defaults, papers, whether it is
    causal, and what it is in a line."""
    init = MixerInit(d, 3 * d)
    found: list[dict[str, Any]] = []
    for kind, registry in (("token", TOKEN_MIXERS), ("channel", CHANNEL_MIXERS)):
        for name in registry.names():
            cls = registry.find(name)
            text = inspect.getdoc(cls) or ""
            mixer = registry.build(Choice(name), init)
            found.append({
                "name": name, "kind": kind,
                "options": {each.name: each.default for each in registry.options(name).values()},
                "papers": list(dict.fromkeys(_PAPER.findall(text))),
                "causal": getattr(mixer, "causal", True), "does": _first_sentence(text)})
    found += [{"name": row.name, "kind": "row", "options": {}, "papers": [],
               "causal": row.is_causal(d), "does": f"{row.mixer}, {row.channel}, {row.weights}"}
              for row in NAMED_ROWS.values()]
    return found


def _first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
