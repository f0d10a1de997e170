"""The rows of a comparison by name, models with different mixers; and a list of mixers."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sterna.model.torch.mixers  # noqa: F401  (registers them)
from sterna.model.config import ModelConfig
from sterna.model.pattern import Choice, parse_pattern
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS

__all__ = ["NAMED_ROWS", "Row", "code_hash", "find_row", "list_mixers"]


@dataclass(frozen=True, slots=True)
class Row:
    """A model of a comparison: its name in tables, the mixers of its layers, and the weights, as in
    :class:`~sterna.model.config.ModelConfig`."""

    name: str
    mixer: str
    channel: str = "glu"
    weights: str = "ternary"

    def config(self, *, d: int, layers: int, vocab: int, length: int) -> ModelConfig:
        """A model of this row for sequences of ``length`` tokens, the length of fixed-length mixers
        unless the row gives another; channel mixers have a hidden width of three times ``d``."""
        return ModelConfig(
            d, layers, 3 * d, vocab, _pattern_for(self.mixer, length), self.channel,
            weights=self.weights)

    def is_causal(self, d: int) -> bool:
        """Whether every token mixer is causal, so that the model can predict the next token."""
        init = MixerInit(d, 3 * d)
        return all(TOKEN_MIXERS.build(choice, init).causal for choice in parse_pattern(self.mixer))


NAMED_ROWS = {
    "hybrid": Row("hybrid", "3*mlgru + window"),
    "transformer": Row("transformer", "attention", weights="float"),
    "encoder": Row("encoder", "attention(causal=false)", weights="float"),
}
"""Rows that are more than a mixer: the hybrid, and the float Transformer as a baseline (pre-norm,
rotary positions, fused attention, SwiGLU, zero-initialised output projections), causal or not."""


def find_row(name: str, channel: str | None = None, weights: str | None = None) -> Row:
    """The row called ``name``, else one with the mixers of that pattern."""
    row = NAMED_ROWS[name] if name in NAMED_ROWS else Row(name, name)
    changed = {key: value for key, value in (("channel", channel), ("weights", weights))
               if value is not None and value != getattr(row, key)}
    label = " ".join((row.name, *(f"{key}={value}" for key, value in changed.items())))
    return replace(row, name=label, **changed)


def code_hash(row: Row) -> str:
    """Hash of the sources of a row's mixers and of the modules they import, without comments and
    docstrings, so that results of different versions of a mixer are never confused."""
    classes = [TOKEN_MIXERS.find(choice.name) for choice in parse_pattern(row.mixer)]
    classes += [CHANNEL_MIXERS.find(choice.name)      # type: ignore[misc]  # of the other kind
                for choice in parse_pattern(row.channel)]
    digest = hashlib.sha256()
    for text in sorted(_read(path, path.stat().st_mtime_ns)[0]
                       for path in _sources(tuple(classes))):
        digest.update(text.encode())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=256)
def _sources(classes: tuple[type, ...]) -> frozenset[Path]:
    """The files of classes and of their imports, recursively, except those of libraries."""
    left = [each.__module__ for cls in classes for each in cls.__mro__]
    packages = {name.partition(".")[0] for name in left} - {"torch", "abc", "builtins"}
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    found: dict[str, Path] = {}
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or file is None or name in found:
            continue
        path = Path(file)
        if name.partition(".")[0] in packages or not any(
                path.is_relative_to(library) for library in libraries):
            found[name] = path
            left += [importlib.util.resolve_name(each, module.__package__)
                     for each in _read(path, path.stat().st_mtime_ns)[1]]
    return frozenset(found.values())


@functools.lru_cache(maxsize=1024)
def _read(path: Path, changed: int) -> tuple[str, tuple[str, ...]]:
    """Hash of a source file, last changed at ``changed``, without comments, docstrings and layout,
    and the names in it that may be imported modules."""
    tree = ast.parse(path.read_bytes())
    imports: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            imports += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            place = "." * node.level + (node.module or "")
            imports.append(place)
            imports += [f"{place}{'.' * bool(node.module)}{each.name}" for each in node.names]
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef):
            part.body = [each for each in part.body if not (
                isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports)


def _pattern_for(pattern: str, length: int) -> str:
    """The pattern with the option ``length`` set wherever a mixer has it but none is given."""
    choices = []
    for choice in parse_pattern(pattern):
        if ("length" in TOKEN_MIXERS.options(choice.name)
                and "length" not in dict(choice.options)):
            choice = Choice(choice.name, (*choice.options, ("length", length)))
        choices.append(str(choice))
    return " + ".join(choices)


_PAPER = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")


def list_mixers(rows: Sequence[Row] = (), d: int = 64) -> list[dict[str, Any]]:
    """Name, kind (token, channel or row), options with their defaults, papers, whether it is
    causal, and a one-line description of all mixers and named rows, or of those in ``rows``."""
    init = MixerInit(d, 3 * d)
    found: list[dict[str, Any]] = []
    for kind, registry, patterns in (
            ("token", TOKEN_MIXERS, [row.mixer for row in rows]),
            ("channel", CHANNEL_MIXERS, [row.channel for row in rows])):
        chosen = [choice for pattern in patterns for choice in parse_pattern(pattern)]
        for name in dict.fromkeys(each.name for each in chosen) if rows else registry.names():
            text = inspect.getdoc(registry.find(name)) or ""
            options = registry.options(name).values()
            found.append({
                "name": name, "kind": kind,
                "options": {each.name: each.default for each in options},
                "papers": list(dict.fromkeys(_PAPER.findall(text))),
                "causal": getattr(registry.build(Choice(name), init), "causal", True),
                "does": " ".join(text.partition("\n\n")[0].split())})
        for choice in chosen:
            registry.build(choice, init)    # also checks its options
    return found + [
        {"name": row.name, "kind": "row", "options": {}, "papers": [],
         "causal": row.is_causal(d), "does": f"{row.mixer}, {row.channel}, {row.weights}"}
        for row in NAMED_ROWS.values() if not rows or row in rows]
