"""Write text with a graph, token by token, for one or several prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from sterna.export.graph.metadata import GraphInfo
from sterna.model.checks import whole_number
from sterna.model.profile import FixedPoint
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.tokenizer import TextStream, Tokenizer, as_tokens

__all__ = ["Piece", "Prompts", "Stepper", "StopStrings", "generate", "generate_tokens",
           "prompt_list", "prompt_tokens", "stop_strings"]

Prompts: TypeAlias = (
    str | Sequence[int] | np.ndarray | Sequence[str | Sequence[int] | np.ndarray])
"""A text, tokens, or several of them."""

_LARGEST_SEED = (1 << 32) - 1


class Stepper(Protocol):
    """Anything that can write text: ``Session``, ``OnnxModel`` and others."""

    info: GraphInfo

    def step(self, tokens: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advance by a token."""

    def prefill(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advance by a row of tokens; the logits after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one step adds to one prompt.

    Parameters
    ----------
    prompt
        Index of the prompt, from 0.
    token
        The token drawn.
    text
        Text that is now final: empty inside a character, and while it could be the beginning of
        a stop string; the last piece holds the rest.
    end
        ``"length"`` or ``"stop"`` in the last piece of a prompt, else None. The end-of-document
        token stops, too.
    """

    prompt: int
    token: int
    text: str
    end: str | None = None


def generate(
    model: Stepper, prompts: Prompts, *, tokens: int, temperature: float = 0.7,
    top_k: int | None = None, top_p: float | None = None, stop: str | Sequence[str] = (),
    seed: int = 1,
) -> Iterator[Piece]:
    """Return an iterator over the pieces of text that continue the prompts.

    The prompts are run, and bad arguments are refused, before this returns. Then all
    prompts advance together by one token per round of pieces. The integer sampler
    (:class:`sterna.model.quantized.sampling.Sampler`) draws the tokens, so every implementation of
    the model writes the same text for the same seed. Prompt i has the seed ``seed + i``: its
    continuation does not depend on other prompts.

    Parameters
    ----------
    model
        A session or step graph.
    prompts
        Texts to continue, an empty one standing for a line end; or tokens ``[length]`` of each.
    tokens
        Most tokens to write for each prompt.
    temperature
        0 always takes the most likely token.
    top_k, top_p
        Draw only from the k most likely tokens; only from the fewest tokens whose
        probabilities add up to p.
    stop
        Strings that end a text and are not part of it; also accepts a single string.
    seed
        Seed of the sampler, from 1.

    Raises
    ------
    ValueError
        If an argument has the wrong type or is out of range, or the tokenizer lacks a character
        of a prompt.
    """
    model.info.entry.check_text()
    tokenizer = model.info.tokenizer
    tokens = whole_number("tokens", tokens, 1)
    seed = whole_number("seed", seed, 1, _LARGEST_SEED)
    asked, stops = prompt_list(prompts), stop_strings(stop)
    rows_of = [prompt_tokens(prompt, tokenizer) for prompt in asked]
    logit = model.info.logit
    writers, states, rows = [], [], []
    for index, prompt in enumerate(rows_of):
        sampler = Sampler(
            temperature=temperature, top_k=top_k, top_p=top_p, logit_frac=logit.frac,
            seed=seed_of(seed, index))
        writers.append(_Writer(index, sampler, stops, tokens, tokenizer))
        last, state = model.prefill(prompt)
        rows.append(last)
        states.append(state)
    return _write(model, writers, np.concatenate(rows), np.concatenate(states, axis=1))


def seed_of(seed: int, index: int) -> int:
    """The seed of prompt ``index``: counted up from ``seed``, wrapping to 1 after the largest.

    >>> seed_of(7, 2), seed_of((1 << 32) - 1, 1)
    (9, 1)
    """
    return (seed - 1 + index) % _LARGEST_SEED + 1


def _write(
    model: Stepper, writers: list[_Writer], logits: np.ndarray, state: np.ndarray,
) -> Iterator[Piece]:
    while True:
        drawn, going = [], []
        for row, (writer, values) in enumerate(zip(
                writers, _as_integers(logits, model.info.logit), strict=True)):
            piece = writer.draw(values)
            if piece.end is None:
                going.append(row)
                drawn.append(piece.token)
            yield piece
        if not going:
            return
        if len(going) < len(writers):
            writers = [writers[row] for row in going]
            state = state[:, going]
        logits, state = model.step(np.array(drawn), state)


def _as_integers(logits: np.ndarray, fmt: FixedPoint) -> np.ndarray:
    """Logits for the sampler: real ones are rounded half up and saturated."""
    if logits.dtype.kind in "iu":
        return logits
    scaled = np.floor(logits.astype(np.float64) * (1 << fmt.frac) + 0.5)
    return np.clip(scaled, fmt.min, fmt.max).astype(np.int64)


class _Writer:
    """Draws the tokens of one prompt, and tracks which part of their text is final."""

    def __init__(
        self, index: int, sampler: Sampler, stop: Sequence[str], tokens: int, tokenizer: Tokenizer,
    ) -> None:
        self._index = index
        self._sampler = sampler
        self._stops = StopStrings(stop)
        self._left = tokens
        self._stream, self._last = TextStream(tokenizer), tokenizer.end_of_text
        self._held = ""

    def draw(self, logits: np.ndarray) -> Piece:
        token = self._sampler(logits)
        self._left -= 1
        ends = token == self._last
        new = self._stream.add([token]) + (
            self._stream.end() if ends or self._left == 0 else "")
        self._held += new
        back = self._stops.find(new)
        if back is not None:
            return Piece(self._index, token, self._held[:-back], "stop")
        if ends:
            return Piece(self._index, token, self._held, "stop")
        if self._left == 0:
            return Piece(self._index, token, self._held, "length")
        certain = len(self._held) - self._stops.open
        text, self._held = self._held[:certain], self._held[certain:]
        return Piece(self._index, token, text)


def generate_tokens(
    model: Stepper, prompt: str, *, tokens: int, temperature: float = 0.7, seed: int = 1,
) -> Iterator[int]:
    """Only the tokens that :func:`generate` draws for one prompt."""
    pieces = generate(model, prompt, tokens=tokens, temperature=temperature, seed=seed)
    return (piece.token for piece in pieces)


class StopStrings:
    """Finds the first of several non-empty strings in a text given in pieces.

    >>> stops = StopStrings(["stop"])
    >>> stops.find("on the st"), stops.open
    (None, 2)
    >>> stops.find("op now")        # it began eight characters before the end
    8
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = list(strings)
        self._tail = ""

    def find(self, text: str) -> int | None:
        """Take the next piece of text.

        Returns the distance from its end, in characters, to the start of the earliest string;
        None while no string is complete.
        """
        tail = self._tail + text
        begins = [at for each in self._strings if (at := tail.find(each)) >= 0]
        held = max((size for each in self._strings
                    for size in range(min(len(each), len(tail) + 1))
                    if tail.endswith(each[:size])), default=0)
        self._tail = tail[len(tail) - held:]
        return len(tail) - min(begins) if begins else None

    @property
    def open(self) -> int:
        """Number of characters at the end of the text so far that could begin a string."""
        return len(self._tail)


# Arguments ----------------------------------------------------------------------------


def prompt_list(prompts: object) -> list[str | np.ndarray]:
    """The prompts as a list; a single text, or a single row of tokens, is one prompt."""
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, list | tuple | range) and prompts:
        rows = [np.asarray(each) for each in prompts]
        if all(row.dtype.kind in "iu" for row in rows):
            return [np.array(rows)] if all(row.ndim == 0 for row in rows) else [*rows]
    texts = _texts("prompts", prompts)
    if not texts:
        raise ValueError("prompts must hold at least one text")
    return [*texts]


def prompt_tokens(prompt: str | np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Tokens ``[1, length]`` of a prompt, including those before a text; an empty text stands for a
    line end. Tokens are left unchanged."""
    is_text = isinstance(prompt, str)
    try:
        tokens = as_tokens("\n" if is_text and not prompt else prompt, tokenizer)
        if not tokens.size:
            raise ValueError("it has no tokens")
    except ValueError as error:
        raise ValueError(f"the prompt {prompt!r}: {error}") from error
    begin = np.array(tokenizer.begin if is_text else (), dtype=np.int64)
    return np.concatenate([begin, tokens])[None]


def stop_strings(stop: object) -> list[str]:
    """The strings that end a text, without duplicates; also accepts a single string."""
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
