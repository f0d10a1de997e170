"""A text much longer than those of training, read with all keys, a window of them, and sinks."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.attention import Attention
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import TOKEN_MIXERS
from sterna.model.pattern import Choice, parse_pattern
from sterna.model.stack.language_model import LanguageModel

__all__ = ["FORMS", "Decoding", "FormResult", "Note", "Streaming", "StreamingResult", "decode",
           "in_form", "read", "stream"]


FORMS = ("full", "window", "sinks")
"""The forms of attention that are compared."""

Note: TypeAlias = Callable[[int, int], None]
"""Told how many tokens of how many are read."""

_PIECE = 256
"""Tokens read at once; the outputs do not depend on it."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a text of ``tokens`` bytes is read.

    ``sinks`` and ``size`` are options of the mixer ``sinks``; the plain window has ``sinks + size``
    keys, so that a token sees equally many in both. Full attention, whose keys grow with the text,
    ends at ``most_keys``.
    """

    tokens: int = 20_000
    sinks: int = 4
    size: int = 252
    most_keys: int = 2048

    def __post_init__(self) -> None:
        for name, low in (("sinks", 0), ("size", 1), ("most_keys", 1)):
            check_whole(name, getattr(self, name), low)
        check_whole("tokens", self.tokens, 2 * self.keys + 1)

    @property
    def keys(self) -> int:
        """Keys that a token sees, of a window or with sinks."""
        return self.sinks + self.size

    def reach(self, form: str) -> int:
        """Tokens that a form reads."""
        return min(self.tokens, self.most_keys) if form == "full" else self.tokens

    def mixer(self, form: str, mixer: str) -> str:
        """The pattern of a form of ``mixer``, which must be full attention in every layer."""
        options: dict[str, tuple[tuple[str, int], ...]] = {
            "full": (), "window": (("size", self.keys),),
            "sinks": (("sinks", self.sinks), ("size", self.size))}
        choices = parse_pattern(mixer)
        if any(choice.name != "attention" for choice in choices):
            raise ValueError(f"only a model with the mixer attention in every layer can be read "
                             f"in the forms {', '.join(FORMS)}; this one has {mixer}")
        return " + ".join(str(Choice(
            "attention" if form == "full" else form,
            (*(each for each in choice.options if each[0] != "causal"), *options[form]),
        )) for choice in choices)


@dataclass(frozen=True, slots=True)
class Decoding:
    """What reading token by token came to.

    ``bits`` are those of each token; ``state_words`` the numbers in the states of all layers
    after each; ``seconds`` the time of them all.
    """

    bits: np.ndarray
    state_words: np.ndarray
    seconds: float

    def constant_state(self, keys: int) -> int | None:
        """The words of state once ``keys - 1`` tokens are read, None if they still change."""
        found = np.unique(self.state_words[max(0, keys - 2):])
        return int(found[0]) if found.size == 1 else None


def in_form(model: LanguageModel, form: str, plan: Streaming) -> LanguageModel:
    """A copy of a model whose attention, of the same weights, has another form."""
    other = copy.deepcopy(model)
    other.config = replace(model.config, mixer=plan.mixer(form, model.config.mixer))
    init = MixerInit(model.config.d, model.config.dff, model.config.weights == "ternary")
    for block, (token, _) in zip(other.blocks(), other.config.mixers(), strict=True):
        mixer = TOKEN_MIXERS.build(token, init).to(model.embedding.weight)
        mixer.load_state_dict(block.mixer.state_dict())
        assert isinstance(mixer, Attention)
        assert isinstance(block.mixer, Attention)
        mixer.theta = block.mixer.theta
        block.mixer = mixer
    return other


@torch.inference_mode()
def read(model: LanguageModel, tokens: Tensor, note: Note) -> np.ndarray:
    """Bits of each token of ``tokens [n + 1]`` from the second on, ``[n]``, read in pieces."""
    state, bits, count = model.initial_state(1), [], len(tokens) - 1
    for start in range(0, count, _PIECE):
        piece = tokens[start:start + _PIECE + 1]
        logits, state = model.forward_time_major(piece[:-1].unsqueeze(1), state)
        bits.append(_bits(logits.squeeze(1), piece[1:]))
        note(min(start + _PIECE, count), count)
    return torch.cat(bits).numpy()


@torch.inference_mode()
def decode(model: LanguageModel, tokens: Tensor, note: Note) -> Decoding:
    """The same, token by token."""
    state, count = model.initial_state(1), len(tokens) - 1
    bits, words = np.zeros(count), np.zeros(count, dtype=np.int64)
    start = time.perf_counter()
    for at in range(count):
        logits, state = model.step(tokens[at:at + 1], state)
        bits[at] = _bits(logits, tokens[at + 1:at + 2])
        words[at] = sum(each.numel() for layer in state for each in layer)
        note(at + 1, count)
    return Decoding(bits, words, time.perf_counter() - start)


def _bits(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.double(), targets, reduction="none") / math.log(2)


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
    """All forms of a model, with the bytes of each predicted token, and facts about the model, its
    training and the text as plain data."""

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
    """Read a text ``tokens [n]``, at least ``plan.tokens + 1`` of them, in all forms of a model
    that has full attention in every layer.

    ``decoded`` tokens are also read one by one, with window and sinks: none, or enough to fill the
    window. ``note`` gives for the name of a task a context, and in it who is told of the progress.
    ``sizes`` are the bytes of each token, by default one.
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
