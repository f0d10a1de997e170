"""What our byte pairs are in the package `tokenizers`: words, bytes, and a tokenizer as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.words import WORD_PATTERN

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.pre_tokenizers import Sequence

__all__ = ["END_OF_TEXT", "package_tokenizer", "package_words", "printable_bytes"]

END_OF_TEXT = "<|endoftext|>"
"""What the package calls the token that ends a document, as GPT-2's tokenizer does."""

_UNICODE_WORDS = WORD_PATTERN.replace(r"\x80-\xff", r"\x{80}-\x{10ffff}")
"""The same words for the package, which reads characters where we read bytes."""


def package_tokenizer(tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
    """The tokenizer of the package that gives every UTF-8 text the same tokens.

    Raises
    ------
    ModuleNotFoundError
        Without the package `tokenizers`.
    """
    from tokenizers import AddedToken, Tokenizer, models
    characters = printable_bytes()
    names = ["".join(characters[byte] for byte in each) for each in tokenizer.spellings if each]
    found = Tokenizer(models.BPE(
        {name: token for token, name in enumerate(names)},
        [(names[left], names[right]) for left, right in tokenizer.merges.tolist()]))
    found.pre_tokenizer = package_words()
    if tokenizer.end_of_text is not None:
        found.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
        found.encode_special_tokens = True      # text that reads like it is text
    return found


def package_words() -> Sequence:
    """What cuts a text into our words in the package, and writes their bytes as characters.

    Raises
    ------
    ModuleNotFoundError
        Without the package `tokenizers`.
    """
    from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_UNICODE_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def printable_bytes() -> list[str]:
    """The character that the package writes for each byte: itself if it is printed in Latin-1 and
    no blank, else the next from U+0100 on.

    >>> [printable_bytes()[byte] for byte in b"a \\n"]
    ['a', '\u0120', '\u010a']
    """
    shown = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
