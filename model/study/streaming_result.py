"""What streaming came to: bits per byte over the text, and the state that it took."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.streaming import FORMS, Decoding, Note, Streaming, decode, in_form, read

__all__ = ["FormResult", "StreamingResult", "stream"]

_CLOSE_BITS = 0.01
"""How far token by token may be from in pieces, on average: ternary layers round activations to
8 bits, so that the last bit of a sum may decide between two codes."""


@dataclass(frozen=True, slots=True)
class FormResult:
    """One form: its pattern, the bits of each token read in pieces, and the words of state of all
    layers after the last. ``decoding`` is the same token by token, of a form whose state ends."""

    form: str
    mixer: str
    bits: np.ndarray
    state_words: int
    decoding: Decoding | None = None

    def difference(self) -> float | None:
        """Bits between reading in pieces and token by token, the mean of the absolute values."""
        if self.decoding is None:
            return None
        both = self.bits[:len(self.decoding.bits)]
        return float(np.abs(both - self.decoding.bits).mean())


@dataclass(frozen=True, slots=True)
class StreamingResult:
    """All forms of a model.

    Parameters
    ----------
    plan
        How the text was read.
    sizes
        Bytes of each predicted token.
    forms
        What each form came to.
    facts
        About the model, its training and the text: plain data.
    """

    plan: Streaming
    sizes: np.ndarray
    forms: tuple[FormResult, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def bits_per_byte(self, form: FormResult, first: int, last: int) -> float | None:
        """Of the tokens from ``first`` to before ``last``, None if not all were read."""
        if last > len(form.bits):
            return None
        return float(form.bits[first:last].sum() / self.sizes[first:last].sum())

    def curve(self, form: FormResult) -> list[float]:
        """Bits per byte of as many tokens at a time as a window has keys, what is left over not
        counted."""
        keys = self.plan.keys
        means = [self.bits_per_byte(form, at, at + keys)
                 for at in range(0, len(form.bits) - keys + 1, keys)]
        return [round(mean, 4) for mean in means if mean is not None]

    def parts(self, form: FormResult) -> tuple[float | None, ...]:
        """Bits per byte while no window is full, as the first keys leave it, and after."""
        keys, count = self.plan.keys, self.plan.tokens
        return tuple(self.bits_per_byte(form, *part)
                     for part in ((0, keys), (keys, 2 * keys), (2 * keys, count)))

    def problems(self) -> list[str]:
        """What should not be: a state that grows, or steps that are not what pieces are."""
        found = []
        for each in self.forms:
            if each.decoding is None:
                continue
            words = each.decoding.constant_state(self.plan.keys)
            if words != each.state_words:
                found.append(f"{each.mixer}: the state has {words or 'no constant number of'} "
                             f"words, declared are {each.state_words}")
            if not (difference := each.difference() or 0.0) < _CLOSE_BITS:
                found.append(f"{each.mixer}: read token by token it differs by {difference:.3g} "
                             f"bits of a token")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        forms = []
        for each in self.forms:
            first, between, rest = self.parts(each)
            told: dict[str, Any] = {
                "form": each.form, "mixer": each.mixer, "tokens": len(each.bits),
                "first": _rounded(first), "between": _rounded(between), "rest": _rounded(rest),
                "state_words": each.state_words}
            if each.decoding is not None:
                count = len(each.decoding.bits)
                told |= {
                    "decoded_tokens": count,
                    "constant_state_words": each.decoding.constant_state(self.plan.keys),
                    "decode_us": round(1e6 * each.decoding.seconds / count, 1),
                    "difference_bits": each.difference()}
            forms.append({**told, "bits_per_byte": self.curve(each)})
        return {"plan": {**asdict(self.plan), "keys": self.plan.keys}, **self.facts,
                "bytes_per_token": round(float(self.sizes.mean()), 4), "forms": forms}


def stream(
    model: LanguageModel, tokens: Tensor, plan: Streaming, *, decoded: int,
    note: Callable[[str], AbstractContextManager[Note]], sizes: np.ndarray | None = None,
) -> StreamingResult:
    """Read a text in all forms.

    Parameters
    ----------
    model
        Has full attention in every layer.
    tokens
        The text, ``[n]`` whole numbers, at least ``plan.tokens + 1`` of them.
    decoded
        Tokens that window and sinks also read one by one; none, or enough to fill the window.
    note
        Gives for the name of a task a context, and in it who is told of the progress.
    sizes
        Bytes of each token of ``tokens``; one of each by default.

    Raises
    ------
    ValueError
        If the text is too short, or ``decoded`` is, or the model has other mixers.
    """
    if not (decoded == 0 or plan.keys <= decoded <= plan.tokens):
        raise ValueError(f"decoded must be 0, or from {plan.keys} (the keys of a window) to "
                         f"{plan.tokens} (all tokens), got {decoded}")
    if len(tokens) <= plan.tokens:
        raise ValueError(f"the text has {len(tokens):,} tokens; to predict {plan.tokens:,} it "
                         f"must have one more")
    forms = []
    for name in FORMS:
        reader, count = in_form(model, name, plan), plan.reach(name)
        with note(f"read with {name}") as told:
            bits = read(reader, tokens[:count + 1], told)
        decoding = None
        if name != "full" and decoded:
            with note(f"read with {name}, token by token") as told:
                decoding = decode(reader, tokens[:decoded + 1], told)
        words = sum(block.mixer.state_words(count) for block in reader.blocks())
        forms.append(FormResult(name, reader.config.mixer, bits, words, decoding))
    every = np.ones(len(tokens), dtype=np.int64) if sizes is None else sizes
    return StreamingResult(plan, every[1:plan.tokens + 1], tuple(forms))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
