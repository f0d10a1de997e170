"""What changes from step to step of a run, and the one change that a step is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, S16, NumericProfile
from sterna.model.stack.language_model import LanguageModel
from sterna.model.tokens.files import fitted
from sterna.model.tokens.text import TokenText
from sterna.model.tokens.tokenizer import Tokenizer
from sterna.model.training.checkpoint import Checkpoint, CheckpointError
from sterna.model.training.checkpoint_fields import check_state
from sterna.model.training.optimizer import adamw, restore_adamw, set_learning_rate
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.step import add_gradient

__all__ = ["RunSettings", "TrainState"]

_SMOOTHING = 0.05
"""Weight of the newest loss in the running mean."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What decides the weights of a run: with a budget in steps, nothing else does."""

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

    def differences(self, found: Checkpoint) -> list[str]:
        """In what a checkpoint is one of another run, in words; empty if in nothing."""
        theirs = _facts(found.config, TrainRecipe(**found.recipe), {
            "text": found.corpus_name, "tokenizer": found.tokenizer, "seed": found.seed,
            "profile": found.profile})
        ours = _facts(self.config, self.recipe, {
            "text": self.text.name, "tokenizer": self.text.tokenizer, "seed": self.seed,
            "profile": self.profile})
        result = [f"{name} {theirs[name]}, not {value}" for name, value in ours.items()
                  if theirs[name] != value]
        if not result and found.corpus_sha256 != self.text.sha256:
            result.append(f"another text of the name {self.text.name}")
        return result


def _facts(config: ModelConfig, recipe: TrainRecipe, others: dict[str, Any]) -> dict[str, Any]:
    """What two runs are compared by, by the names that are said."""
    tokenizer: Tokenizer = others.pop("tokenizer")
    others["profile"] = others["profile"].name
    kind = f"{tokenizer.kind} {tokenizer.sha256[:12]}"
    return {**asdict(config), **others, "tokenizer": kind, **asdict(recipe)}


class TrainState:
    """Model, optimiser and position between two steps: what a checkpoint holds.

    Parameters
    ----------
    settings
        What the run is.
    device
        Where the model is.

    Raises
    ------
    ValueError
        If the mixers cannot be trained with the recipe.
    """

    def __init__(self, settings: RunSettings, device: torch.device) -> None:
        config, recipe = settings.config, settings.recipe
        self.settings, self.device = settings, device
        self.model = LanguageModel(
            config, seed=settings.seed, profile=settings.profile).to(device)
        if recipe.carry_state and not self.model.state_is_bounded:
            raise ValueError(
                f"carry_state needs mixers whose state does not grow with the text, got "
                f"{config.mixer}")
        for block in self.model.blocks():
            block.mixer.check_length(max(recipe.window, recipe.eval_window or 0))
        self.optimizer = adamw(self.model, recipe)
        self.carried = self.model.initial_state(recipe.batch)
        self.step, self.seconds, self.lr = 0, 0.0, 0.0
        self.train_bpb: float | None = None
        self.heldout_bpb: float | None = None
        self._lengths = np.array([len(each) for each in settings.text.tokenizer.spellings])

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.settings.recipe.tokens_per_step

    def advance(self, windows: np.ndarray, lr: float, *, afresh: bool) -> None:
        """Do one step of the optimiser.

        Parameters
        ----------
        windows
            Tokens int64 ``[window + 1, batch]``.
        lr
            The learning rate.
        afresh
            Whether they start from the zero state, and not from that of the step before.

        Raises
        ------
        FloatingPointError
            If the loss is not finite.
        """
        recipe = self.settings.recipe
        if afresh:
            self.carried = self.model.initial_state(recipe.batch)
        self.lr = lr
        set_learning_rate(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        loss, after = add_gradient(
            self.model, torch.from_numpy(windows).to(self.device), self.carried,
            recipe.accumulate)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm, foreach=True)
        self.optimizer.step()
        if recipe.carry_state:
            self.carried = after
        self.step += 1
        self._note_loss(loss, windows[1:])

    def _note_loss(self, loss: Tensor, targets: np.ndarray) -> None:
        """Turn nats per token into bits per byte, and take them into the running mean."""
        bpb = loss.item() * targets.size / int(self._lengths[targets].sum()) / math.log(2.0)
        if not math.isfinite(bpb):
            raise FloatingPointError(f"the loss is not finite at step {self.step}; lower lr "
                                     f"({self.settings.recipe.lr})")
        before = bpb if self.train_bpb is None else self.train_bpb
        self.train_bpb = before + _SMOOTHING * (bpb - before)

    def checkpoint(self, budget: dict[str, Any]) -> Checkpoint:
        """All that is needed to go on.

        Raises
        ------
        FloatingPointError
            If a weight is not finite, so that a good checkpoint is never replaced by this.
        """
        for name, parameter in self.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise FloatingPointError(
                    f"the weights of {name} are not finite after step {self.step}; lower lr "
                    f"({self.settings.recipe.lr})")
        settings = self.settings
        return Checkpoint(
            config=settings.config, recipe=asdict(settings.recipe),
            corpus_name=settings.text.name, corpus_sha256=settings.text.sha256,
            seed=settings.seed, step=self.step, seconds=self.seconds,
            weights=self.model.state_dict(), optimizer=self.optimizer.state_dict(),
            carried=self.carried, train_bpb=self.train_bpb, heldout_bpb=self.heldout_bpb,
            tokenizer=settings.text.tokenizer, profile=settings.profile, budget=budget)

    def restore(self, found: Checkpoint, source: Path) -> None:
        """Take over a checkpoint, if it is one of this run.

        Raises
        ------
        CheckpointError
            If it is not, or if it contradicts itself; ``source`` is its name in the message.
        """
        if differences := self.settings.differences(found):
            raise CheckpointError(
                f"cannot resume from {source}: it was trained with {'; '.join(differences)}. "
                f"Resume with what it was trained with, or train in another folder")
        self.model.load_state_dict(found.model().state_dict())
        try:
            restore_adamw(self.optimizer, found.optimizer, found.step)
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{source} does not hold the state of the optimiser of its own shape "
                f"({error})") from error
        if self.settings.recipe.carry_state:
            self._restore_carried(found, source)
        self.step, self.seconds = found.step, found.seconds
        self.train_bpb, self.heldout_bpb = found.train_bpb, found.heldout_bpb

    def _restore_carried(self, found: Checkpoint, source: Path) -> None:
        try:
            check_state(found.carried, self.carried)
        except ValueError as error:
            raise CheckpointError(f"{source} does not hold the state of its own mixers "
                                  f"({error})") from error
        self.carried = tuple(
            tuple(each.to(self.device) for each in layer) for layer in found.carried)
