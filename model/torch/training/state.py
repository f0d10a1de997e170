"""The state of a run that changes from step to step, and a single step."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, S16, NumericProfile
from sterna.model.shards.text import ShardText
from sterna.model.tokens.files import fitted
from sterna.model.tokens.text import MemoryText, TokenText
from sterna.model.torch.network.bitlinear import bit_linear, float_linear
from sterna.model.torch.stack.language_model import LanguageModel, ModelState
from sterna.model.torch.training.checkpoint import Checkpoint, CheckpointError
from sterna.model.torch.training.distributed import (
    Processes,
    batch_in_parts,
    gather_for_backward,
    laid_out,
    like,
    local_gradients,
    own,
    whole,
)
from sterna.model.torch.training.optimizer import (
    WeightAverage,
    adamw,
    restore_adamw,
    set_learning_rate,
)
from sterna.model.torch.training.recipe import Execution, TrainRecipe

__all__ = ["RunSettings", "TrainState", "add_gradient", "next_token_loss"]

_SMOOTHING = 0.05
"""Weight of the newest loss in the running mean."""

_MOST_SKIPPED = 10
"""Consecutive non-finite steps that end the run."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that determines the weights of a run with a budget in steps."""

    config: ModelConfig
    recipe: TrainRecipe
    seed: int
    text: TokenText
    profile: NumericProfile = S16

    def __post_init__(self) -> None:
        if PROFILES.get(self.profile.name) != self.profile:
            raise ValueError(f"profile must be one of {', '.join(PROFILES)}, which a checkpoint "
                             f"can name; got {self.profile.name}")
        if fitted(self.text.tokenizer, self.config.vocab).vocab < self.text.tokenizer.vocab:
            raise ValueError(f"{self.text.name} is in {self.text.tokenizer.vocab} different "
                             f"tokens, so vocab must be at least that, got {self.config.vocab}")
        if self.recipe.reset_at_documents and self.text.tokenizer.end_of_text is None:
            raise ValueError("reset_at_documents needs a tokenizer with a token that ends a "
                             "document: sterna tokenizer train --end-of-text makes one")
        if self.config.weights != "ternary" and self.profile != S16:
            raise ValueError(f"profile {self.profile.name} is for ternary weights: float weights "
                             f"have no formats")
        if self.config.weights != "ternary" and self.recipe.float_start:
            raise ValueError("float_start is for ternary weights: with float weights all of the "
                             "run is in full precision")

    def differences(self, found: Checkpoint) -> list[str]:
        """How a checkpoint's settings differ from these, in words; empty if they do not."""
        same = found.corpus_sha256 == self.text.sha256      # even if the file was renamed
        recipe, tokenizer = TrainRecipe(**found.recipe), self.text.tokenizer
        pairs = [
            *((name, getattr(found.config, name), value)
              for name, value in asdict(self.config).items()),
            ("text", self.text.name if same else found.corpus_name, self.text.name),
            ("tokenizer", *(f"{each.kind} {each.sha256[:12]}"
                            for each in (found.tokenizer, tokenizer))),
            ("general text", found.general_sha256, getattr(self.text.general, "sha256", None)),
            ("seed", found.seed, self.seed), ("profile", found.profile.name, self.profile.name),
            *((name, getattr(recipe, name), value) for name, value in asdict(self.recipe).items())]
        result = [f"{name} {theirs}, not {ours}" for name, theirs, ours in pairs if theirs != ours]
        if not result and not same:
            result.append(f"another text of the name {self.text.name}")
        return result


class TrainState:
    """Model, optimiser and position between two steps, as in a checkpoint. Every process of a run
    starts with the same weights, from the seed."""

    def __init__(
        self, settings: RunSettings, processes: Processes, execution: Execution | None = None,
    ) -> None:
        config, recipe = settings.config, settings.recipe
        execution = execution or Execution()
        self.settings, self.processes, self.device = settings, processes, processes.device
        self.columns = _columns(recipe, processes)
        self.model = LanguageModel(config, seed=settings.seed, profile=settings.profile)
        if recipe.reset_at_documents:
            self.model.reset_at(settings.text.tokenizer.end_of_text)
        if recipe.carry_state and not self.model.state_is_bounded:
            raise ValueError(
                f"carry_state needs mixers whose state does not grow with the text, got "
                f"{config.mixer}")
        for block in self.model.blocks():
            block.mixer.check_length(max(recipe.window, recipe.eval_window or 0))
            block.recomputes = execution.checkpoint_activations
        if execution.checkpoint_activations and config.residual != "plain":
            raise ValueError(f"residual {config.residual} keeps no activations of blocks: leave "
                             f"out checkpoint_activations")
        if recipe.ema and (processes.size > 1 or execution.parallel == "fsdp"):
            raise ValueError(f"ema is for one process that has all weights, got {processes.size}"
                             f"{' and parallel fsdp' * (execution.parallel == 'fsdp')}")
        self.compiled = execution.compile
        if self.compiled:
            _compile_blocks(self.model, self.device)
        self._called = laid_out(self.model, execution.parallel, processes)
        self.optimizer = adamw(self.model, recipe)
        self.average = WeightAverage(self.model, recipe.ema) if recipe.ema else None
        self.carried = self._initial_state()
        self.step, self.seconds = 0, 0.0
        self.lr: float | None = None    # of the last step; None before the first
        self.train_bpb: float | None = None
        self.heldout_bpb: float | None = None
        self.computed_with: tuple[str, ...] = ()
        self.gradient_norm = math.nan   # of the last step, before clipping
        self.skipped = self._skipped_in_a_row = 0
        self._lengths = np.array([len(each) for each in settings.text.tokenizer.spellings])

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.settings.recipe.tokens_per_step

    def advance(self, windows: np.ndarray, fraction: float, *, afresh: bool) -> None:
        """Do one optimiser step on tokens int64 ``[window + 1, own columns of the batch]``, which
        start ``afresh`` or from the state of the previous step; ``fraction`` of the budget is used.
        A step with a non-finite gradient changes no weight; ten in a row end the run."""
        recipe = self.settings.recipe
        if afresh:
            self.carried = self._initial_state()
        in_floats = fraction < recipe.float_start
        gather_for_backward(self.model, in_floats or self.compiled)
        self.lr = recipe.learning_rate(self.step, fraction)
        set_learning_rate(self.optimizer, self.lr, recipe.decay(fraction))
        self.optimizer.zero_grad(set_to_none=True)
        with bit_linear.by(float_linear) if in_floats else nullcontext():
            loss, after = add_gradient(
                self._called, torch.from_numpy(windows).to(self.device), self.carried,
                recipe.accumulate)
        self.gradient_norm = float(whole(torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), recipe.clip_norm, foreach=True)))
        if is_finite := math.isfinite(self.gradient_norm):
            self._skipped_in_a_row = 0
        else:
            self._skip()
            after = self._initial_state()
        self.optimizer.step()
        if self.average is not None and is_finite:
            self.average.follow(self.step)
        if recipe.carry_state:
            self.carried = after
        self.step += 1
        self._note_loss(loss, windows[1:])

    def _skip(self) -> None:
        """Turn the pending optimiser step into one with gradient 0 that changes no weight, so that
        the moments stay in step with the run."""
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == _MOST_SKIPPED:
            raise FloatingPointError(
                f"the gradient was not finite in {_MOST_SKIPPED} steps in a row, up to step "
                f"{self.step + 1}; lower lr ({self.settings.recipe.lr})")
        for each in self.model.parameters():
            if each.grad is not None:
                own(each.grad).zero_()
        set_learning_rate(self.optimizer, 0.0, 0.0)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context with the model as measured and used: with its averaged weights, if the recipe
        keeps an average, and uncompiled, to avoid recompilation for other text lengths."""
        with (nullcontext() if self.average is None else self.average.in_use(),
              torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()):
            yield

    def _note_loss(self, loss: Tensor, targets: np.ndarray) -> None:
        """Convert nats per own token to bits per byte over all processes, and update the running
        mean."""
        every = self.processes.gather(
            [loss.item() * targets.size, int(self._lengths[targets].sum())])
        bpb = sum(nats for nats, _ in every) / sum(size for _, size in every) / math.log(2.0)
        if not math.isfinite(bpb):
            return
        before = bpb if self.train_bpb is None else self.train_bpb
        self.train_bpb = before + _SMOOTHING * (bpb - before)

    def check_finite(self) -> None:
        """Check every weight; called by all processes."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        wrong = next((number for number, each in enumerate(parameters)
                      if not bool(own(each).isfinite().all())), -1)
        if (found := int(max(self.processes.gather([wrong]))[0])) >= 0:
            raise FloatingPointError(
                f"the weights of {names[found]} are not finite after step {self.step}; lower lr "
                f"({self.settings.recipe.lr})")

    def position(self, budget: dict[str, Any]) -> Checkpoint:
        """A checkpoint without its tensors."""
        settings, text = self.settings, self.settings.text
        return Checkpoint(
            config=settings.config, recipe=asdict(settings.recipe), corpus_name=text.name,
            corpus_sha256=text.sha256, seed=settings.seed, step=self.step, seconds=self.seconds,
            weights={}, optimizer={}, carried=(), train_bpb=self.train_bpb,
            heldout_bpb=self.heldout_bpb, tokenizer=text.tokenizer,
            profile=settings.profile, budget=budget,
            data_folder=str(text.folder.resolve()) if isinstance(text, ShardText) else None,
            text_file=str(text.file) if isinstance(text, MemoryText) and text.file else None,
            computed_with=self.computed_with, skipped=self.skipped,
            general_sha256=getattr(text.general, "sha256", None))

    def checkpoint(self, budget: dict[str, Any]) -> Checkpoint:
        """All that is needed to resume, for the first process; called by all."""
        saved = self.optimizer.state_dict()
        return replace(
            self.position(budget),
            weights={name: self._whole(each) for name, each in self.model.state_dict().items()},
            optimizer={**saved, "state": {
                number: {name: self._whole(each) for name, each in moments.items()}
                for number, moments in saved["state"].items()}},
            carried=tuple(tuple(self._whole(batch_in_parts(each, self.processes))
                                for each in layer) for layer in self.carried),
            average=None if self.average is None else self.average.weights)

    def _whole(self, tensor: Tensor) -> Tensor:
        """The whole tensor, in memory of the first process only."""
        found = whole(tensor)
        return found.cpu() if self.processes.is_first else found.new_empty(0)

    def check_same_run(self, found: Checkpoint, source: Path) -> None:
        """Refuse a checkpoint of another run; the message names it ``source``."""
        if differences := self.settings.differences(found):
            raise CheckpointError(
                f"cannot resume from {source}: it was trained with {'; '.join(differences)}. "
                f"Resume with what it was trained with, or train in another folder")

    def restore(self, found: Checkpoint, source: Path) -> None:
        """Load a checkpoint if it belongs to this run."""
        self.check_same_run(found, source)
        weights = found.model(averaged=False).state_dict()
        self.model.load_state_dict({
            name: like(weights[name], each) for name, each in self.model.state_dict().items()})
        if self.average is not None:
            self.average.restore(dict(found.model().named_parameters()))
        restore_adamw(self.optimizer, found.optimizer["state"])
        if self.settings.recipe.carry_state:
            self.restore_carried(tuple(
                tuple(each[self.columns] for each in layer) for layer in found.carried))
        self.go_to(found)

    def restore_carried(self, carried: ModelState) -> None:
        """Load the state of the token mixers after the last windows of this process."""
        self.carried = tuple(tuple(each.to(self.device) for each in layer) for layer in carried)

    def go_to(self, found: Checkpoint) -> None:
        """Load the position and the figures so far."""
        self.step, self.seconds = found.step, found.seconds
        self.train_bpb, self.heldout_bpb = found.train_bpb, found.heldout_bpb
        self.computed_with, self.skipped = found.computed_with, found.skipped

    def _initial_state(self) -> ModelState:
        return self.model.initial_state(self.columns.stop - self.columns.start)


def _columns(recipe: TrainRecipe, processes: Processes) -> slice:
    """The windows of a batch that this process reads."""
    parts = processes.size * recipe.accumulate
    if processes.size > 1 and recipe.batch % parts:
        raise ValueError(
            f"batch must be a multiple of the number of processes times accumulate "
            f"({processes.size} x {recipe.accumulate}), got {recipe.batch}")
    return processes.columns(recipe.batch)


def next_token_loss(
    model: nn.Module, windows: Tensor, state: ModelState,
) -> tuple[Tensor, ModelState]:
    """The mean loss, in nats, of predicting each token of windows, int64 ``[window + 1, batch]``,
    from its predecessors, and the state of the token mixers after them."""
    logits, after = model(windows[:-1].t(), state)
    rows = logits.transpose(0, 1).flatten(0, 1)
    return F.cross_entropy(rows, windows[1:].flatten()), after


def add_gradient(
    model: nn.Module, windows: Tensor, state: ModelState, parts: int = 1,
) -> tuple[Tensor, ModelState]:
    """Add the gradient of :func:`next_token_loss` to that of the parameters; return the loss of all
    windows and the state after them, detached and in separate memory.

    The windows are read in ``parts``, weighted by their number of windows, so that only the
    activations of one part are in memory. After the last part the gradient is the mean over all
    processes.
    """
    pieces = windows.tensor_split(parts, dim=1)
    total, begin, ends = torch.zeros((), device=windows.device), 0, []
    for number, piece in enumerate(pieces, start=1):
        here = slice(begin, begin + piece.shape[1])
        begin = here.stop
        before = state if parts == 1 else tuple(
            tuple(each[here] for each in layer) for layer in state)
        with nullcontext() if number == parts else local_gradients(model):
            loss, after = next_token_loss(model, piece, before)
            share = loss * (piece.shape[1] / windows.shape[1])
            share.backward()
        total += share.detach()
        ends.append(tuple(tuple(each.detach() for each in layer) for layer in after))
    return total, tuple(
        tuple(torch.cat(each) for each in zip(*layers, strict=True))
        for layers in zip(*ends, strict=True))


_COMPILERS = ("g++", "c++", "clang++")


def _compile_blocks(model: LanguageModel, device: torch.device) -> None:
    """Compile every block at its first call; weight names do not change."""
    if model.config.residual != "plain":
        raise ValueError(f"compile needs blocks that are called as a whole, with residual plain, "
                         f"got {model.config.residual}")
    if device.type == "cpu" and not any(map(shutil.which, _COMPILERS)):
        raise ValueError(f"compile needs a C++ compiler ({', '.join(_COMPILERS)}), found none")
    for block in model.blocks():
        block.compile()


