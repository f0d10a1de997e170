"""Every field of a checkpoint has its type and range, or is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sterna.model.checks import check_fields, check_whole, real_number
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES
from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.training.budget import check_plan
from sterna.model.training.recipe import TrainRecipe

__all__ = ["check_state", "checked_fields"]


def checked_fields(content: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The fields of a checkpoint as they are used, from what its file holds.

    Raises
    ------
    ValueError
        Naming the field, what it has to be and what came.
    """
    check_fields("a checkpoint", content, names)
    for name, check in _CHECKS.items():
        check(name, content[name])
    config = _made(ModelConfig, "config", content["config"])
    _check_embedding(config, content["weights"])
    return {**content, "config": config, "profile": PROFILES[content["profile"]],
            "tokenizer": tokenizer_from_json(content["tokenizer"], config.vocab)}


def check_state(found: Any, initial: Any) -> None:
    """Refuse what cannot be a later state of token mixers that begin with ``initial``.

    Raises
    ------
    ValueError
        Naming the layer.
    """
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
    except TypeError as error:      # of arguments that it does not have
        raise ValueError(f"{name}: {error}") from error
    except ValueError as error:
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


def _check_recipe(name: str, value: Any) -> None:
    _made(TrainRecipe, name, value)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r:.80}")


def _check_place(name: str, value: Any) -> None:
    if value is not None:
        _check_text(name, value)


def _check_texts(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a tuple of texts, got {value!r:.80}")


def _check_hash(name: str, value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]*", value):
        raise ValueError(f"{name} must be a hash in hexadecimal, got {value!r:.80}")


def _check_hash_or_none(name: str, value: Any) -> None:
    if value is not None:
        _check_hash(name, value)


def _check_seconds(name: str, value: Any) -> None:
    if not 0.0 <= real_number(name, value) < math.inf:
        raise ValueError(f"{name} must be at least 0, got {value}")


def _check_bpb(name: str, value: Any) -> None:
    if value is not None:
        _check_seconds(name, value)


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor whose numbers can be read as they are."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


def _check_weights(name: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(
            isinstance(key, str) and _is_plain(each) for key, each in value.items()):
        raise ValueError(f"{name} must be a dictionary of tensors")


def _check_dictionary(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dictionary, got {value!r:.80}")


def _check_carried(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(
            isinstance(layer, tuple) and all(map(_is_plain, layer)) for layer in value):
        raise ValueError(f"{name} must be tuples of tensors, one for each layer")


def _check_profile(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in PROFILES:
        raise ValueError(f"{name} must be one of {', '.join(PROFILES)}, got {value!r:.80}")


def _check_budget(name: str, value: Any) -> None:
    if value is not None:
        check_plan(value)


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "recipe": _check_recipe,
    "corpus_name": _check_text,
    "corpus_sha256": _check_hash,
    "general_sha256": _check_hash_or_none,
    "seed": lambda name, value: check_whole(name, value, 0, (1 << 63) - 1),
    "step": lambda name, value: check_whole(name, value, 0),
    "seconds": _check_seconds,
    "weights": _check_weights,
    "average": lambda name, value: None if value is None else _check_weights(name, value),
    "optimizer": _check_dictionary,
    "carried": _check_carried,
    "train_bpb": _check_bpb,
    "heldout_bpb": _check_bpb,
    "profile": _check_profile,
    "budget": _check_budget,
    "data_folder": _check_place,
    "text_file": _check_place,
    "computed_with": _check_texts,
    "skipped": lambda name, value: check_whole(name, value, 0),
}
