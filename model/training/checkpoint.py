"""Checkpoints of a training run: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.files import write_atomically
from sterna.model.stack.language_model import LanguageModel, ModelState

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint", "save_checkpoint"]

_FORMAT = "sterna-checkpoint-2"
_FIRST_FORMAT = "sterna-checkpoint-1"
_SAFETENSORS = b'{"'    # after the eight bytes of its length, the header of such a file


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not belong to the run that wants it."""


@dataclass(slots=True)
class Checkpoint:
    """All that a training run needs to go on, exactly.

    Parameters
    ----------
    config
        Shape of the model.
    recipe
        The training recipe as a flat dictionary.
    corpus_name, corpus_sha256
        Which text was trained on.
    seed
        Seed of the run.
    step
        Optimiser steps done.
    seconds
        Training time so far, over all sessions.
    weights, optimizer
        State dictionaries of the model and of the optimiser.
    carried
        State of the token mixers after the last window.
    train_bpb
        Running mean of the training loss in bits per byte, or None.
    heldout_bpb
        Last measured held-out bits per byte, or None.
    """

    config: ModelConfig
    recipe: dict[str, Any]
    corpus_name: str
    corpus_sha256: str
    seed: int
    step: int
    seconds: float
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    carried: ModelState
    train_bpb: float | None = None
    heldout_bpb: float | None = None

    def model(self) -> LanguageModel:
        """Return the model with these weights, on the CPU.

        Raises
        ------
        CheckpointError
            If they are not the weights of a model of this shape.
        """
        model = LanguageModel(self.config)
        try:
            model.load_state_dict(self.weights)
        except (RuntimeError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"the checkpoint does not hold the weights of its own shape ({reason})") from error
        return model


def save_checkpoint(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write ``checkpoint`` to ``path``: to a file beside it first, which then takes its name.

    Raises
    ------
    OSError
        If the folder cannot be written; an older checkpoint is then still whole.
    """
    content = {name: getattr(checkpoint, name) for name in Checkpoint.__slots__}
    content["config"] = checkpoint.config.to_json()
    content["format"] = _FORMAT
    data = io.BytesIO()
    torch.save(content, data)
    write_atomically(Path(path), data.getvalue())


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that :func:`save_checkpoint` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or something else.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path} ({error.strerror or error}); give a file that "
            f"training wrote, checkpoint.pt") from error
    if data[8:10] == _SAFETENSORS:
        raise CheckpointError(
            f"{path} is a safetensors file, such as a quantised model, and no checkpoint: give a "
            f"file that training wrote, checkpoint.pt")
    try:
        with warnings.catch_warnings():     # of what would be an error anyway
            warnings.simplefilter("ignore")
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:      # one changed bit can raise anything
        raise CheckpointError(
            f"{path} is no checkpoint, or is damaged ({type(error).__name__}): give a file that "
            f"training wrote, checkpoint.pt") from error
    if isinstance(content, dict) and content.get("format") == _FIRST_FORMAT:
        _bring_up_to_date(content)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path} is not a checkpoint of format {_FORMAT}, but {found!r}")
    del content["format"]
    try:
        content["config"] = ModelConfig(**content["config"])
        return Checkpoint(**content)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} has unexpected contents: {error}") from error


def _bring_up_to_date(content: dict[str, Any]) -> None:
    """From the first format, which knew MLGRU and GLU only and called them so."""
    content["format"] = _FORMAT
    with suppress(KeyError, AttributeError):     # damage is reported with the rest
        content["weights"] = {
            name.replace(".mlgru.", ".mixer.").replace(".glu.", ".channel."): value
            for name, value in content["weights"].items()}
        content["carried"] = tuple((state,) for state in content["carried"].unbind(0))
