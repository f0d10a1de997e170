"""The rows of a comparison: models that differ in their mixers, by name."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from dataclasses import dataclass, replace
from pathlib import Path

import sterna.model.mixers  # noqa: F401  (registers them)
from sterna.model.config import ModelConfig
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.pattern import Choice, parse_pattern

__all__ = ["NAMED_ROWS", "Row", "code_hash", "find_row"]


@dataclass(frozen=True, slots=True)
class Row:
    """A model of a comparison: the mixers of its layers, and what projections compute with.

    Parameters
    ----------
    name
        What it is called in tables.
    mixer, channel, weights
        As in :class:`~sterna.model.config.ModelConfig`.
    """

    name: str
    mixer: str
    channel: str = "glu"
    weights: str = "ternary"

    def config(self, *, d: int, layers: int, vocab: int, length: int) -> ModelConfig:
        """A model of this row for sequences of ``length`` tokens.

        Mixers of a fixed length are made for that one, if the row does not say another; the
        hidden vector of the channel mixer has three times ``d`` channels.
        """
        return ModelConfig(
            d, layers, 3 * d, vocab, _pattern_for(self.mixer, length), self.channel,
            weights=self.weights)

    def is_causal(self, d: int) -> bool:
        """Whether every token mixer is causal, and so fit to predict the next token.

        Raises
        ------
        ValueError
            If there is no mixer of a name, or it does not have an option.
        """
        init = MixerInit(d, 3 * d)
        return all(TOKEN_MIXERS.build(choice, init).causal for choice in parse_pattern(self.mixer))


NAMED_ROWS = {
    "hybrid": Row("hybrid", "3*mlgru + window"),
    "transformer": Row("transformer", "attention", weights="float"),
    "encoder": Row("encoder", "attention(causal=false)", weights="float"),
}
"""Rows that are more than a mixer: the hybrid, and the float Transformer as a baseline (pre-norm,
rotary positions, fused attention, SwiGLU, output projections that start at zero), causal or not."""


def find_row(name: str, channel: str | None = None, weights: str | None = None) -> Row:
    """The row called ``name``, or else with the mixers of that pattern."""
    row = NAMED_ROWS[name] if name in NAMED_ROWS else Row(name, name)
    changed = {key: value for key, value in (("channel", channel), ("weights", weights))
               if value is not None and value != getattr(row, key)}
    label = " ".join((row.name, *(f"{key}={value}" for key, value in changed.items())))
    return replace(row, name=label, **changed)


def code_hash(row: Row) -> str:
    """A number of the sources of a row's mixers, which comments and docstrings do not change.

    With it results of another form of a mixer are not taken for those of this one.
    """
    classes = [TOKEN_MIXERS.find(choice.name) for choice in parse_pattern(row.mixer)]
    classes += [CHANNEL_MIXERS.find(choice.name)      # type: ignore[misc]  # of the other kind
                for choice in parse_pattern(row.channel)]
    files = {inspect.getsourcefile(each) for cls in classes for each in cls.__mro__
             if each.__module__.startswith("sterna.model.mixers.")
             or each.__module__.partition(".")[0] not in ("sterna", "torch", "abc", "builtins")}
    digest = hashlib.sha256()
    paths = [Path(file) for file in files if file is not None]
    for text in sorted(_code(path, path.stat().st_mtime_ns) for path in paths):
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def _pattern_for(pattern: str, length: int) -> str:
    """The pattern with the option ``length`` wherever a mixer has it and none is given."""
    choices = []
    for choice in parse_pattern(pattern):
        if ("length" in TOKEN_MIXERS.options(choice.name)
                and "length" not in dict(choice.options)):
            choice = Choice(choice.name, (*choice.options, ("length", length)))
        choices.append(str(choice))
    return " + ".join(choices)


@functools.lru_cache(maxsize=256)
def _code(path: Path, changed: int) -> str:
    """A source file, last changed at ``changed``, without comments, docstrings and layout."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not (
                isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    return ast.dump(tree)
