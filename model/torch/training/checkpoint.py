"""Checkpoints of a training run: written atomically, read without running code."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.files import check_unpublished, write_atomically
from sterna.model.profile import PROFILES, S16, NumericProfile
from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.torch.stack.language_model import LanguageModel, ModelState
from sterna.model.torch.training.run_folder import CHECKPOINT_NAME, RunFolder

__all__ = [
    "Checkpoint", "CheckpointError", "NotFiniteError", "load_checkpoint", "save_checkpoint",
]

_FORMAT = "sterna-checkpoint-4"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SAFETENSORS = b'{"'    # start of a safetensors header, after its length in eight bytes


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or belongs to another run."""


class NotFiniteError(CheckpointError, FloatingPointError):
    """A checkpoint can be read, but its weights are not all finite."""


@dataclass(slots=True)
class Checkpoint:
    """Everything needed to resume a training run exactly."""

    config: ModelConfig
    recipe: dict[str, Any]          # flat; missing fields have their defaults
    corpus_name: str                # of the training text
    corpus_sha256: str
    seed: int
    step: int                       # optimiser steps done
    seconds: float                  # training time so far, over all sessions
    weights: dict[str, Tensor]      # state dictionary of the model
    optimizer: dict[str, Any]       # state dictionary of the optimiser
    carried: ModelState             # after the last window
    train_bpb: float | None = None      # running mean of the training loss in bits per byte
    heldout_bpb: float | None = None    # last measure
    tokenizer: Tokenizer = BYTES
    profile: NumericProfile = S16       # trained for; stored by name
    budget: dict[str, Any] | None = None        # to_json() of it
    average: dict[str, Tensor] | None = None    # of the weights, used in their place
    data_folder: str | None = None      # path of the data folder trained on
    text_file: str | None = None        # path of the text file trained on
    # Backends that computed the steps, in order: the last digits of weights depend on them.
    computed_with: tuple[str, ...] = ()
    skipped: int = 0                # steps that changed no weight: non-finite gradient
    general_sha256: str | None = None   # of the general text trained on first

    def model(self, *, averaged: bool = True) -> LanguageModel:
        """Return the model on the CPU with these weights, or their average if there is one and
        ``averaged`` is true.
        """
        model = LanguageModel(self.config, profile=self.profile)
        model.load_state_dict({**self.weights, **((averaged and self.average) or {})})
        for name, parameter in model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise NotFiniteError(
                    f"the weights of the checkpoint are not finite, such as those of {name}: its "
                    f"training failed")
        return model


def save_checkpoint(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write ``checkpoint`` atomically to ``path``, in the format of ``torch.save`` followed by its
    SHA-256."""
    content = {name: getattr(checkpoint, name) for name in Checkpoint.__slots__}
    content["config"] = checkpoint.config.to_json()
    content["tokenizer"] = checkpoint.tokenizer.to_json()
    content["profile"] = checkpoint.profile.name
    content["format"] = _FORMAT
    data = io.BytesIO()
    torch.save(content, data)
    data.seek(0, io.SEEK_END)
    data.write(hashlib.sha256(data.getbuffer()).digest())
    write_atomically(Path(path), data.getvalue())


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint written by :func:`save_checkpoint`, or the one in a run folder."""
    path = Path(path)
    if path.is_dir():
        check_unpublished(path, CheckpointError)
        folder = RunFolder(path)
        path = folder.checkpoint
        if not path.exists() and folder.shards.newest() is not None:
            raise CheckpointError(
                f"{folder.path} has a run of several processes that is not finished, and no "
                f"{CHECKPOINT_NAME} yet: go on with it, by one process too, with --resume")
        if not path.exists() and folder.description.exists():
            raise CheckpointError(
                f"{folder.path} has a run without a {CHECKPOINT_NAME} so far: it writes one every "
                f"minute, and at its end")
    content = _content(path)
    config = ModelConfig(**content["config"])
    return Checkpoint(**{
        **content, "config": config, "profile": PROFILES[content["profile"]],
        "tokenizer": tokenizer_from_json(content["tokenizer"], config.vocab)})


def _content(path: Path) -> dict[str, Any]:
    """The content of the file, after checking its integrity."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path} ({error.strerror or error}); give a file that "
            f"training wrote, {CHECKPOINT_NAME}, or its folder") from error
    if data[8:10] == _SAFETENSORS:
        raise CheckpointError(
            f"{path} is a safetensors file, such as a quantised model, and no checkpoint: give a "
            f"file that training wrote, {CHECKPOINT_NAME}")
    written, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(written).digest() != digest:
        raise CheckpointError(
            f"{path} is no checkpoint of this version, or is damaged: give a file that training "
            f"wrote, {CHECKPOINT_NAME}")
    content: dict[str, Any] = torch.load(
        io.BytesIO(written), map_location="cpu", weights_only=True)
    if (found := content.pop("format", None)) != _FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of format {_FORMAT}, but {found!r}")
    return content
