"""Byte-pair encoding with the package `tokenizers`: training, and export of ours to its format.

The package is only needed for training: its merges become a :class:`BytePairTokenizer`, which does
not use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sterna.model.checks import check_whole
from sterna.model.tokens.bpe import MOST_TOKENS, WORD_PATTERN, BytePairTokenizer, last_cut
from sterna.model.tokens.hub import HubTokenizer
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.pre_tokenizers import Sequence

__all__ = ["END_OF_TEXT", "package_json", "package_tokenizer", "train_bpe"]

_PART = 1 << 20


def train_bpe(
    texts: Iterable[bytes], vocab: int, *, end_of_text: bool = False,
) -> BytePairTokenizer:
    """Find the merges of the most frequent pairs of tokens in UTF-8 texts; bytes that are not UTF-8
    count as U+FFFD.

    ``vocab`` is the number of tokens, from 257 to 65,536; with ``end_of_text`` at least one more,
    as the last token ends a document. Raises ValueError if it is out of range or the texts have too
    few pairs for it; ModuleNotFoundError without the package `tokenizers`.
    """
    check_whole("vocab", vocab, 257 + end_of_text, MOST_TOKENS)
    from tokenizers import Tokenizer as PackageTokenizer
    from tokenizers import models, pre_tokenizers, trainers
    trained = PackageTokenizer(models.BPE())
    trained.pre_tokenizer = _package_words()
    trained.train_from_iterator(_parts(texts), trainers.BpeTrainer(
        vocab_size=vocab - end_of_text, min_frequency=2, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    tokenizer = BytePairTokenizer(_numbered(model["merges"]), end_of_text=end_of_text)
    if tokenizer.vocab < vocab:
        raise ValueError(
            f"the text has pairs that occur twice for {tokenizer.vocab:,} tokens only, and "
            f"{vocab:,} were asked for: ask for fewer, or give more text")
    return tokenizer


def _parts(texts: Iterable[bytes]) -> Iterator[str]:
    """The texts in pieces that end between two words."""
    for text in texts:
        start = 0
        while len(text) - start > _PART and (cut := last_cut(text[start:start + _PART])):
            yield text[start:start + cut].decode(errors="replace")
            start += cut
        yield text[start:].decode(errors="replace")


def _numbered(merges: list[list[str]]) -> list[tuple[int, int]]:
    """Merges of texts as merges of tokens, numbered as :class:`BytePairTokenizer` does."""
    token_of = {character: byte for byte, character in enumerate(_printable_bytes())}
    numbered = []
    for left, right in merges:
        numbered.append((token_of[left], token_of[right]))
        token_of.setdefault(left + right, len(token_of))
    return numbered


END_OF_TEXT = "<|endoftext|>"
"""Name in the package of the token that ends a document, as in GPT-2's tokenizer."""

_UNICODE_WORDS = WORD_PATTERN.replace(r"\x80-\xff", r"\x{80}-\x{10ffff}")
"""The same words for the package, which reads characters instead of bytes."""


def package_tokenizer(tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
    """The tokenizer of the package that gives every UTF-8 text the same tokens.

    Raises ModuleNotFoundError without the package `tokenizers`.
    """
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as PackageTokenizer
    characters = _printable_bytes()
    names = ["".join(characters[byte] for byte in each) for each in tokenizer.spellings if each]
    found = PackageTokenizer(models.BPE(
        {name: token for token, name in enumerate(names)},
        [(names[left], names[right]) for left, right in tokenizer.merges.tolist()]))
    found.pre_tokenizer = _package_words()
    found.decoder = decoders.ByteLevel()
    if tokenizer.end_of_text is not None:
        found.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
        found.encode_special_tokens = True      # do not parse special tokens in text
    return found


def package_json(tokenizer: Tokenizer) -> str:
    """The content of a ``tokenizer.json`` that gives every UTF-8 text the same tokens.

    Raises ValueError for a byte tokenizer of fewer than 256 tokens; ModuleNotFoundError without the
    package `tokenizers`.
    """
    if isinstance(tokenizer, HubTokenizer):
        return tokenizer.text
    if not isinstance(tokenizer, BytePairTokenizer):
        if tokenizer.vocab != BYTES.vocab:
            raise ValueError(f"a tokenizer.json must have all {BYTES.vocab} bytes, got a tokenizer "
                             f"of {tokenizer.vocab}")
        tokenizer = BytePairTokenizer([])
    return str(package_tokenizer(tokenizer).to_str())


def _package_words() -> Sequence:
    """The package's pre-tokenizer that cuts a text into our words and maps bytes to characters."""
    from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_UNICODE_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _printable_bytes() -> list[str]:
    """The character that the package writes for each byte: the same one if it is printable in
    Latin-1 and not a blank, else the next from U+0100 on.

    >>> [_printable_bytes()[byte] for byte in b"a \\n"]
    ['a', '\u0120', '\u010a']
    """
    shown = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
