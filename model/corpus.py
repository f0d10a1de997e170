"""Training text: Python's own reference manual, or any UTF-8 text file.

The built-in corpus is :mod:`pydoc_data.topics`, part of every CPython. Its topics contain
each other (``specialmethods`` includes all of ``customization`` and others), so a split by
topic would leak: topics that share much text are held out together or not at all, and a
topic contained in another is dropped.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import itertools
import json
import os
import sys
import sysconfig
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sterna.model.cache import cache_key, user_cache
from sterna.model.files import read_text

__all__ = ["BUILTIN_NAME", "DOCSTRINGS_NAME", "Corpus", "as_ascii", "builtin_corpus",
           "corpus_from_file", "left_out", "with_general"]

BUILTIN_NAME = "python-manual"
"""Name of the built-in corpus."""
DOCSTRINGS_NAME = f"{BUILTIN_NAME}+docstrings"
"""Name of the built-in corpus with docstrings."""
_LONG_LINE_CHARS = 40
_SHARED_FRACTION = 0.2
_CONTAINED_FRACTION = 0.8
_HELDOUT_FRACTION = 0.1125
_MANUAL_REPEATS = 5
_SMALLEST_FILE_BYTES = 4096
_SMALLEST_HELDOUT_BYTES = 256
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training text and held-out text as UTF-8 bytes, with a display name and the source file, if
    any.

    ``general`` is more general text to begin training with, or empty: see
    :attr:`sterna.model.torch.training.recipe.TrainRecipe.general_share`.
    """

    name: str
    train: bytes = field(repr=False)
    heldout: bytes = field(repr=False)
    file: Path | None = field(default=None, repr=False, compare=False)
    general: bytes = field(default=b"", repr=False)

    @property
    def sha256(self) -> str:
        """Hash of the train and held-out parts, in hexadecimal; changes with any byte of either."""
        digest = hashlib.sha256(len(self.train).to_bytes(8, "little"))
        digest.update(self.train)
        digest.update(self.heldout)
        return digest.hexdigest()

    def as_ascii(self) -> Corpus:
        """Return the text in ASCII, for models with an ASCII vocabulary."""
        return Corpus(f"{self.name}-ascii", as_ascii(self.train), as_ascii(self.heldout), self.file,
                      as_ascii(self.general))


def as_ascii(text: bytes) -> bytes:
    """Return UTF-8 text in ASCII.

    Accents are removed, letters and signs with a compatible ASCII spelling take it, and
    everything else is left out.

    >>> as_ascii("Caf\u00e9 \u2026".encode())
    b'Cafe ...'
    """
    # Piecewise is safe: normalisation reorders only accents, and those are removed.
    return b"".join(unicodedata.normalize("NFKD", piece).encode("ascii", "ignore")
                    for piece in _characters(text))


def left_out(text: bytes) -> str:
    """Describe in a sentence the characters of UTF-8 text that :func:`as_ascii` leaves out.

    >>> left_out("Caf\u00e9, \u03a9 and \u03a9".encode())
    '2 of 13 characters have no spelling in ASCII and are left out, most of them \u03a9'
    """
    counts: Counter[str] = Counter()
    for piece in _characters(text):
        counts.update(piece)
    lost = Counter({
        each: count for each, count in counts.items()
        # Marks are the accents of letters written with them.
        if each > "\x7f" and not as_ascii(each.encode()) and unicodedata.category(each)[0] != "M"})
    said = f"{lost.total():,} of {counts.total():,} characters have no spelling in ASCII"
    if not lost:
        return said
    (most, _), = lost.most_common(1)
    return f"{said} and are left out, most of them {most}"


def _characters(text: bytes) -> Iterator[str]:
    """UTF-8 text as characters, in pieces: the whole would take up to four times its size."""
    return codecs.iterdecode((text[start:start + _PIECE_BYTES] for start in range(
        0, len(text), _PIECE_BYTES)), "utf-8")


def _long_lines(text: str) -> set[str]:
    return {line for line in text.split("\n") if len(line) >= _LONG_LINE_CHARS}


def with_general(corpus: Corpus, text: bytes) -> Corpus:
    """Return a corpus with a UTF-8 text as its general text.

    Long lines (40 characters) that also occur in the held-out text are removed from it.
    """
    held = {line for line in corpus.heldout.split(b"\n") if len(line) >= _LONG_LINE_CHARS}
    lines = [line for line in text.split(b"\n") if line not in held]
    return replace(corpus, general=b"\n".join(lines))


def _group_by_shared_lines(lines: dict[str, set[str]]) -> list[list[str]]:
    """Group names (sorted) that share 20 % of the long lines of either."""
    group_of = {name: [name] for name in sorted(lines)}
    for a, b in itertools.combinations(sorted(lines), 2):
        fewer = min(len(lines[a]), len(lines[b]))
        shared = len(lines[a] & lines[b])
        if fewer and shared >= _SHARED_FRACTION * fewer and group_of[a] is not group_of[b]:
            merged = sorted(group_of[a] + group_of[b])
            for name in merged:
                group_of[name] = merged
    return [group for name, group in group_of.items() if name == group[0]]


def _hash_of_first(group: list[str]) -> bytes:
    """Sort key of the groups: fixed, and unrelated to the meaning of the names."""
    return hashlib.sha256(group[0].encode()).digest()


def _manual() -> tuple[str, str]:
    """Python's reference manual as (train, held-out) text without a leak between them."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError(
            "this Python comes without pydoc_data.topics, the built-in corpus; "
            "train on a text file instead") from error

    lines = {name: _long_lines(text) for name, text in topics.items()}

    def is_contained(name: str) -> bool:
        own = lines[name]
        return bool(own) and any(
            len(topics[other]) > len(topics[name])
            and len(own & lines[other]) >= _CONTAINED_FRACTION * len(own)
            for other in topics)

    groups = [[name for name in group if not is_contained(name)]
              for group in sorted(_group_by_shared_lines(lines), key=_hash_of_first)]
    chars_left = _HELDOUT_FRACTION * sum(
        len(topics[name]) for group in groups for name in group)
    heldout: set[str] = set()
    for group in groups:
        chars = sum(len(topics[name]) for name in group)
        if chars <= chars_left:
            heldout.update(group)
            chars_left -= chars
    train = {name for group in groups for name in group} - heldout
    return ("\n".join(topics[name] for name in sorted(train)),
            "\n".join(topics[name] for name in sorted(heldout)))


def _docstrings(folder: Path) -> list[str]:
    """Every docstring of the Python sources below ``folder`` once, in sorted order of the files.

    Tests and installed packages are left out. Parsing takes seconds, so the result is cached
    until the sources or this file change.
    """
    # lib2to3 was removed in Python 3.13.
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3"}
    paths: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = set(folders) - skipped
        paths += (Path(root, name) for name in names if name.endswith(".py"))
    paths.sort()
    stats = [path.stat() for path in paths]
    key = cache_key(
        files=[(str(path), stat.st_size, stat.st_mtime_ns)
               for path, stat in zip(paths, stats, strict=True)],
        python=sys.version, code=hashlib.sha256(Path(__file__).read_bytes()).hexdigest())
    cache = user_cache("corpus")
    kept = cache.get(key)
    if kept is not None:
        found: list[str] = json.loads(kept)
        return found
    found = list(dict.fromkeys(_parsed_docstrings(paths)))
    cache.put(key, json.dumps(found).encode())
    return found


def _parsed_docstrings(paths: list[Path]) -> Iterator[str]:
    """The docstrings of sources, which are parsed, never imported."""
    for path in paths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old sources do not matter here
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in _statements(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef
                          | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of ``ast.walk`` in its order, except those inside expressions."""
    found: deque[ast.AST] = deque([tree])
    while found:
        node = found.popleft()
        yield node
        for name in node._fields:
            if name in ("body", "handlers", "orelse", "finalbody", "cases"):
                inner = getattr(node, name)
                found.extend(inner if isinstance(inner, list) else ())


def builtin_corpus(docstrings: bool = False, *, general: bool = False) -> Corpus:
    """Return the corpus that is part of Python: its reference manual.

    Its text depends on the Python version; ``Corpus.sha256`` identifies a corpus. The
    ``docstrings`` of the standard library can extend the train part, for long runs that would
    memorise the manual; the manual is then repeated five times before them, so that about half of
    the train text resembles the held-out text. Or they can be the ``general`` text. A docstring
    that shares a long line with the held-out text, which is always the same, is left out.
    """
    if docstrings and general:
        raise ValueError("the docstrings are part of the train text, or general text to begin "
                         "with, but not both")
    train, heldout = _manual()
    kept: list[str] = []
    if docstrings or general:
        forbidden = _long_lines(heldout)
        kept = [text for text in _docstrings(Path(sysconfig.get_path("stdlib")))
                if not forbidden & _long_lines(text)]
    if docstrings:
        train = "\n\n".join([*[train] * _MANUAL_REPEATS, *kept])
    return Corpus(
        DOCSTRINGS_NAME if docstrings else BUILTIN_NAME, train.encode(errors="replace"),
        heldout.encode(), general="\n\n".join(kept).encode(errors="replace") if general else b"")


def corpus_from_file(path: str | Path, heldout_fraction: float = 0.1) -> Corpus:
    """Return the text of a UTF-8 file with its end held out: ``heldout_fraction`` of it, above 0
    and at most 0.5. The cut moves to the next end of a line, else to the next whole character.

    Raises ValueError if the file cannot be read, is empty, too small or not UTF-8.
    """
    if not 0.0 < heldout_fraction <= 0.5:
        raise ValueError(
            f"heldout_fraction must be above 0 and at most 0.5, got {heldout_fraction}")
    data = read_text(path, at_least=_SMALLEST_FILE_BYTES)
    cut = round(len(data) * (1.0 - heldout_fraction))
    line_end = data.find(b"\n", cut)
    if 0 <= line_end < cut + (len(data) - cut) // 2:
        cut = line_end + 1
    cut = min(cut, len(data) - _SMALLEST_HELDOUT_BYTES)
    while data[cut] & 0xC0 == 0x80:  # inside a character
        cut += 1
    return Corpus(Path(path).name, data[:cut], data[cut:], Path(path).resolve())
