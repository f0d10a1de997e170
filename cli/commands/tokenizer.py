"""``sterna tokenizer``: make a tokenizer from text, and inspect one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json
from sterna.cli.terminal.options import JsonOption, QuietOption, check_file, refuse
from sterna.cli.terminal.tables import Table

if TYPE_CHECKING:
    from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["TOKENIZER", "info", "train"]

_LONGEST_SHOWN = 12

TOKENIZER = typer.Typer(
    name="tokenizer", rich_markup_mode=None,
    help="Make a byte-pair tokenizer from text, and inspect one.")


@TOKENIZER.command()
def train(
    texts: Annotated[list[Path] | None, typer.Argument(
        metavar="[TEXT]...", help="UTF-8 files. Default: the training part of this Python's "
                                  "manual.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path(
        "tokenizer.json"),
    vocab: Annotated[int, typer.Option(
        help="Number of tokens, from 257 to 65,536; the first 256 are the bytes.")] = 1024,
    end_of_text: Annotated[bool, typer.Option(
        "--end-of-text", help="Make the last token one that ends a document: sterna data build "
                              "writes it between documents, sterna generate stops at it.")] = False,
    docstrings: Annotated[bool, typer.Option(
        "--docstrings", help="Add the standard library's docstrings to the manual.")] = False,
    whole: Annotated[bool, typer.Option(
        "--whole", help="Learn from whole files. Default: all but the last tenth, which sterna "
                        "train --text holds out.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make a tokenizer by merging the most frequent pairs of a text.

    The same texts give the same file. Making one needs the package tokenizers; using one does not.

    Example: sterna tokenizer train book.txt --vocab 1024 -o book.json
    """
    from sterna.model.tokens.bpe_training import train_bpe
    from sterna.model.tokens.files import save_tokenizer
    check_file(output)
    parts = _parts(texts or [], docstrings, whole)
    with Stages(quiet) as stage:
        stage(f"count pairs in {sum(map(len, parts)):,} bytes")
        tokenizer = train_bpe(parts, vocab, end_of_text=end_of_text)
        stage("encode the text")
        tokens = sum(len(tokenizer.encode(part)) for part in parts)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, output)
    figures: dict[str, Any] = {
        "output": str(output), "bytes": output.stat().st_size, "vocab": tokenizer.vocab,
        "sha256": tokenizer.sha256, "text_bytes": sum(map(len, parts)), "tokens": tokens}
    if as_json:
        print_json(figures)
    else:
        out.print(f"{output}: {tokenizer.vocab:,} tokens; {figures['text_bytes']:,} bytes of text "
                  f"are {tokens:,} of them, {figures['text_bytes'] / tokens:.2f} bytes each")
    return 0


def _parts(texts: Sequence[Path], docstrings: bool, whole: bool) -> list[bytes]:
    """The texts to learn from."""
    from sterna.model.corpus import builtin_corpus, corpus_from_file
    from sterna.model.files import read_text
    if not texts:
        refuse("is for files: the manual has a held-out part of its own", whole=whole)
        return [builtin_corpus(docstrings=docstrings).train]
    refuse("adds to the built-in text: leave it out with files", docstrings=docstrings)
    return [read_text(text) if whole else corpus_from_file(text).train for text in texts]


@TOKENIZER.command()
def info(
    tokenizer: Annotated[str, typer.Argument(
        metavar="TOKENIZER", help="A tokenizer file, or a model: a quantised file or a bundled "
                                  "one.")],
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text to encode. Default: the held-out text of the bundled models.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show what a tokenizer knows and how well it compresses a text.

    Prints bytes per token, the part of the vocabulary that the text uses, and the longest tokens.

    Example: sterna tokenizer info book.json --text chapter.txt
    """
    from sterna.model.files import read_text
    from sterna.model.quantized.bundled import bundled_heldout
    found = _load(tokenizer)
    data = bundled_heldout(found.vocab) if text is None else read_text(text)
    tokens = found.encode(data)
    each, used = len(data) / len(tokens), len(set(tokens.tolist()))
    longest = sorted(range(found.vocab), key=lambda token: (
        -len(found.spellings[token]), token))[:_LONGEST_SHOWN]
    if as_json:
        print_json({
            "kind": found.kind, "vocab": found.vocab, "sha256": found.sha256,
            "text_bytes": len(data), "tokens": len(tokens), "bytes_per_token": each, "used": used,
            "longest": longest})
        return 0
    name = "the bundled held-out text" if text is None else str(text)
    out.print(f"{tokenizer}: {found.kind}, {found.vocab:,} tokens")
    out.print(f"sha256 {found.sha256}")
    out.print(f"{name}: {len(data):,} bytes are {len(tokens):,} tokens, {each:.3f} bytes each; "
              f"{used:,} of the vocabulary ({used / found.vocab:.0%}) occur")
    spellings = [(token, found.spellings[token]) for token in longest]
    Table("longest tokens", ("token", "bytes", "spelling"), [
        (token, len(spelling), repr(spelling.decode(errors="replace")))
        for token, spelling in spellings]).print()
    return 0


def _load(source: str) -> Tokenizer:
    from sterna.model.quantized.bundled import BUNDLED
    from sterna.model.quantized.file import load_language_model
    from sterna.model.tokens.files import load_tokenizer
    if source in BUNDLED or source.endswith(".safetensors"):
        return load_language_model(source).tokenizer
    return load_tokenizer(source)
