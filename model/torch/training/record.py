"""The record of a run beside its checkpoint: figures, shares of ternary codes, text samples."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sterna.model.extras import install_command
from sterna.model.files import read_text, write_atomically
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import TextStream, Tokenizer
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.quantizers import SMALLEST_SCALE, ternary_codes_and_scale
from sterna.model.torch.stack.evaluate import sample_tokens
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.distributed import Processes, own
from sterna.model.torch.training.metrics import CodeShares, CodesWriter, MetricsWriter, StepFile
from sterna.model.torch.training.recipe import Recording
from sterna.model.torch.training.run_folder import RunFolder
from sterna.model.torch.training.state import RunSettings, TrainState

__all__ = ["CodeCounts", "CodeWatch", "Record", "SampleWriter", "open_record", "overall",
           "read_samples", "ternary_errors"]

_SAMPLE_PROMPT = "The "     # start of every sample
_TOKENS, _TEMPERATURE, _SEED = 160, 0.7, 1
_HEAD = re.compile(r"^--- step (\d+) ---$", re.M)


def _sample_text(model: LanguageModel, tokenizer: Tokenizer) -> str:
    """A text sampled from a model, always with the same seed: only weights make a difference."""
    tokens = fitted(tokenizer, model.config.vocab)
    stream = TextStream(tokens)
    drawn = sample_tokens(
        model, tokens.encode(_SAMPLE_PROMPT.encode()), tokens=_TOKENS,
        sampler=Sampler(temperature=_TEMPERATURE, seed=_SEED), end_of_text=tokens.end_of_text)
    return _SAMPLE_PROMPT + stream.add(list(drawn)) + stream.end()


class SampleWriter(StepFile):
    """A ``samples.txt``: a text written by the model at some steps."""

    entry = re.compile(r"^--- step (\d+) ---\n.*?(?=^--- step \d+ ---$|\Z)", re.M | re.S)

    def add(self, step: int, text: str) -> None:
        """Append a text."""
        # Indent lines that look like a head, so that the file can be read back.
        moved = _HEAD.sub(lambda found: " " + found[0], text)
        self.append(f"--- step {step} ---\n{moved}\n\n")


def read_samples(path: str | Path) -> dict[int, str]:
    """The texts of a ``samples.txt`` by step."""
    parts = _HEAD.split(read_text(path, at_least=0).decode())[1:]
    return {int(step): text.strip("\n")
            for step, text in zip(parts[::2], parts[1::2], strict=True)}


class _TensorBoardWriter:
    """Event files; TensorBoard drops the steps that a run resumed at ``resume_step`` repeats."""

    def __init__(self, folder: str | Path, resume_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(
            str(folder), purge_step=resume_step + 1 if resume_step else None)

    def add(self, row: Mapping[str, float | None]) -> None:
        step = row["step"]
        assert step is not None
        for name, value in row.items():
            if name != "step" and value is not None and value == value:
                self._writer.add_scalar(name, value, int(step))

    def close(self) -> None:
        self._writer.close()


class CodeCounts(NamedTuple):
    """Code counts of one matrix: all, changed by a step, and zero after it."""

    weights: int
    flipped: int
    zeros: int

    @property
    def shares(self) -> CodeShares:
        """The counts as shares of all codes."""
        return CodeShares(self.flipped / self.weights, self.zeros / self.weights)


class CodeWatch:
    """Compares the codes of every BitLinear, by module name, before and after a step.

    Costs about a tenth of a step, so use it on a sample of steps. If matrices are sharded, each
    process counts its own rows; else only the first process counts. Scales of rows may differ from
    those of training in the last bit, as the summation order differs.
    """

    def __init__(self, model: nn.Module, processes: Processes) -> None:
        weights = {name: each.weight for name, each in model.named_modules()
                   if isinstance(each, BitLinear)}
        self._processes = processes
        self._in_parts = any(isinstance(each, DTensor) for each in weights.values())
        self._weights = weights if self._in_parts or processes.is_first else {}
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Save the codes before a step; called by all processes."""
        self._before = self._codes()

    def end(self) -> dict[str, CodeCounts]:
        """Compare with the codes after the step; called by all processes. Empty on one that does
        not count."""
        counts: list[float] = []
        for before, after in zip(self._before, self._codes(), strict=True):
            counts += (after.numel(), int(torch.count_nonzero(after != before)),
                       after.numel() - int(torch.count_nonzero(after)))
        self._before = []
        numbers = iter(map(int, self._summed(counts)))
        return {name: CodeCounts(next(numbers), next(numbers), next(numbers))
                for name in self._weights}

    def _codes(self) -> list[Tensor]:
        """This process's codes of each matrix, int8."""
        weights = list(self._weights.values())
        if not self._in_parts:
            return [ternary_codes_and_scale(each)[0].to(torch.int8) for each in weights]
        parts = [own(each).detach() for each in weights]
        means = self._summed([
            part.float().abs().mean(dim=1).sum().item() / each.shape[0]
            for part, each in zip(parts, weights, strict=True)])
        return [ternary_codes_and_scale(part, torch.tensor(max(mean, SMALLEST_SCALE)))[0]
                .to(torch.int8) for part, mean in zip(parts, means, strict=True)]

    def _summed(self, numbers: list[float]) -> list[float]:
        """The sums over all processes that count."""
        if not self._in_parts:
            return numbers
        return [sum(each) for each in zip(*self._processes.gather(numbers), strict=True)]


def overall(counts: Mapping[str, CodeCounts]) -> CodeShares | None:
    """The shares over all matrices; None if there are none."""
    return CodeCounts(*map(sum, zip(*counts.values(), strict=True))).shares if counts else None


@torch.no_grad()
def ternary_errors(model: nn.Module) -> dict[str, float]:
    """``|W - s T| / |W|`` in the Frobenius norm of every ternary projection, by module name; 0 for
    a zero matrix, 0.40 for uniform weights, 0.51 for normal ones."""
    found = {}
    for name, each in model.named_modules():
        if isinstance(each, BitLinear):
            codes, scale = ternary_codes_and_scale(each.weight)
            weight = each.weight.float()
            size = float(torch.linalg.vector_norm(weight))
            found[name] = float(
                torch.linalg.vector_norm(weight - scale * codes)) / size if size else 0.0
    return found


_STEPS_PER_ROW, _STEPS_PER_CODES = 10, 100


class Record:
    """Watches the steps of a run; made by :func:`open_record`.

    Every process has one, as codes may be sharded; the first writes. The files of a replaced run
    are kept until :meth:`begin`; rows and texts are queued until then.
    """

    def __init__(self, state: TrainState, what: Recording, files: Callable[[], _Files]) -> None:
        self._state, self._every, self._files = state, what.sample_every, files
        self._writes = state.processes.is_first
        self._open: _Files | None = None
        self._waiting: list[Callable[[_Files], object]] = []
        self._watch = CodeWatch(state.model, state.processes)
        self._watched = False

    def begin(self) -> None:
        """Open the files, if not yet open, and write the queued entries."""
        if self._writes and self._open is None:
            self._open = self._files()
            for write in self._waiting:
                write(self._open)
            self._waiting.clear()

    def before_step(self) -> None:
        """Save the codes if they are to be compared after the step; called by all processes."""
        self._watched = (self._state.step + 1) % _STEPS_PER_ROW == 0
        if self._watched:
            self._watch.begin()

    def after_step(self, heldout_bpb: float | None) -> None:
        """Write the entries that are due; ``heldout_bpb`` is given if just measured. Called by all
        processes."""
        state = self._state
        counts = self._watch.end() if self._watched else {}
        if not self._writes:
            return
        if heldout_bpb is not None or self._watched:
            shares = overall(counts)
            row = {"step": state.step, "seconds": state.seconds, "tokens": state.tokens,
                   "train_bpb": state.train_bpb, "heldout_bpb": heldout_bpb, "lr": state.lr,
                   "flips": None if shares is None else shares.flips,
                   "zeros": None if shares is None else shares.zeros,
                   "gradient_norm": state.gradient_norm, "skipped": state.skipped}
            self._write(lambda files: [each.add(row) for each in files.figures])
        if counts and state.step % _STEPS_PER_CODES == 0:
            step, found = state.step, {name: each.shares for name, each in counts.items()}
            self._write(lambda files: files.codes.add(step, found))
        if self._every is not None and state.step % self._every == 0:
            with state.in_use():
                text = _sample_text(state.model, state.settings.text.tokenizer)
            at = state.step

            def write(files: _Files) -> None:
                for each in files.samples:
                    each.add(at, text)
            self._write(write)

    def _write(self, write: Callable[[_Files], object]) -> None:
        if self._open is None:
            self._waiting.append(write)
        else:
            write(self._open)


@dataclass(frozen=True, slots=True)
class _Files:
    """The open files: figures by row, shares of codes by projection, texts."""

    figures: Sequence[MetricsWriter | _TensorBoardWriter]
    codes: CodesWriter
    samples: Sequence[SampleWriter]


@contextmanager
def open_record(state: TrainState, folder: RunFolder, what: Recording) -> Iterator[Record]:
    """The record of a run. When it begins, rows after the step of ``state`` are dropped."""
    if what.sample_every is not None and state.processes.size > 1:
        raise ValueError(f"sample_every is for one process, got {state.processes.size}")
    if what.tensorboard:
        try:
            import torch.utils.tensorboard  # noqa: F401  (whether it is there)
        except ImportError as error:
            raise ValueError(f"tensorboard=true needs the package tensorboard: "
                             f"{install_command('tensorboard')}") from error
    at = state.step
    with ExitStack() as stack:
        def files() -> _Files:
            if not at:      # remains of a replaced run
                events = folder.tensorboard.glob("events.out.tfevents.*")
                for path in (folder.report, folder.plot, folder.samples, *events):
                    path.unlink(missing_ok=True)
            figures: list[MetricsWriter | _TensorBoardWriter] = [
                stack.enter_context(closing(MetricsWriter(folder.metrics, at)))]
            if what.tensorboard:
                figures.append(stack.enter_context(
                    closing(_TensorBoardWriter(folder.tensorboard, at))))
            codes = stack.enter_context(closing(CodesWriter(folder.codes, at)))
            write_atomically(folder.description, json.dumps(
                _describe_run(state.settings, what.command), indent=2) + "\n")
            samples = [] if what.sample_every is None else [stack.enter_context(
                closing(SampleWriter(folder.samples, at)))]
            return _Files(figures, codes, samples)

        yield Record(state, what, files)


def _describe_run(settings: RunSettings, command: Sequence[str]) -> dict[str, Any]:
    """The settings, command and environment of a run, as stored in ``run.json``."""
    return {
        "command": list(command), "config": settings.config.to_json(),
        "recipe": asdict(settings.recipe), "profile": settings.profile.name,
        "seed": settings.seed, "text": settings.text.name,
        "tokenizer": settings.text.tokenizer.kind,
        "versions": {
            "sterna": version("sterna"), "torch": str(torch.__version__),
            "python": platform.python_version()},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(),
                    "system": platform.system()},
    }
