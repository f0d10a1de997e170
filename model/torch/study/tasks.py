"""The tasks of a comparison, and their training: text, recall of pairs, digits."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus, builtin_corpus, corpus_from_file
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.stack.language_model import Classifier, LanguageModel
from sterna.model.torch.study.rows import Row
from sterna.model.torch.training.recipe import TrainRecipe
from sterna.model.torch.training.windows import WindowSampler

__all__ = ["DISTANCES", "DigitsTask", "RecallTask", "Task", "TextTask", "recipe_for", "swept_rates"]


class Task(ABC):
    """A task that models are trained for and judged by: a frozen dataclass of all that its figures
    depend on."""

    name: ClassVar[str]
    figure: ClassVar[str]
    """The figure of :meth:`measure` that a model is judged by."""
    more_is_better: ClassVar[bool]
    causal: ClassVar[bool]
    """Whether it requires causal mixers."""
    rates: ClassVar[dict[str, float]]
    """The default learning rate of models by their weights."""

    d: int
    layers: int
    batch: int
    tokens: int
    """Training tokens in the budget of equal tokens."""
    seconds: float
    """Seconds of CPU time to train in the budget of equal seconds."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of a sequence."""

    @abstractmethod
    def model(self, row: Row, seed: int) -> nn.Module:
        """A new model; refused, with the reason, if a mixer of the row does not suit this task."""

    def language_model(self, row: Row, vocab: int, seed: int) -> LanguageModel:
        """A language model of the task's size that can read its sequences."""
        model = LanguageModel(
            row.config(d=self.d, layers=self.layers, vocab=vocab, length=self.length), seed=seed)
        for block in model.blocks():
            block.mixer.check_length(self.length)
        return model

    @abstractmethod
    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, in the order given by a seed."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats."""

    @abstractmethod
    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """Figures of a trained model on held-out data."""

    def facts(self) -> dict[str, float]:
        """Figures of the task itself, as a reference for those of the models."""
        return {}

    def settings(self) -> dict[str, Any]:
        """All that the figures depend on, as plain data."""
        # Every task is a dataclass; this base class is not.
        return {"task": self.name, **asdict(self)}      # type: ignore[call-overload]

    def scaled(self, factor: float) -> Task:
        """The same task with ``factor`` times the budgets."""
        return replace(                                 # type: ignore[type-var]  # the same
            self, tokens=max(1, round(factor * self.tokens)), seconds=factor * self.seconds)


@dataclass(frozen=True, slots=True)
class TextTask(Task):
    """Bits per byte of held-out text, by a byte language model.

    Models are judged on windows of ``window`` bytes, and if the state is bounded also with the
    state carried through the text (``bpb_carried``). ``text`` is a file, with its last tenth held
    out; None is the bundled corpus.
    """

    name: ClassVar[str] = "text"
    figure: ClassVar[str] = "bpb"
    more_is_better: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    rates: ClassVar[dict[str, float]] = {"ternary": 1e-2, "float": 5e-3}

    d: int = 64
    layers: int = 4
    batch: int = 4
    tokens: int = 768 * 1024
    seconds: float = 20.0
    window: int = 256
    text: str | None = None

    @property
    def length(self) -> int:
        return self.window

    def model(self, row: Row, seed: int) -> LanguageModel:
        return self.language_model(row, 256, seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Bytes ``[time, batch]``, and the bytes that follow them."""
        windows = torch.from_numpy(_sampler(self, seed).windows(step))
        return windows[:-1], windows[1:]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the next byte, every window from the initial state."""
        assert isinstance(model, LanguageModel)
        logits, _ = model.forward_time_major(inputs, model.initial_state(inputs.shape[1]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        assert isinstance(model, LanguageModel)
        heldout = self.corpus().heldout
        figures = {"bpb": heldout_bpb(model, heldout, window=self.window)}
        if model.state_is_bounded:
            figures["bpb_carried"] = heldout_bpb(model, heldout)
        return figures

    def facts(self) -> dict[str, float]:
        """``unigram``: the entropy of the held-out bytes, a lower bound for models that ignore the
        context."""
        counts = np.bincount(np.frombuffer(self.corpus().heldout, dtype=np.uint8))
        shares = counts[counts > 0] / counts.sum()
        return {"unigram": float(-(shares * np.log2(shares)).sum())}

    def settings(self) -> dict[str, Any]:
        """With the content of the text, not its path."""
        corpus = self.corpus()
        return {**Task.settings(self), "text": corpus.name, "sha256": corpus.sha256}

    def corpus(self) -> Corpus:
        return _corpus(self.text)


@functools.cache
def _corpus(path: str | None) -> Corpus:
    return builtin_corpus() if path is None else corpus_from_file(path)


@functools.lru_cache(maxsize=1)
def _sampler(task: TextTask, seed: int) -> WindowSampler:
    recipe = TrainRecipe(batch=task.batch, window=task.window)
    return WindowSampler(MemoryText(task.corpus(), ByteTokenizer()), recipe, seed)


_IGNORED = -100
_HELDOUT = 1 << 20
"""Index of the held-out sequences, beyond any training step."""


DISTANCES = (16, 64, 128, 256)
"""Upper bounds, in tokens, of the distance ranges of reported recall."""


@dataclass(frozen=True, slots=True)
class RecallTask(Task):
    """Multi-query associative recall (MQAR of Zoology, arXiv 2312.04927), by distance.

    A sequence of ``window`` tokens is ``pairs`` of a key and a value, then blanks, and among them
    at random places ``queries``, each one of those keys: the model must answer with the value that
    followed it. Keys are drawn from the first half of the vocabulary and values from the second,
    both without repetition, queries with; the blank is one token more. (In the paper each key is
    queried once, at a distance by a power law.) Every step has new sequences. In training they
    have all, half or a quarter of the pairs, as in the paper; half of the steps use an eighth of
    the window and of its queries, with proportionally more sequences, a quarter of the steps a
    fourth, the others half or all: with only the whole window, little is learned in this budget.
    The ``judged`` held-out sequences all have the whole window.
    """

    name: ClassVar[str] = "recall"
    figure: ClassVar[str] = "accuracy"
    more_is_better: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    rates: ClassVar[dict[str, float]] = {"ternary": 5e-3, "float": 3e-3}

    d: int = 64
    layers: int = 4
    batch: int = 4
    tokens: int = 1024 * 1024
    seconds: float = 20.0
    window: int = 256
    pairs: int = 8
    queries: int = 128
    vocab: int = 32
    judged: int = 256

    def __post_init__(self) -> None:
        check_whole("pairs", self.pairs, 1, self.vocab // 2)
        check_whole("queries", self.queries, 1, self.window - 2 * self.pairs)

    @property
    def length(self) -> int:
        return self.window

    def model(self, row: Row, seed: int) -> LanguageModel:
        return self.language_model(row, self.vocab + 1, seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Tokens ``[time, batch]``, and the answers at the queries."""
        generator = np.random.default_rng([step, seed])
        pairs = max(1, self.pairs >> int(generator.integers(3)))
        cut = max(0, 4 - int(generator.geometric(0.5)))
        while cut and self.window >> cut < 2 * pairs + (self.queries >> cut):
            cut -= 1
        return self._sequences(self.batch << cut, self.window >> cut, pairs, self.queries >> cut,
                               [seed, step])[:2]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the answers."""
        return F.cross_entropy(
            _logits(model, inputs).flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """The share of correct answers: of all, and of those up to each of :data:`DISTANCES`, above
        the previous one."""
        inputs, targets, distances = self._sequences(
            self.judged, self.window, self.pairs, self.queries, [_HELDOUT])
        right = (_logits(model, inputs).argmax(-1) == targets).double()
        figures = {"accuracy": float(right[distances > 0].mean())}
        for above, most in zip((0, *DISTANCES), DISTANCES, strict=False):
            there = (distances > above) & (distances <= most)
            if there.any():
                figures[f"accuracy_{most}"] = float(right[there].mean())
        return figures

    def facts(self) -> dict[str, float]:
        """``chance``: the share for a random value of the sequence."""
        return {"chance": 1 / self.pairs}

    def _sequences(
        self, count: int, window: int, pairs: int, queries: int, seed: list[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, answers, and how many tokens ago the answer occurred (0 without a query), each
        ``[time, count]``."""
        generator = np.random.default_rng(seed)
        half, given = self.vocab // 2, 2 * pairs
        every = np.tile(np.arange(half), (count, 1))
        keys = generator.permuted(every, axis=1)[:, :pairs]
        values = half + generator.permuted(every, axis=1)[:, :pairs]
        asked = generator.integers(0, pairs, (count, queries))
        later = np.tile(np.arange(given, window), (count, 1))
        places = generator.permuted(later, axis=1)[:, :queries]
        inputs = np.full((count, window), self.vocab)
        inputs[:, 0:given:2], inputs[:, 1:given:2] = keys, values
        np.put_along_axis(inputs, places, np.take_along_axis(keys, asked, 1), 1)
        targets = np.full_like(inputs, _IGNORED)
        np.put_along_axis(targets, places, np.take_along_axis(values, asked, 1), 1)
        distances = np.zeros_like(inputs)
        np.put_along_axis(distances, places, places - (2 * asked + 1), 1)
        tokens, answers, ago = (
            torch.from_numpy(each.T.copy()) for each in (inputs, targets, distances))
        return tokens, answers, ago


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(model, LanguageModel)
    return model.forward_time_major(inputs, model.initial_state(inputs.shape[1]))[0]


_PIXELS, _LEVELS, _CLASSES = 64, 17, 10
_TEST = 360


@dataclass(frozen=True, slots=True)
class DigitsTask(Task):
    """The handwritten digits of scikit-learn, 1,797 images of 8 x 8 pixels of 17 levels.

    A sequence is the 64 pixels, row by row; positions are learned. A fifth of the images, chosen by
    the seed, is held out.
    """

    name: ClassVar[str] = "digits"
    figure: ClassVar[str] = "accuracy"
    more_is_better: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    rates: ClassVar[dict[str, float]] = {"ternary": 1e-2, "float": 3e-3}

    d: int = 64
    layers: int = 2
    batch: int = 16
    tokens: int = 512 * 1024
    seconds: float = 10.0

    @property
    def length(self) -> int:
        return _PIXELS

    def model(self, row: Row, seed: int) -> Classifier:
        config: ModelConfig = row.config(
            d=self.d, layers=self.layers, vocab=_LEVELS, length=self.length)
        return Classifier(config, _CLASSES, self.length, seed=seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Images ``[batch, pixels]`` and digits ``[batch]``."""
        images, digits, _, _ = _split(seed)
        chosen = torch.from_numpy(
            np.random.default_rng([seed, step]).integers(0, len(digits), self.batch))
        return images[chosen], digits[chosen]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the digit."""
        return F.cross_entropy(model(inputs), targets)

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """The share of correctly classified digits; chance is a tenth."""
        _, _, images, digits = _split(seed)
        return {"accuracy": float((model(images).argmax(-1) == digits).double().mean())}

    def facts(self) -> dict[str, float]:
        return {"chance": 1 / _CLASSES}


@functools.lru_cache(maxsize=1)
def _split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images ``[count, pixels]`` and digits to train on, then the held-out ones."""
    from sklearn.datasets import load_digits
    found = load_digits()
    images = torch.from_numpy(found.data.astype(np.int64))
    digits = torch.from_numpy(found.target.astype(np.int64))
    order = torch.from_numpy(np.random.default_rng([seed]).permutation(len(digits)))
    test, train = order[:_TEST], order[_TEST:]
    return images[train], digits[train], images[test], digits[test]


_FACTORS = (0.5, 1.0, 2.0)


def recipe_for(weights: str, task: Task, lr: float | None = None) -> TrainRecipe:
    """The recipe of models with ``weights`` for a task, with another learning rate if given: the
    plain one, as the other defaults of ``sterna train`` are for long runs on a small text.
    """
    plain = {"ternary": {"weight_decay": 0.5}}.get(weights, {})
    return TrainRecipe.of(weights, lr=task.rates[weights] if lr is None else lr, **plain,
                          batch=task.batch, window=task.length, float_start=0.0, general_share=0.0)


def swept_rates(weights: str, task: Task) -> tuple[float, ...]:
    """The initial learning rates of a sweep; the middle one is the task's."""
    return tuple(factor * task.rates[weights] for factor in _FACTORS)
