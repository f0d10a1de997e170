"""Checkpoints of a training run: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sterna.model.checks import check_fields, check_whole
from sterna.model.config import ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import PROFILES, S16, NumericProfile
from sterna.model.stack.language_model import LanguageModel, ModelState
from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.training.budget import check_plan
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.run_folder import CHECKPOINT_NAME, RunFolder

__all__ = [
    "Checkpoint", "CheckpointError", "NotFiniteError", "check_state", "load_checkpoint",
    "save_checkpoint",
]

_FORMAT = "sterna-checkpoint-3"
_SAFETENSORS = b'{"'    # after the eight bytes of its length, the header of such a file


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not belong to the run that wants it."""


class NotFiniteError(CheckpointError, FloatingPointError):
    """A checkpoint can be read, but its weights are not all finite."""


@dataclass(slots=True)
class Checkpoint:
    """All that a training run needs to go on, exactly."""

    config: ModelConfig
    recipe: dict[str, Any]          # flat; what it leaves out has its default
    corpus_name: str                # of the text that was trained on
    corpus_sha256: str
    seed: int
    step: int                       # optimiser steps done
    seconds: float                  # training time so far, over all sessions
    weights: dict[str, Tensor]      # state dictionary of the model
    optimizer: dict[str, Any]       # that of the optimiser
    carried: ModelState             # after the last window
    train_bpb: float | None = None      # running mean of the training loss in bits per byte
    heldout_bpb: float | None = None    # last measure
    tokenizer: Tokenizer = BYTES
    profile: NumericProfile = S16       # that was trained for; the file has its name
    budget: dict[str, Any] | None = None        # to_json() of it
    average: dict[str, Tensor] | None = None    # of the weights, used in their place
    data_folder: str | None = None      # where the data folder was that was trained on
    text_file: str | None = None        # where the text file was
    # What computed the steps, one name after the other: the last digits of weights depend on it.
    computed_with: tuple[str, ...] = ()
    skipped: int = 0                # steps that changed no weight: their gradient was not finite
    general_sha256: str | None = None   # of the general text that was trained on first

    def model(self, *, averaged: bool = True) -> LanguageModel:
        """Return the model with these weights, on the CPU; with their average, if there is one,
        unless ``averaged`` is false.
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
    """Write ``checkpoint`` to ``path``: to a file beside it first, which then takes its name."""
    content = {name: getattr(checkpoint, name) for name in Checkpoint.__slots__}
    content["config"] = checkpoint.config.to_json()
    content["tokenizer"] = checkpoint.tokenizer.to_json()
    content["profile"] = checkpoint.profile.name
    content["format"] = _FORMAT
    data = io.BytesIO()
    torch.save(content, data)
    write_atomically(Path(path), data.getvalue())


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that :func:`save_checkpoint` wrote, or that of the folder of a run."""
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
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path} is not a checkpoint of format {_FORMAT}, but {found!r}")
    del content["format"]
    try:
        return Checkpoint(**_checked_fields(content, list(Checkpoint.__slots__)))
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


def _checked_fields(content: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The fields of a checkpoint as they are used, from what its file holds."""
    check_fields("a checkpoint", content, names)
    for name in ("seed", "step", "skipped"):
        check_whole(name, content[name], 0, (1 << 63) - 1)
    for fields, expected, is_right in _FIELDS:
        for name in fields:
            value = content[name]
            if not ((value is None and name in _MAY_BE_NONE) or is_right(value)):
                # Not the repr of a dictionary of tensors, which takes long.
                got = (type(value).__name__ if isinstance(value, (dict, tuple, Tensor))
                       else repr(value))
                raise ValueError(f"{name} must be {expected}, got {got:.80}")
    if content["budget"] is not None:
        check_plan(content["budget"])
    _made(TrainRecipe, "recipe", content["recipe"])
    config = _made(ModelConfig, "config", content["config"])
    _check_embedding(config, content["weights"])
    return {**content, "config": config, "profile": PROFILES[content["profile"]],
            "tokenizer": tokenizer_from_json(content["tokenizer"], config.vocab)}


def check_state(found: Any, initial: Any) -> None:
    """Refuse what cannot be a later state of token mixers that begin with ``initial``."""
    if len(found) != len(initial):
        raise ValueError(f"the state is of {len(found)} layers, not of {len(initial)}")
    for layer, (ours, theirs) in enumerate(zip(initial, found, strict=True)):
        same = len(ours) == len(theirs) and all(
            a.dtype == b.dtype and a.dim() == b.dim() and all(
                # A window of keys begins empty and grows to its size.
                m in (0, n) for m, n in zip(a.shape, b.shape, strict=True))
            for a, b in zip(ours, theirs, strict=True))
        if not same or not all(bool(each.isfinite().all()) for each in theirs):
            raise ValueError(f"the state of layer {layer} is not finite, or of another mixer")


def _made(kind: Callable[..., Any], name: str, value: Any) -> Any:
    """An object of these arguments."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a dictionary, got {value!r:.80}")
    try:
        return kind(**value)
    except (TypeError, ValueError) as error:    # a TypeError names arguments that it does not have
        raise ValueError(f"{name}: {error}") from error


def _check_embedding(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Compare what can be compared before memory is taken for a model of this shape."""
    found = weights.get("embedding.weight")
    if found is not None and tuple(found.shape) != (config.vocab, config.d):
        raise ValueError(f"the weights are not those of its own shape: embedding.weight is "
                         f"{tuple(found.shape)}, not {(config.vocab, config.d)}")
    layers = {name.split(".")[1] for name in weights if name.startswith("layers.")}
    if not layers <= set(map(str, range(config.layers))) or len(layers) not in (0, config.layers):
        raise ValueError(f"the weights are not those of its own shape: there are {len(layers)} "
                         f"layers, not {config.layers}")


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor whose numbers can be read as they are."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


_FIELDS: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("corpus_name", "data_folder", "text_file"), "text", lambda value: isinstance(value, str)),
    (("corpus_sha256", "general_sha256"), "a hash in hexadecimal", lambda value: (
        isinstance(value, str) and re.fullmatch("[0-9a-f]*", value) is not None)),
    (("seconds", "train_bpb", "heldout_bpb"), "at least 0", lambda value: (
        type(value) in (int, float) and 0.0 <= value < math.inf)),
    (("optimizer",), "a dictionary", lambda value: isinstance(value, dict)),
    (("weights", "average"), "a dictionary of tensors", lambda value: (
        isinstance(value, dict) and all(
            isinstance(key, str) and _is_plain(each) for key, each in value.items()))),
    (("carried",), "tuples of tensors, one for each layer", lambda value: (
        isinstance(value, tuple) and all(
            isinstance(layer, tuple) and all(map(_is_plain, layer)) for layer in value))),
    (("profile",), f"one of {', '.join(PROFILES)}", lambda value: (
        isinstance(value, str) and value in PROFILES)),
    (("computed_with",), "a tuple of texts", lambda value: (
        isinstance(value, tuple) and all(isinstance(each, str) for each in value))),
)
_MAY_BE_NONE = {"data_folder", "text_file", "general_sha256", "train_bpb", "heldout_bpb", "average"}
