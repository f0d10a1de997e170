"""The page of all mixers, docs/mixer-formulas.md, from their docstrings.

    python docs/site/mixer_pages.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sterna.model.files import write_atomically
from sterna.model.torch import mixers
from sterna.model.torch.network.mixer import Mixer
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS, Registry

PAGE = Path(__file__).parents[1] / "mixer-formulas.md"
_HEAD = """# Every mixer: formula, cost, picture

What each mixer computes, its options, and the cost of a token. [Mixers](mixers.md) helps to choose.

d is the width of the residual stream, n the number of tokens so far. MACs are ternary (with float
weights, multiplications), products are multiplications of activations, words are numbers of state
per sequence; all per layer. Unless stated, a token mixer takes 4 d^2 MACs, and rotary positions add
at most 4 d products.
In a picture, pixel (i, j) is how much output i depends on input j in a fresh mixer with small
options (`docs/site/mixer_patterns.py`); white is not at all.

[Attention](#attention) explains the options `heads`, `causal` and `rope`; `length` is the most
tokens of a sequence.

This page is written from the docstrings by `docs/site/mixer_pages.py`.
"""
_FAMILIES = (mixers.recurrent, mixers.attention, mixers.sparse, mixers.linear, mixers.fixed,
             mixers.channel)


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    seen: dict[type[Mixer], str] = {}
    for family in _FAMILIES:
        title, _, _ = (family.__doc__ or "").partition("\n")
        parts.append(f"\n## {title.strip().rstrip('.')}\n")
        registry: Registry = CHANNEL_MIXERS if family is mixers.channel else TOKEN_MIXERS
        for name in registry.names():
            cls = registry.find(name)
            if cls.__module__ == family.__name__:
                first = seen.setdefault(cls, name)
                parts.append(_entry(name, cls, registry) if first == name
                             else f"\n### {name}\n\n`{name}` is another name of `{first}`.\n")
    return "".join(parts)


def _entry(name: str, cls: type[Mixer], registry: Registry) -> str:
    picture = ""
    if registry is TOKEN_MIXERS:
        picture = f"![Dependence in {name}](mixers/{name}.png)\n\n"
    options = registry.options(name)
    inside = ", ".join(f"{each.name}={_spelled(each.default)}" for each in options.values())
    head = f"`{name}({inside})`" if inside else f"`{name}`"
    # The text in Markdown.
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", inspect.getdoc(cls) or "")
    return f"\n### {name}\n\n{picture}{head}: {text.replace('``', '`').strip()}\n"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    write_atomically(PAGE, page())
    print(PAGE.name)
