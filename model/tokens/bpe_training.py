"""Training byte-pair encoding, with the package `tokenizers`.

Only the counting is the package's: its merges become a :class:`BytePairTokenizer`, which needs no
package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from sterna.model.checks import check_whole
from sterna.model.tokens.bpe import MOST_TOKENS, BytePairTokenizer
from sterna.model.tokens.tokenizers_package import package_words, printable_bytes
from sterna.model.tokens.words import last_cut

__all__ = ["train_bpe"]

_PART = 1 << 20


def train_bpe(
    texts: Iterable[bytes], vocab: int, *, end_of_text: bool = False,
) -> BytePairTokenizer:
    """Find the merges of the pairs of tokens that are the most frequent in texts.

    Parameters
    ----------
    texts
        UTF-8 texts; what is not UTF-8 counts as U+FFFD.
    vocab
        Number of tokens, from 257 to 65,536; one more at least with ``end_of_text``.
    end_of_text
        Whether the last of them is the one that ends a document.

    Raises
    ------
    ValueError
        If ``vocab`` is out of its range, or the texts have too few pairs for it.
    ModuleNotFoundError
        Without the package `tokenizers`.
    """
    check_whole("vocab", vocab, 257 + end_of_text, MOST_TOKENS)
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = package_words()
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
    token_of = {character: byte for byte, character in enumerate(printable_bytes())}
    numbered = []
    for left, right in merges:
        numbered.append((token_of[left], token_of[right]))
        token_of.setdefault(left + right, len(token_of))
    return numbered
