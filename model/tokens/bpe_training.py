"""Training byte-pair encoding, with the package `tokenizers`.

Only the counting is the package's: its merges become a :class:`BytePairTokenizer`, which needs no
package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from sterna.model.checks import check_whole
from sterna.model.tokens.bpe import MOST_TOKENS, BytePairTokenizer
from sterna.model.tokens.words import WORD_PATTERN, last_cut

__all__ = ["train_bpe"]

_PART = 1 << 20
_UNICODE_WORDS = WORD_PATTERN.replace(r"\x80-\xff", r"\x{80}-\x{10ffff}")
"""The same words for the package, which reads characters where we read bytes."""


def train_bpe(texts: Iterable[bytes], vocab: int) -> BytePairTokenizer:
    """Find the merges of the pairs of tokens that are the most frequent in texts.

    Parameters
    ----------
    texts
        UTF-8 texts; what is not UTF-8 counts as U+FFFD.
    vocab
        Number of tokens, from 257 to 65,536.

    Raises
    ------
    ValueError
        If ``vocab`` is out of its range, or the texts have too few pairs for it.
    ModuleNotFoundError
        Without the package `tokenizers`.
    """
    check_whole("vocab", vocab, 257, MOST_TOKENS)
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_UNICODE_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained.train_from_iterator(_parts(texts), trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    tokenizer = BytePairTokenizer(_numbered(model["merges"]))
    if tokenizer.vocab < vocab:
        raise ValueError(
            f"the text has pairs that occur twice for {tokenizer.vocab:,} tokens only, and "
            f"{vocab:,} were asked for: ask for fewer, or give more text")
    return tokenizer


def _parts(texts: Iterable[bytes]) -> Iterator[str]:
    """The texts in pieces that end between two words."""
    for text in texts:
        while len(text) > _PART and (cut := last_cut(text[:_PART])):
            yield text[:cut].decode(errors="replace")
            text = text[cut:]
        yield text.decode(errors="replace")


def _numbered(merges: list[list[str]]) -> list[tuple[int, int]]:
    """Merges of texts as merges of tokens, numbered as :class:`BytePairTokenizer` does."""
    token_of = {character: byte for byte, character in enumerate(_printable_bytes())}
    numbered = []
    for left, right in merges:
        numbered.append((token_of[left], token_of[right]))
        token_of.setdefault(left + right, len(token_of))
    return numbered


def _printable_bytes() -> list[str]:
    """The character that the package writes for each byte: itself if it is printed in Latin-1 and
    no blank, else the next from U+0100 on."""
    shown = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
