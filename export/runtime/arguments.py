"""What callers pass to a session, checked and brought to one type.

Every check raises ``ValueError``, for a wrong type too, and says what was expected and what
came. Numbers are checked by :mod:`sterna.model.checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sterna.export.graph.metadata import Form
from sterna.model.checks import whole_number
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["check_ops_form", "prompt_texts", "prompt_tokens", "stop_strings", "thread_count",
           "token_array"]

_MOST_THREADS = 256


def thread_count(threads: int) -> int:
    """The number of threads of one operator, from 1 to 256."""
    return whole_number("threads", threads, 1, _MOST_THREADS)


def check_ops_form(form: Form, name: str) -> None:
    """Refuse a library of operators for a graph of another form than ``exact``."""
    if form is not Form.EXACT:
        raise ValueError(
            f"{name}: the library of operators goes only with the form exact, got {form.value}")


def token_array(tokens: object, axes: Sequence[str], vocab: int) -> np.ndarray:
    """Tokens of a vocabulary as int64 with these axes, from an array or from nested lists.

    >>> token_array([[1, 2]], ["batch", "length"], 256)
    array([[1, 2]])
    """
    wanted = f"whole numbers [{', '.join(axes)}], at least one of them"
    try:
        array = np.asarray(tokens)
    except ValueError as error:     # NumPy makes no array of rows of different lengths
        raise ValueError(f"tokens must be {wanted}, got rows of different lengths") from error
    if array.ndim != len(axes) or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be {wanted}, got {array.dtype} {list(array.shape)}")
    foreign = array[(array < 0) | (array >= vocab)]
    if foreign.size:
        raise ValueError(f"tokens must be from 0 to {vocab - 1}, got {foreign[0]}")
    return array.astype(np.int64, copy=False)


def prompt_texts(prompts: object) -> list[str]:
    """The prompts, of which a single text is one."""
    texts = _texts("prompts", prompts)
    if not texts:
        raise ValueError("prompts must hold at least one text")
    return texts


def prompt_tokens(prompt: str, tokenizer: Tokenizer) -> np.ndarray:
    """Tokens ``[1, length]`` of a prompt; an empty one stands for a line end."""
    text = prompt or "\n"
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt {prompt!r} is not UTF-8: it holds {text[error.start]!r}, half of a "
            f"character") from error
    foreign = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) >= tokenizer.vocab)
    if foreign.size:
        # The byte may lie inside of a character of several bytes.
        before = data[:foreign[0]].decode(errors="ignore")
        raise ValueError(
            f"the prompt {prompt!r} holds {text[len(before)]!r}, with the byte "
            f"{data[foreign[0]]}; the model knows bytes from 0 to {tokenizer.vocab - 1}")
    return tokenizer.encode(data)[None]


def stop_strings(stop: object) -> list[str]:
    """The strings that end a text, each once; a single string is one of them."""
    texts = list(dict.fromkeys(_texts("stop", stop)))
    if "" in texts:
        raise ValueError("a stop string must not be empty")
    return texts


def _texts(name: str, value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a text or several of them, got {_shown(value)}")
    texts = list(value)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must hold only texts, got {_shown(text)} among them")
    return texts


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
