"""Both oracles: tensors and answers computed by the integer reference and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.core.compute.request import Request
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison, Difference, compare
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.taps import TapRecorder

__all__ = [
    "Answer", "Generation", "Oracle", "Stepper", "answer", "compare_logits", "compare_tokens",
    "record_activations", "tensor_names"]


def tensor_names(model: QuantizedModel) -> list[str]:
    """Every tensor of a step, in the order of computation."""
    recorder, reference = TapRecorder(), IntegerModel(model)
    reference.step(np.zeros((1, *model.entry.shape), dtype=np.int64), reference.start(), recorder)
    return recorder.names()


def record_activations(
    model: QuantizedModel, texts: Sequence[np.ndarray], names: Sequence[str],
) -> list[Activations]:
    """Run each text, tokens ``[length]`` or frames ``[length, channels]``, from a fresh state with
    both oracles, texts of equal length in a batch, and record the tensors called ``names``.

    The oracles are compared before any simulation, so that later differences are due to the
    gateware. Without names nothing is run.
    """
    found = [Activations(text, {}, {}, Comparison()) for text in texts]
    if not names:
        return found
    reference_model, graph = IntegerModel(model), OnnxModel(model, taps=names)
    for length in sorted({len(text) for text in texts}):
        same = [index for index, text in enumerate(texts) if len(text) == length]
        together = np.stack([texts[index] for index in same])
        recorders = TapRecorder(names), TapRecorder(names)
        reference_model.run(together, tap=recorders[0])
        graph.run(together, tap=recorders[1])
        values = [{name: recorder[name] for name in names} for recorder in recorders]
        for place, index in enumerate(same):
            reference, onnx = (
                {name: value[:, place] for name, value in each.items()} for each in values)
            found[index] = Activations(texts[index], reference, onnx, sum(
                (compare(name, reference[name], onnx[name]) for name in names), Comparison()))
    return found


@dataclass(slots=True)
class Generation:
    """Tokens generated after one token of a prompt."""

    after: int  # position of that token in the prompt
    first: int  # position of the first generated token among all tokens of the request
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """Expected results of a request."""

    request: Request
    # tokens that the model ran: the prompt, and all but the last of each generation
    run: list[int] = field(default_factory=list)
    predict: list[bool] = field(default_factory=list)  # for each of them, whether the head ran
    # generations, for each token of the prompt with a prediction; none if only logits were
    # requested
    generations: list[Generation] = field(default_factory=list)
    # logits of every prediction, each int64 ``[vocab]``
    logits: list[np.ndarray] = field(default_factory=list)
    # state at the end, int64 ``[layers, d]``
    state: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def generated(self) -> list[int]:
        """All generated tokens."""
        return [token for generation in self.generations for token in generation.tokens]

    def as_ran(self) -> list[Request]:
        """The request as executed, for the cycle model, which does not support stop tokens.

        One request per generation with its actual number of tokens, and one for the rest of the
        prompt.
        """
        request = self.request
        pieces, begin = [], 0
        for end, tokens in (
            *((each.after + 1, len(each.tokens)) for each in self.generations),
            (len(request.prompt), 0),
        ):
            if end > begin:
                pieces.append(replace(
                    request, prompt=request.prompt[begin:end], tokens=tokens, stop_token=None,
                    start=request.start and not begin,
                    predict=request.predictions[begin:end]))
            begin = end
        return pieces


class Stepper(Protocol):
    """A model that runs token by token: the integer reference, or an ONNX graph."""

    def start(self, batch: int = 1) -> Any:
        """The state at the start of a sequence."""

    def step(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        """Advance by a token; return logits and state."""


class Oracle:
    """Answers requests like one sequence of a core: state and generator persist."""

    def __init__(self, stepper: Stepper, logit_frac: int = 8) -> None:
        self._stepper, self._logit_frac = stepper, logit_frac
        self._state = stepper.start(1)
        self._generator = 1

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        if request.start:
            self._state, self._generator = self._stepper.start(1), request.seed
        sampler = Sampler(
            temperature=request.temperature, logit_frac=self._logit_frac, seed=self._generator)
        result = Answer(request)
        for position, (token, predict) in enumerate(
                zip(request.prompt, request.predictions, strict=True)):
            self._step(result, token, predict)
            if predict and request.tokens:
                result.generations.append(self._generate(result, sampler, position))
        result.state = np.asarray(self._state[:, 0], dtype=np.int64)
        self._generator = sampler.state
        return result

    def _generate(self, result: Answer, sampler: Sampler, position: int) -> Generation:
        request = result.request
        generation = Generation(position, len(result.run))
        while True:
            generation.tokens.append(sampler(result.logits[-1]))
            if (generation.tokens[-1] == request.stop_token
                    or len(generation.tokens) == request.tokens):
                return generation
            self._step(result, generation.tokens[-1], True)

    def _step(self, result: Answer, token: int, predict: bool) -> None:
        logits, self._state = self._stepper.step(np.array([token]), self._state)
        result.run.append(token)
        result.predict.append(predict)
        if predict:
            result.logits.append(np.asarray(logits[0], dtype=np.int64))


def answer(stepper: Stepper, requests: Sequence[Request], logit_frac: int = 8) -> list[Answer]:
    """Answer the requests of one sequence, one after the other, with an :class:`Oracle`."""
    oracle = Oracle(stepper, logit_frac)
    return [oracle.answer(request) for request in requests]


def compare_tokens(answer: Answer, got: Sequence[int]) -> Comparison:
    """Compare generated tokens with those of an answer."""
    expected = answer.generated
    if len(expected) != len(got):
        at = len(answer.request.prompt) + min(len(expected), len(got))
        return Comparison(len(expected), 1, Difference(
            at, None, "number of tokens", (0,), len(expected), len(got)))
    left, comparison = list(got), Comparison()
    for generation in answer.generations:
        count = len(generation.tokens)
        comparison += compare(
            "tokens", np.array(generation.tokens)[:, None], np.array(left[:count])[:, None],
            first_token=generation.first)
        del left[:count]
    return comparison


def compare_logits(answer: Answer, got: np.ndarray) -> Comparison:
    """Compare logits ``[predictions, vocab]`` with those of an answer."""
    if not answer.logits and not len(got):
        return Comparison()
    expected, first = np.array(answer.logits), (*answer.predict, True).index(True)
    if expected.shape != got.shape:
        at = first + min(len(expected), len(got))
        return Comparison(expected.size, 1, Difference(
            at, None, "number of logits", (0,), expected.size, got.size))
    return compare("logits", expected, got, first_token=first)
