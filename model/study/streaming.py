"""A text much longer than those of training, read with all keys, a window of them, and sinks."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

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

__all__ = ["FORMS", "Decoding", "Note", "Streaming", "decode", "in_form", "read"]

FORMS = ("full", "window", "sinks")
"""The forms of attention that are compared."""

Note: TypeAlias = Callable[[int, int], None]
"""Told how many tokens of how many are read."""

_PIECE = 256
"""Tokens read at once; the outputs do not depend on it."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a text is read.

    Parameters
    ----------
    tokens
        Bytes to predict.
    sinks, size
        Options of the mixer ``sinks``. The plain window has ``sinks + size`` keys, so that a
        token sees equally many in both.
    most_keys
        Where full attention ends, whose keys grow with the text.

    Raises
    ------
    ValueError
        If a number is out of its range, or the text ends before the window is full.
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
        """The pattern of a form of full attention.

        Raises
        ------
        ValueError
            If ``mixer`` is anything but full attention in every layer.
        """
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
    """A copy of a model whose attention, of the same weights, has another form.

    Raises
    ------
    ValueError
        If it has other mixers than attention.
    """
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
