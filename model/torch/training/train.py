"""Quantisation-aware training of the float model: one function and its loop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from sterna.model.checks import check_whole, real_number
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.profile import S16, NumericProfile
from sterna.model.tokenizer import VOCAB
from sterna.model.tokens.files import fitted
from sterna.model.tokens.text import MemoryText, TokenText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.torch.native_cpu.kernels import cpu_kernels
from sterna.model.torch.network.kernels import Kernels, by_triton, use_kernels
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.budget import Budget, StepBudget, TimeBudget
from sterna.model.torch.training.distributed import joined, own
from sterna.model.torch.training.heldout import measure_heldout
from sterna.model.torch.training.metrics import plot_loss
from sterna.model.torch.training.progress import TrainProgress, TrainReporter, default_reporter
from sterna.model.torch.training.recipe import Execution, Recording, TrainRecipe
from sterna.model.torch.training.record import Record, open_record
from sterna.model.torch.training.run_folder import RunFolder
from sterna.model.torch.training.saving import restore_run, save_run
from sterna.model.torch.training.state import RunSettings, TrainState
from sterna.model.torch.training.windows import WindowSampler

__all__ = ["TrainRecipe", "TrainResult", "train", "training_device"]

_LONGEST_CHARACTER = 4      # bytes in UTF-8


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training run."""

    model: LanguageModel
    step: int
    tokens: int
    seconds: float              # of the steps
    train_bpb: float            # running mean of the training loss; NaN before the first step
    heldout_bpb: float | None   # None only if interrupted before it was measured
    interrupted: bool
    checkpoint: Path            # the file; or, with several processes, the folder of their parts
    heldout_bytes: int = 0      # length of the text measured
    stop_signal: int | None = None


def train(
    config: ModelConfig,
    corpus: Corpus | TokenText,
    *,
    run_dir: str | Path,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    recipe: TrainRecipe | None = None,
    resume: bool = False,
    auto_resume: bool = False,
    overwrite: bool = False,
    profile: NumericProfile = S16,
    execution: Execution | None = None,
    recording: Recording | None = None,
    reporter: TrainReporter | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a model and leave ``checkpoint.pt``, ``metrics.csv`` and ``loss.png``.

    Raises ValueError if an argument is invalid, ``run_dir`` has a checkpoint and no option says
    what to do with it, or another process trains in it; CheckpointError if the checkpoint to resume
    is damaged or of another run; FloatingPointError if the loss or a weight becomes non-finite (the
    previous checkpoint is kept); OSError if ``run_dir`` cannot be written; ConnectionError if
    another process of the run ended.

    Parameters
    ----------
    config
        Shape of the model.
    corpus
        Training and held-out text. If not yet tokenised, it is read as bytes.
    run_dir
        Folder for the results, made if missing, and locked against other runs.
    steps, minutes
        The budget: give one. With steps the result is a function of the arguments (for
        one machine and number of threads); 0 steps leave the initial weights. Minutes are
        training time, converted to steps by the measured speed
        (:class:`sterna.model.torch.training.budget.TimeBudget`).
    seed
        Seed of the initial weights and of the order of the text.
    recipe
        Learning rate, batch and the like; by default :meth:`TrainRecipe.of` the weights.
    resume
        Resume from the checkpoint in ``run_dir``. A run with a budget in steps that was killed
        and resumed ends with exactly the weights of an uninterrupted one.
    auto_resume
        Resume if there is a checkpoint, else start: for a command repeated after a failure, as by
        torchrun.
    overwrite
        Start even if there is a checkpoint; it and the files beside it are replaced when the new
        run writes its first.
    profile
        Numeric profile to train for, one of :data:`sterna.model.profile.PROFILES`: its limits
        apply during training, and values are rounded to its formats if they are coarse.
    execution
        Device, threads, distribution over processes, and activation checkpointing. Every process
        started by torchrun calls this function with the same arguments.
    recording
        What is measured, saved and recorded, and how often.
    reporter
        Receives the progress; by default a bar on a terminal, plain lines otherwise.
    quiet
        Without a reporter: show nothing.

    Returns
    -------
    The trained model (under ``fsdp`` a part of it, on every process) and its figures. Ctrl-C and
    SIGTERM, to any process, are no errors: the step is finished, a checkpoint written, and the
    result marked ``interrupted``. A second signal takes effect at once.
    """
    execution, recording = execution or Execution(), recording or Recording()
    check_whole("seed", seed, 0, (1 << 63) - 1)
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget either in steps or in minutes")
    if steps is not None:
        check_whole("steps", steps, 0)
    if minutes is not None and not 0.0 < real_number("minutes", minutes) < math.inf:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    text = _in_tokens(corpus, config)
    settings = RunSettings(config, recipe or TrainRecipe.of(config.weights), seed, text, profile)
    folder = RunFolder(run_dir)
    how = {"resume": resume, "auto_resume": auto_resume, "overwrite": overwrite}
    with (joined(lambda local_rank: training_device(execution.device, local_rank)) as processes,
          ExitStack() as stack):
        processes.on_first(lambda: folder.resumes(**how))   # refused before the model is made
        sampler = WindowSampler(text, settings.recipe, seed)
        state = TrainState(settings, processes, execution)
        heldout = _heldout(settings, recording.heldout_bytes)
        shown = (reporter or default_reporter(quiet)) if processes.is_first else TrainReporter()
        stack.enter_context(closing(shown))
        processes.on_first(lambda: stack.enter_context(folder.locked(shown.message)))
        resumes = bool(processes.first_says(processes.on_first(lambda: folder.resumes(**how))))
        budget = _begin(state, folder if resumes else None, steps, minutes, shown)
        record = stack.enter_context(open_record(state, folder, recording))
        if resumes or not processes.first_says(processes.on_first(folder.has_checkpoint)):
            processes.on_first(record.begin)
        kernels = cpu_kernels(shown.message) if state.device.type == "cpu" else None
        if not budget.spent:
            _note_what_computes(state, kernels, shown)
        with (_arithmetic(execution.threads, config.weights), use_kernels(kernels),
              _stop_requested() as stop):
            stop_signal = _train_steps(
                state, sampler, budget, heldout, folder=folder, recording=recording,
                record=record, reporter=shown, stop=stop)
        if state.average is not None:
            state.average.exchange()        # return the weights that were measured
        processes.on_first(lambda: plot_loss(
            folder.metrics, folder.plot,
            title=f"{text.name}, d = {config.d}, {config.layers} layers"))
        saved = folder.saved
        if not budget.spent:
            shown.message(f"interrupted at step {state.step}; {saved} is saved, and "
                          f"resuming goes on from it")
    return TrainResult(
        state.model, state.step, state.tokens, state.seconds,
        math.nan if state.train_bpb is None else state.train_bpb, state.heldout_bpb,
        not budget.spent, saved, len(heldout), stop_signal)


def _in_tokens(corpus: Corpus | TokenText, config: ModelConfig) -> TokenText:
    """The text in tokens of the model's vocabulary."""
    if not isinstance(corpus, Corpus):
        return corpus
    if not corpus.train or len(corpus.heldout) < 2:
        raise ValueError(
            f"the corpus {corpus.name} has too little text that a vocabulary of {config.vocab} "
            f"can spell: {len(corpus.train)} bytes to train on and {len(corpus.heldout)} held out")
    return MemoryText(corpus, ByteTokenizer(min(config.vocab, VOCAB)))


def _heldout(settings: RunSettings, most_bytes: int) -> bytes:
    """The held-out text, or its beginning; the model knows all its characters."""
    text, vocab = settings.text, settings.config.vocab
    found = text.heldout(most_bytes)
    if not found and not text.heldout(_LONGEST_CHARACTER):
        raise ValueError(f"{text.name} holds out no text to judge by, which training needs")
    tokens = fitted(text.tokenizer, vocab).encode(found).size
    if tokens < 2:
        raise ValueError(
            f"{text.name} has too little held-out text: at least 2 tokens are needed, and its "
            f"first {most_bytes} bytes (heldout_bytes) have {tokens}, in whole characters")
    return found


def _begin(
    state: TrainState, resumed: RunFolder | None, steps: int | None, minutes: float | None,
    reporter: TrainReporter,
) -> Budget:
    """Load the checkpoint of a resumed run; return the remaining budget."""
    plan = None
    if resumed is not None:
        source, plan = restore_run(state, resumed)
        reporter.message(f"resumed {source} at step {state.step}")
    if steps is not None:
        return StepBudget(steps, state.step)
    assert minutes is not None
    return TimeBudget(60.0 * minutes, state.seconds, plan)


def _note_what_computes(
    state: TrainState, kernels: Kernels | None, reporter: TrainReporter,
) -> None:
    """Record the backend of the steps from here on, and report if it differs from before."""
    name = "torch's operators"
    if state.compiled:
        name = "blocks compiled by torch"
    elif kernels is not None:
        name = kernels.name
    elif by_triton(own(state.model.embedding.weight)):      # gathered weights are plain too
        name = "Triton's kernels"
    before = state.computed_with[-1:]
    if before == (name,):
        return
    if before:
        reporter.message(f"the steps so far were computed with {before[0]}: the last digits of "
                         f"weights may differ from those of a run by one of both")
    state.computed_with += (name,)


def _train_steps(
    state: TrainState, sampler: WindowSampler, budget: Budget, heldout: bytes, *,
    folder: RunFolder, recording: Recording, record: Record, reporter: TrainReporter, stop: _Stop,
) -> int | None:
    """Take steps until the budget is spent or a signal arrives, then write the checkpoint; return
    the signal, even if another process got it.

    Training time is that of the steps only. All processes use the same numbers, so that they take
    the same decisions. A run resumed at its end is measured again, as it may have been killed
    before the measurement, or measured on less text.
    """
    def keep(*, finished: bool) -> None:
        save_run(state, folder, budget.to_json(), finished=finished)
        record.begin()

    seconds_before, tokens_before = state.seconds, state.tokens
    next_save = time.monotonic() + recording.checkpoint_seconds
    evaluations = _due(state, budget, recording)
    _, signal, _ = _agreed(state, 0.0, stop, next_save)
    if budget.spent and state.step:     # resumed at its end; the last measure may be missing
        missing = state.heldout_bpb is None
        state.heldout_bpb = _measure(state, heldout, budget, reporter)
        if missing:
            record.after_step(state.heldout_bpb)
    while not budget.spent and signal is None:
        record.before_step()
        begin = time.monotonic()
        state.advance(sampler.windows(state.step, state.columns, budget.fraction),
                      budget.fraction, afresh=sampler.starts_afresh(state.step))
        took, signal, save = _agreed(state, time.monotonic() - begin, stop, next_save)
        state.seconds += took
        budget.took(took)

        if budget.spent:    # save before the final measurement
            state.heldout_bpb = None
            keep(finished=False)
        measured = None
        if (due := _due(state, budget, recording)) > evaluations:
            evaluations = due
            measured = state.heldout_bpb = _measure(state, heldout, budget, reporter)
        record.after_step(measured)
        reporter.update(TrainProgress(
            budget.fraction, state.step, state.seconds,
            math.nan if state.train_bpb is None else state.train_bpb, state.heldout_bpb,
            (state.tokens - tokens_before) / max(1e-9, state.seconds - seconds_before),
            state.skipped))
        if save or (
                recording.checkpoint_steps and state.step % recording.checkpoint_steps == 0):
            keep(finished=False)
            next_save = time.monotonic() + recording.checkpoint_seconds
        if state.processes.size == 1:
            signal = stop.signal    # no agreement needed
    keep(finished=budget.spent)
    return signal


def _agreed(
    state: TrainState, took: float, stop: _Stop, next_save: float,
) -> tuple[float, int | None, bool]:
    """Values common to all processes: the time of the slowest, a signal that any of them got, and
    whether the first is to save."""
    every = state.processes.gather([took, stop.signal or 0, time.monotonic() >= next_save])
    signal = int(max(signal for _, signal, _ in every))
    return max(took for took, _, _ in every), signal or None, bool(every[0][2])


def _due(state: TrainState, budget: Budget, recording: Recording) -> int:
    """Number of evaluations due so far."""
    if recording.heldout_steps is not None:
        return state.step // recording.heldout_steps + budget.spent
    return math.floor(budget.fraction * recording.heldout_evaluations + 1e-9)


def _measure(
    state: TrainState, heldout: bytes, budget: Budget, reporter: TrainReporter,
) -> float:
    if budget.spent:
        reporter.message(f"measuring on {len(heldout):,} held-out bytes")
    try:
        settings = state.settings
        with state.in_use():
            return state.processes.first_says(measure_heldout(
                state.model, heldout, settings.recipe, settings.text.tokenizer,
                progress=reporter.measured).bits_per_byte)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error} after step {state.step}; lower lr "
                                 f"({state.settings.recipe.lr})") from error


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stop:
    """The signal that asked the run to stop, or None."""

    signal: int | None = None


@contextmanager
def _stop_requested() -> Iterator[_Stop]:
    """Context that records the first Ctrl-C or SIGTERM (of torchrun, Slurm, containers) in an
    object, so that no step is left half done. A second signal has its usual effect."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread receives signals
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(signum: int, frame: FrameType | None) -> None:
        stop.signal = signum
        restore()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()


def training_device(name: str | None, local_rank: int | None = None) -> torch.device:
    """The device to train on; by default CUDA if available.

    With several processes on a machine, each takes the CUDA device numbered ``local_rank``.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if local_rank is not None and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.zeros(1, device=device).item()    # fails on the meta device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"cannot train on device {name!r}: {reason}") from error
    return device


@contextmanager
def _arithmetic(threads: int | None, weights: str) -> Iterator[None]:
    """Use ``threads`` torch threads, and for ternary weights torch's fastest float32 product, which
    may use bfloat16 or TF32: integers below 128 are exact in either, and gradients lose digits that
    do not matter; with float weights some might."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium" if weights == "ternary" else before[1])
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
