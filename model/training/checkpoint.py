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
from sterna.model.profile import S16, NumericProfile
from sterna.model.stack.language_model import LanguageModel, ModelState
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.training.checkpoint_fields import checked_fields
from sterna.model.training.run_folder import CHECKPOINT_NAME, RunFolder

__all__ = ["Checkpoint", "CheckpointError", "NotFiniteError", "load_checkpoint",
           "save_checkpoint"]

_FORMAT = "sterna-checkpoint-3"
_OLDER_FORMATS = ("sterna-checkpoint-1", "sterna-checkpoint-2")
_SAFETENSORS = b'{"'    # after the eight bytes of its length, the header of such a file


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not belong to the run that wants it."""


class NotFiniteError(CheckpointError, FloatingPointError):
    """A checkpoint can be read, but its weights are not all finite."""


@dataclass(slots=True)
class Checkpoint:
    """All that a training run needs to go on, exactly.

    Parameters
    ----------
    config
        Shape of the model.
    recipe
        The training recipe as a flat dictionary; what it leaves out has its default.
    corpus_name, corpus_sha256
        Which text was trained on.
    general_sha256
        Which general text was trained on first, or None.
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
    tokenizer
        What the text was made into tokens with.
    profile
        The numeric profile that was trained for; the file has its name.
    budget
        ``to_json()`` of the budget, or None.
    average
        The average of the weights that is used in their place, by the names of parameters, or None.
    data_folder
        Where the data folder was that was trained on, or None if it was another text.
    text_file
        Where the text file was, the same way.
    computed_with
        What computed the steps, one name after the other: the last digits of weights depend on it.
        Empty if that is not known.
    skipped
        Steps that changed no weight, because their gradient was not finite.
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
    tokenizer: Tokenizer = BYTES
    profile: NumericProfile = S16
    budget: dict[str, Any] | None = None
    average: dict[str, Tensor] | None = None
    data_folder: str | None = None
    text_file: str | None = None
    computed_with: tuple[str, ...] = ()
    skipped: int = 0
    general_sha256: str | None = None

    def model(self, *, averaged: bool = True) -> LanguageModel:
        """Return the model with these weights, on the CPU; with their average, if there is one,
        unless ``averaged`` is false.

        Raises
        ------
        CheckpointError
            If they are not the weights of a model of this shape; NotFiniteError if one of them is
            not finite.
        """
        model = LanguageModel(self.config, profile=self.profile)
        weights = {**self.weights, **(self.average or {})} if averaged else self.weights
        try:
            for name, value in model.state_dict().items():
                if name in weights and weights[name].dtype != value.dtype:
                    raise TypeError(f"{name} is {weights[name].dtype}, not {value.dtype}")
            model.load_state_dict(weights)
            if self.average is not None and not (
                    set(self.average) <= set(self.weights)
                    and len(self.average) == sum(1 for _ in model.parameters())):
                raise TypeError("the average is not one of all parameters")
        except (RuntimeError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"the checkpoint does not hold the weights of its own shape ({reason})") from error
        for name, parameter in model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise NotFiniteError(
                    f"the weights of the checkpoint are not finite, such as those of {name}: its "
                    f"training failed")
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
    content["tokenizer"] = checkpoint.tokenizer.to_json()
    content["profile"] = checkpoint.profile.name
    content["format"] = _FORMAT
    data = io.BytesIO()
    torch.save(content, data)
    write_atomically(Path(path), data.getvalue())


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that :func:`save_checkpoint` wrote, now or in an older format.

    Parameters
    ----------
    path
        The file, or the folder of a run.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or something else.
    """
    path = Path(path)
    if path.is_dir():
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
    if isinstance(content, dict) and content.get("format") in _OLDER_FORMATS:
        _bring_up_to_date(content)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path} is not a checkpoint of format {_FORMAT}, but {found!r}")
    del content["format"]
    # As it was before there were these.
    for name in ("average", "data_folder", "text_file", "general_sha256"):
        content.setdefault(name, None)
    content.setdefault("computed_with", ())
    content.setdefault("skipped", 0)
    if isinstance(content.get("recipe"), dict):
        content["recipe"] = {"float_start": 0.0, "general_share": 0.0, **content["recipe"]}
    try:
        return Checkpoint(**checked_fields(content, list(Checkpoint.__slots__)))
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path} has unexpected contents: {error}") from error


def _content(path: Path) -> Any:
    """What is in the file, whatever that is."""
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
    try:
        with warnings.catch_warnings():     # of what would be an error anyway
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:      # one changed bit can raise anything
        raise CheckpointError(
            f"{path} is no checkpoint, or is damaged ({type(error).__name__}): give a file that "
            f"training wrote, {CHECKPOINT_NAME}") from error


def _bring_up_to_date(content: dict[str, Any]) -> None:
    """From the first format, which knew MLGRU and GLU only and called them so, or the second,
    which knew bytes only."""
    with suppress(KeyError, AttributeError, TypeError):     # damage is reported with the rest
        if content["format"] == _OLDER_FORMATS[0]:
            content["weights"] = {
                name.replace(".mlgru.", ".mixer.").replace(".glu.", ".channel."): value
                for name, value in content["weights"].items()}
            content["carried"] = tuple((state,) for state in content["carried"].unbind(0))
    content["format"] = _FORMAT
    content.update(tokenizer=BYTES.to_json(), profile=S16.name, budget=None)
