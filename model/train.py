"""Quantisation-aware training of the float model: the measured recipe, in one function."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.language_model import MatMulFreeLM, heldout_bpb
from sterna.model.plot import plot_loss
from sterna.model.progress import TrainProgress, TrainReporter, default_reporter

__all__ = ["CHECKPOINT_NAME", "METRICS_NAME", "PLOT_NAME", "TrainRecipe", "TrainResult",
           "WindowSampler", "train"]

CHECKPOINT_NAME = "checkpoint.pt"
METRICS_NAME = "metrics.csv"
PLOT_NAME = "loss.png"

_METRICS = ("step", "seconds", "tokens", "train_bpb", "heldout_bpb", "lr")
_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """How to train; the defaults are what measurement chose for small models.

    Parameters
    ----------
    lr
        Peak learning rate.
    embedding_lr_factor
        The embedding learns this much faster.
    batch, window
        Windows per step, and bytes per window.
    beta1, beta2
        Of AdamW; there is no weight decay.
    warmup_steps
        Steps of linear warm-up.
    final_lr_fraction
        The learning rate falls to this part of its peak, along a cosine over the budget.
    clip_norm
        Limit of the gradient's norm.
    carry_state
        Whether a window follows the one before it, with the recurrent state carried
        over; otherwise windows lie anywhere and start from the zero state.
    """

    lr: float = 1e-2
    embedding_lr_factor: float = 3.0
    batch: int = 8
    window: int = 128
    beta1: float = 0.9
    beta2: float = 0.99
    warmup_steps: int = 50
    final_lr_fraction: float = 0.02
    clip_norm: float = 1.0
    carry_state: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "embedding_lr_factor", "clip_norm", "final_lr_fraction"):
            value = getattr(self, name)
            if not (value > 0.0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, got {value}")
        for name in ("batch", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")

    @property
    def tokens_per_step(self) -> int:
        """Bytes predicted in one step."""
        return self.batch * self.window

    def learning_rate(self, step: int, fraction: float) -> float:
        """Learning rate of step ``step`` (from 0) when ``fraction`` of the budget is used."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))
        low = self.final_lr_fraction
        return self.lr * warm * (low + (1.0 - low) * cosine)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run came to.

    ``heldout_bpb`` is None only for a run interrupted before it was measured.
    """

    model: MatMulFreeLM
    step: int
    tokens: int
    seconds: float
    train_bpb: float
    heldout_bpb: float | None
    interrupted: bool
    checkpoint: Path


class WindowSampler:
    """The windows of every step, as a function of (seed, step) and nothing else."""

    def __init__(self, text: bytes, recipe: TrainRecipe, seed: int) -> None:
        if len(text) < recipe.window + 1:
            raise ValueError(
                f"the train text has {len(text)} bytes; a window of {recipe.window} needs at "
                f"least {recipe.window + 1}")
        self._text = np.frombuffer(text, dtype=np.uint8)
        self._recipe = recipe
        self._seed = seed
        self._columns = np.arange(recipe.window + 1)[:, None]
        # Carried: every stream reads its share of the text once in an epoch.
        self._epoch_steps = max(1, len(text) // recipe.tokens_per_step)

    def starts_afresh(self, step: int) -> bool:
        """Whether the windows of ``step`` start from the zero state."""
        return not self._recipe.carry_state or step % self._epoch_steps == 0

    def windows(self, step: int) -> np.ndarray:
        """Return bytes ``[window + 1, batch]``: inputs and, one row on, what follows them."""
        recipe, length = self._recipe, len(self._text)
        if recipe.carry_state:
            epoch, position = divmod(step, self._epoch_steps)
            shift = np.random.default_rng([self._seed, epoch]).integers(length)
            share = self._epoch_steps * recipe.window
            starts = shift + np.arange(recipe.batch) * share + position * recipe.window
            return self._text[(starts + self._columns) % length].astype(np.int64)
        generator = np.random.default_rng([self._seed, step])
        starts = generator.integers(0, length - recipe.window, recipe.batch)
        return self._text[starts + self._columns].astype(np.int64)


class _Metrics:
    """The CSV file of a run: a row at a time, flushed; a resumed run drops rows it repeats."""

    def __init__(self, path: Path, resume_step: int) -> None:
        kept: list[dict[str, str]] = []
        if resume_step and path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= resume_step]
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _METRICS)
            writer.writeheader()
            writer.writerows(kept)
        os.replace(temporary, path)
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file)

    def add(self, step: int, seconds: float, tokens: int, train_bpb: float,
            held: float | None, lr: float) -> None:
        self._writer.writerow((
            step, f"{seconds:.2f}", tokens, f"{train_bpb:.5f}",
            "" if held is None else f"{held:.5f}", f"{lr:.6g}"))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _optimizer(model: MatMulFreeLM, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """AdamW in two groups: the embedding, then all else."""
    embedding = model.embedding.weight
    others = [p for p in model.parameters() if p is not embedding]
    return torch.optim.AdamW(
        [{"params": [embedding], "factor": recipe.embedding_lr_factor},
         {"params": others, "factor": 1.0}],
        lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=0.0, fused=True)


@contextmanager
def _fast_arithmetic(threads: int | None) -> Iterator[None]:
    """Use ``threads`` threads of torch, and its fastest float32 matrix product, in the block.

    The fastest may take its inputs in bfloat16. All products of the forward pass are of
    whole numbers below 256, which that keeps exact; gradients lose what does not matter.
    """
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


def _check_resumable(found: Checkpoint, path: Path, wanted: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run, naming every difference."""
    differences = []
    for name, value in wanted.items():
        other = getattr(found, name)
        if other == value:
            continue
        if isinstance(value, dict):
            differences += [f"recipe {key} {other.get(key)!r}, not {value[key]!r}"
                            for key in value if other.get(key) != value[key]]
        else:
            differences.append(f"{name} {other!r}, not {value!r}")
    if differences:
        raise CheckpointError(
            f"cannot resume from {path}: it has " + "; ".join(differences))


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
        Folder for the results, made if missing.
    steps, minutes
        The budget: give one. With steps the result is a function of the arguments (for
        one machine and number of threads); with minutes the learning rate follows the
        clock.
    seed
        Seed of the initial weights and of the order of the text.
    recipe
        Learning rate, batch and the like.
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
    The trained model and its figures. Ctrl-C is not an error: a checkpoint is written
    and the result says ``interrupted``.

    Raises
    ------
    ValueError
        If the budget or an argument makes no sense.
    CheckpointError
        If ``resume`` finds a damaged checkpoint, or one of another model, corpus, seed
        or recipe.
    OSError
        If ``run_dir`` cannot be written.
    """
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget either in steps or in minutes")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if minutes is not None and not minutes > 0.0:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if config.vocab < 256:
        raise ValueError(f"training on bytes needs a vocab of at least 256, got {config.vocab}")
    run = _Run(config, corpus, Path(run_dir), seed, recipe or TrainRecipe(), resume,
               torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    reporter = reporter or default_reporter(quiet)
    try:
        with _fast_arithmetic(threads):
            return run.until(
                steps, minutes, reporter, heldout_evaluations, checkpoint_seconds,
                checkpoint_steps)
    finally:
        run.metrics.close()
        reporter.close()


class _Run:
    """A run's model, optimiser and files, and the loop over its steps."""

    def __init__(
        self, config: ModelConfig, corpus: Corpus, folder: Path, seed: int,
        recipe: TrainRecipe, resume: bool, device: torch.device,
    ) -> None:
        self.config, self.corpus, self.seed, self.recipe = config, corpus, seed, recipe
        self.sampler = WindowSampler(corpus.train, recipe, seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / CHECKPOINT_NAME
        self.device = device
        self.model = MatMulFreeLM(config, seed=seed).to(device)
        self.optimizer = _optimizer(self.model, recipe)
        self.step, self.seconds = 0, 0.0
        self.held: float | None = None
        self.carried = self.model.initial_state(recipe.batch)
        self.resumed = resume and self.path.exists()
        if self.resumed:
            self._load()
        self.metrics = _Metrics(folder / METRICS_NAME, self.step)

    def _load(self) -> None:
        found = load_checkpoint(self.path)
        _check_resumable(found, self.path, {
            "config": self.config, "seed": self.seed,
            "corpus_sha256": self.corpus.sha256, "recipe": asdict(self.recipe)})
        self.model.load_state_dict(found.weights)
        self.optimizer.load_state_dict(found.optimizer)
        self.step, self.seconds, self.held = found.step, found.seconds, found.heldout_bpb
        self.carried = found.carried.to(self.device)

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(Checkpoint(
            config=self.config, recipe=asdict(self.recipe), corpus_name=self.corpus.name,
            corpus_sha256=self.corpus.sha256, seed=self.seed, step=self.step,
            seconds=self.seconds, weights=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(), carried=self.carried,
            heldout_bpb=self.held), self.path)

    def _advance(self, fraction: float) -> tuple[Tensor, float]:
        """Do one step; return its loss in nats per byte, and the learning rate."""
        windows = torch.from_numpy(self.sampler.windows(self.step)).to(self.device)
        if self.sampler.starts_afresh(self.step):
            self.carried = torch.zeros_like(self.carried)
        rate = self.recipe.learning_rate(self.step, fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        logits, state = self.model.forward_time_major(windows[:-1], self.carried)
        loss = F.cross_entropy(logits.flatten(0, 1), windows[1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.recipe.clip_norm, foreach=True)
        self.optimizer.step()
        self.carried = state.detach()
        self.step += 1
        return loss.detach(), rate

    def until(
        self, steps: int | None, minutes: float | None, reporter: TrainReporter,
        heldout_evaluations: int, checkpoint_seconds: float, checkpoint_steps: int | None,
    ) -> TrainResult:
        """Train to the end of the budget, or to Ctrl-C."""
        if self.resumed:
            reporter.message(f"resumed {self.path} at step {self.step}")
        started = time.monotonic() - self.seconds
        session_start, session_step = time.monotonic(), self.step
        next_save = time.monotonic() + checkpoint_seconds
        recent: float | None = None
        interrupted = False

        def used() -> float:
            if steps is not None:
                return self.step / steps
            assert minutes is not None
            return (time.monotonic() - started) / (60.0 * minutes)

        every = 1.0 / max(1, heldout_evaluations)
        next_held = (math.floor(used() / every) + 1) * every
        rate = self.recipe.lr
        try:
            while (fraction := used()) < 1.0:
                loss, rate = self._advance(fraction)
                bpb = float(loss) / _LN2
                if not math.isfinite(bpb):
                    raise FloatingPointError(
                        f"the loss is not finite at step {self.step}; try a lower lr than "
                        f"{self.recipe.lr}")
                recent = bpb if recent is None else recent + 0.05 * (bpb - recent)
                now = time.monotonic()
                self.seconds = now - started
                held = None
                fraction = used()
                if fraction >= next_held - 1e-9:
                    next_held += every
                    held = self.held = heldout_bpb(self.model, self.corpus.heldout)
                if held is not None or self.step % 10 == 0:
                    self.metrics.add(self.step, self.seconds, self.tokens, recent, held, rate)
                reporter.update(TrainProgress(
                    min(1.0, fraction), self.step, self.seconds, recent, self.held,
                    (self.step - session_step) * self.recipe.tokens_per_step
                    / max(1e-9, now - session_start)))
                if now >= next_save or (checkpoint_steps and self.step % checkpoint_steps == 0):
                    self.save()
                    next_save = time.monotonic() + checkpoint_seconds
        except KeyboardInterrupt:
            interrupted = True
        self.save()
        plot_loss(self.folder / METRICS_NAME, self.folder / PLOT_NAME,
                  title=f"{self.corpus.name}, d{self.config.d} L{self.config.layers}")
        if interrupted:
            reporter.message(
                f"interrupted at step {self.step}; {self.path} is saved, resume goes on from it")
        return TrainResult(
            self.model, self.step, self.tokens, self.seconds,
            recent if recent is not None else float("nan"), self.held, interrupted, self.path)

    @property
    def tokens(self) -> int:
        """Bytes trained on so far."""
        return self.step * self.recipe.tokens_per_step


