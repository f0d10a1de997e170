"""Text that a model writes while it is trained."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sterna.model.files import read_text
from sterna.model.quantized.sampling import Sampler
from sterna.model.stack.language_model import LanguageModel
from sterna.model.stack.sample import sample_tokens
from sterna.model.tokens.files import fitted
from sterna.model.tokens.stream import TextStream
from sterna.model.tokens.tokenizer import Tokenizer
from sterna.model.training.report.step_file import StepFile

__all__ = ["SAMPLE_PROMPT", "SampleWriter", "read_samples", "sample_text"]

SAMPLE_PROMPT = "The "
"""What every sample goes on from."""

_TOKENS, _TEMPERATURE, _SEED = 160, 0.7, 1
_HEAD = re.compile(r"^--- step (\d+) ---$", re.M)


def sample_text(model: LanguageModel, tokenizer: Tokenizer) -> str:
    """What a model writes after :data:`SAMPLE_PROMPT`, with it.

    The sampler has the same seed each time, so that texts differ by the weights alone.
    """
    tokens = fitted(tokenizer, model.config.vocab)
    stream = TextStream(tokens)
    drawn = sample_tokens(
        model, tokens.encode(SAMPLE_PROMPT.encode()), tokens=_TOKENS,
        sampler=Sampler(temperature=_TEMPERATURE, seed=_SEED), end_of_text=tokens.end_of_text)
    return SAMPLE_PROMPT + stream.add(list(drawn)) + stream.end()


class SampleWriter(StepFile):
    """A ``samples.txt``: at some steps, a text that the model wrote then."""

    @staticmethod
    def entries(path: Path) -> Iterable[tuple[int, str]]:
        """Step and text of every entry of such a file; ValueError as of :func:`read_samples`."""
        return [(step, _entry(step, text)) for step, text in read_samples(path).items()]

    def add(self, step: int, text: str) -> None:
        """Append a text; at once on disk."""
        self.append(_entry(step, text))


def _entry(step: int, text: str) -> str:
    # A line of the text that looks like a head is moved, so that the file can be read back.
    return f"--- step {step} ---\n{_HEAD.sub(lambda found: ' ' + found[0], text)}\n\n"


def read_samples(path: str | Path) -> dict[int, str]:
    """The texts of a ``samples.txt`` by step.

    Raises
    ------
    ValueError
        If the file cannot be read, or is not UTF-8.
    """
    parts = _HEAD.split(read_text(path, at_least=0).decode())[1:]
    return {int(step): text.strip("\n")
            for step, text in zip(parts[::2], parts[1::2], strict=True)}
