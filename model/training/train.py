"""Quantisation-aware training of the float model, in one function."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from sterna.model.checks import check_whole, real_number
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training.loss_plot import plot_loss
from sterna.model.training.metrics import MetricsWriter
from sterna.model.training.progress import TrainProgress, TrainReporter, default_reporter
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.run import Run

__all__ = ["METRICS_NAME", "PLOT_NAME", "TrainRecipe", "TrainResult", "train"]

METRICS_NAME = "metrics.csv"
"""File of a run: loss and learning rate by step."""
PLOT_NAME = "loss.png"
"""File of a run: the losses as a picture."""

_STEPS_PER_ROW = 10
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run came to.

    ``train_bpb`` is a running mean of the training loss, NaN before the first step;
    ``heldout_bpb`` is None only if the run was interrupted before it was measured.
    """

    model: LanguageModel
    step: int
    tokens: int
    seconds: float
    train_bpb: float
    heldout_bpb: float | None
    interrupted: bool
    checkpoint: Path


def train(
    config: ModelConfig,
    corpus: Corpus,
    *,
    run_dir: str | Path,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    recipe: TrainRecipe | None = None,
    resume: bool = False,
    device: str | None = None,
    threads: int | None = None,
    heldout_evaluations: int = 8,
    checkpoint_seconds: float = 60.0,
    checkpoint_steps: int | None = None,
    reporter: TrainReporter | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a model and leave ``checkpoint.pt``, ``metrics.csv`` and ``loss.png``.

    Parameters
    ----------
    config
        Shape of the model.
    corpus
        Text to train on and to judge by.
    run_dir
        Folder for the results, made if missing. Without ``resume`` an earlier run's
        files in it are replaced.
    steps, minutes
        The budget: give one. With steps the result is a function of the arguments (for
        one machine and number of threads); with minutes the learning rate follows the
        clock.
    seed
        Seed of the initial weights and of the order of the text.
    recipe
        Learning rate, batch and the like; by default :meth:`TrainRecipe.of` the weights.
    resume
        Go on from the checkpoint in ``run_dir``, if there is one. A run with a budget in
        steps that was killed and resumed ends with exactly the weights of an
        uninterrupted one.
    device
        A torch device; by default ``cuda`` if present, else ``cpu``.
    threads
        Number of CPU threads; by default what torch has.
    heldout_evaluations
        How often the held-out text is evaluated during the run, the end included.
    checkpoint_seconds, checkpoint_steps
        Write a checkpoint this often: in seconds, and (if given) also in steps.
    reporter
        Told about the progress; by default a bar on a terminal, plain lines otherwise.
    quiet
        Without a reporter: show nothing.

    Returns
    -------
    The trained model and its figures. Ctrl-C is not an error: the step is finished, a
    checkpoint written, and the result says ``interrupted``. A second Ctrl-C raises
    KeyboardInterrupt at once.

    Raises
    ------
    ValueError
        If the budget, the device or another argument makes no sense.
    CheckpointError
        If ``resume`` finds a damaged checkpoint, or one of another model, corpus, seed
        or recipe. (It is a ValueError.)
    FloatingPointError
        If the loss stops being finite.
    OSError
        If ``run_dir`` cannot be written.
    """
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget either in steps or in minutes")
    for name, value, low, high in (
        ("steps", steps, 1, None), ("threads", threads, 1, _MOST_THREADS),
        ("heldout_evaluations", heldout_evaluations, 1, None),
        ("checkpoint_steps", checkpoint_steps, 1, None), ("seed", seed, 0, (1 << 63) - 1),
    ):
        if value is not None:
            check_whole(name, value, low, high)
    if minutes is not None and not 0.0 < real_number("minutes", minutes) < math.inf:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    if not corpus.train or len(corpus.heldout) < 2:
        raise ValueError(
            f"the corpus {corpus.name} has too little text that a vocabulary of {config.vocab} "
            f"can spell: {len(corpus.train)} bytes to train on and {len(corpus.heldout)} held out")
    largest = max(max(corpus.train), max(corpus.heldout))
    if largest >= config.vocab:
        raise ValueError(
            f"the corpus {corpus.name} has the byte {largest}, so vocab must be at least "
            f"{largest + 1}, got {config.vocab}")
    recipe = recipe or TrainRecipe.of(config.weights)
    run = Run(config, corpus, Path(run_dir), seed, recipe, _device(device))
    if resume and run.checkpoint_path.exists():
        run.load()
    else:
        # Or a run killed before its first save would be resumed as the one before it.
        run.checkpoint_path.unlink(missing_ok=True)
    budget = _Budget(steps, minutes, run.seconds)
    reporter = reporter or default_reporter(quiet)
    with closing(reporter), closing(
            MetricsWriter(run.folder / METRICS_NAME, run.step)) as metrics:
        if run.step:
            reporter.message(f"resumed {run.checkpoint_path} at step {run.step}")
        with _arithmetic(threads, config.weights), _interrupt_flag() as interrupt:
            _loop(run, budget, metrics, reporter, interrupt, heldout_evaluations,
                  checkpoint_seconds, checkpoint_steps)
            run.save()
    plot_loss(run.folder / METRICS_NAME, run.folder / PLOT_NAME,
              title=f"{corpus.name}, d = {config.d}, {config.layers} layers")
    interrupted = budget.used(run.step) < 1.0
    if interrupted:
        reporter.message(f"interrupted at step {run.step}; {run.checkpoint_path} is saved, "
                         "and resuming goes on from it")
    return TrainResult(
        run.model, run.step, run.tokens, run.seconds,
        math.nan if run.train_bpb is None else run.train_bpb, run.heldout_bpb, interrupted,
        run.checkpoint_path)


class _Budget:
    """How much of the steps, or of the time, is used."""

    def __init__(self, steps: int | None, minutes: float | None, seconds_before: float) -> None:
        self._steps, self._minutes = steps, minutes
        self._start = time.monotonic() - seconds_before

    def seconds(self) -> float:
        """Training time so far, over all sessions."""
        return time.monotonic() - self._start

    def used(self, step: int) -> float:
        """Used part of the budget after ``step`` steps; 1 and above means spent."""
        if self._steps is not None:
            return step / self._steps
        assert self._minutes is not None
        return self.seconds() / (60.0 * self._minutes)


def _loop(
    run: Run, budget: _Budget, metrics: MetricsWriter, reporter: TrainReporter,
    interrupt: threading.Event, heldout_evaluations: int, checkpoint_seconds: float,
    checkpoint_steps: int | None,
) -> None:
    """Take steps until the budget is spent or Ctrl-C is pressed."""
    session_start, session_tokens = time.monotonic(), run.tokens
    next_save = session_start + checkpoint_seconds
    fraction = budget.used(run.step)
    evaluations = math.floor(fraction * heldout_evaluations + 1e-9)
    while fraction < 1.0 and not interrupt.is_set():
        run.advance(fraction)
        fraction = budget.used(run.step)
        measured = None
        if fraction * heldout_evaluations + 1e-9 >= evaluations + 1:
            evaluations = math.floor(fraction * heldout_evaluations + 1e-9)
            measured = run.measure()
        run.seconds = budget.seconds()
        if measured is not None or run.step % _STEPS_PER_ROW == 0:
            metrics.add({
                "step": run.step, "seconds": run.seconds, "tokens": run.tokens,
                "train_bpb": run.train_bpb, "heldout_bpb": measured, "lr": run.lr})
        now = time.monotonic()
        assert run.train_bpb is not None
        reporter.update(TrainProgress(
            min(1.0, fraction), run.step, run.seconds, run.train_bpb, run.heldout_bpb,
            (run.tokens - session_tokens) / max(1e-9, now - session_start)))
        if now >= next_save or (checkpoint_steps and run.step % checkpoint_steps == 0):
            run.save()
            next_save = time.monotonic() + checkpoint_seconds


def _device(name: str | None) -> torch.device:
    """The device to train on; CUDA if none is asked for and one is there."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()    # the device meta has no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"cannot train on device {name!r}: {reason}") from error
    return device


@contextmanager
def _arithmetic(threads: int | None, weights: str) -> Iterator[None]:
    """Use ``threads`` threads of torch, and for ternary weights its fastest float32 product.

    The fastest may take its inputs in bfloat16 or TF32. The projections' products of the forward
    pass are of whole numbers below 128, which either keeps exact; gradients lose digits that
    do not matter. Float weights would lose some that might.
    """
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium" if weights == "ternary" else before[1])
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


@contextmanager
def _interrupt_flag() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, once; so that a step is never left half done."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # only the main thread gets signals
        return

    def note(signum: int, frame: FrameType | None) -> None:
        flag.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
