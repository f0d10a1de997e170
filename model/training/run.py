"""A training run between two steps: what a checkpoint holds, and how to go on from it."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.stack.language_model import LanguageModel, heldout_bpb
from sterna.model.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from sterna.model.training.optimizer import adamw
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.windows import WindowSampler

__all__ = ["CHECKPOINT_NAME", "Run"]

CHECKPOINT_NAME = "checkpoint.pt"


class Run:
    """The state of a run: model, optimiser, position; and what changes it by one step."""

    def __init__(
        self, config: ModelConfig, corpus: Corpus, folder: Path, seed: int,
        recipe: TrainRecipe, device: torch.device,
    ) -> None:
        self.config, self.corpus, self.seed, self.recipe = config, corpus, seed, recipe
        self.sampler = WindowSampler(corpus.train, recipe, seed)
        self.folder = folder
        self.checkpoint_path = folder / CHECKPOINT_NAME
        self.device = device
        self.model = LanguageModel(config, seed=seed).to(device)
        self.optimizer = adamw(self.model, recipe)
        if recipe.carry_state and not self.model.state_is_bounded:
            raise ValueError(
                f"carry_state needs mixers whose state does not grow with the text, got "
                f"{config.mixer}")
        for block in self.model.blocks():
            block.mixer.check_length(recipe.window)
        self.carried = self.model.initial_state(recipe.batch)
        self.step, self.seconds, self.lr = 0, 0.0, 0.0
        self.train_bpb: float | None = None
        self.heldout_bpb: float | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def tokens(self) -> int:
        """Bytes trained on so far."""
        return self.step * self.recipe.tokens_per_step

    def load(self) -> None:
        """Take over the checkpoint in the folder, if it belongs to this run."""
        found = load_checkpoint(self.checkpoint_path)
        theirs, ours = (
            {**asdict(config), "text": name, "seed": seed, **recipe}
            for config, name, seed, recipe in (
                (found.config, found.corpus_name, found.seed, found.recipe),
                (self.config, self.corpus.name, self.seed, asdict(self.recipe))))
        differences = [f"{name} {theirs.get(name)}, not {value}" for name, value in ours.items()
                       if theirs.get(name) != value]
        if not differences and found.corpus_sha256 != self.corpus.sha256:
            differences.append(f"another text of the name {self.corpus.name}")
        if differences:
            raise CheckpointError(
                f"cannot resume from {self.checkpoint_path}: it was trained with "
                f"{'; '.join(differences)}. Resume with what it was trained with, or train in "
                f"another folder")
        self.model.load_state_dict(found.model().state_dict())
        try:
            self.optimizer.load_state_dict(found.optimizer)
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{self.checkpoint_path} does not hold the state of the optimiser of its own "
                f"shape ({error})") from error
        self.carried = tuple(
            tuple(each.to(self.device) for each in layer) for layer in found.carried)
        self.step, self.seconds = found.step, found.seconds
        self.train_bpb, self.heldout_bpb = found.train_bpb, found.heldout_bpb

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(Checkpoint(
            config=self.config, recipe=asdict(self.recipe), corpus_name=self.corpus.name,
            corpus_sha256=self.corpus.sha256, seed=self.seed, step=self.step,
            seconds=self.seconds, weights=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(), carried=self.carried,
            train_bpb=self.train_bpb, heldout_bpb=self.heldout_bpb), self.checkpoint_path)

    def measure(self) -> float:
        """Bits per byte of the held-out text, with the state carried if it does not grow, else
        in windows as long as those of training."""
        window = None if self.model.state_is_bounded else self.recipe.window
        found = heldout_bpb(self.model, self.corpus.heldout, window=window)
        if not math.isfinite(found):    # the last step spoiled the weights: no loss tells
            raise FloatingPointError(
                f"the held-out loss is not finite after step {self.step}; lower lr "
                f"({self.recipe.lr})")
        self.heldout_bpb = found
        return found

    def advance(self, fraction: float) -> None:
        """Do one step of the optimiser, with ``fraction`` of the budget used before it."""
        windows = torch.from_numpy(self.sampler.windows(self.step)).to(self.device)
        if self.sampler.starts_afresh(self.step):
            self.carried = self.model.initial_state(self.recipe.batch)
        self.lr = self.recipe.learning_rate(self.step, fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["lr_factor"]
        logits, state = self.model.forward_time_major(windows[:-1], self.carried)
        loss = F.cross_entropy(logits.flatten(0, 1), windows[1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.recipe.clip_norm, foreach=True)
        self.optimizer.step()
        if self.recipe.carry_state:
            self.carried = tuple(
                tuple(each.detach().clone() for each in layer) for layer in state)
        self.step += 1
        bpb = loss.item() / math.log(2.0)
        if not math.isfinite(bpb):
            raise FloatingPointError(
                f"the loss is not finite at step {self.step}; lower lr ({self.recipe.lr})")
        before = bpb if self.train_bpb is None else self.train_bpb
        self.train_bpb = before + 0.05 * (bpb - before)
