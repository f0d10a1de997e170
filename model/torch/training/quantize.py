"""From the trained float model to the quantised one: the only place where floats become
integers, in the trainer's float32."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.evaluate import Evaluation, evaluate
from sterna.model.quantized.fixed import quantize_projection, to_fixed
from sterna.model.quantized.records import language_model
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.torch.network.quantizers import ternary_codes
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import Checkpoint, load_checkpoint
from sterna.model.torch.training.heldout import heldout_of_run, measure_heldout
from sterna.model.torch.training.recipe import TrainRecipe

__all__ = ["evaluate_checkpoint", "quantize", "quantize_checkpoint"]


def quantize(
    model: LanguageModel, profile: NumericProfile, provenance: dict[str, Any] | None = None,
    tokenizer: Tokenizer = BYTES,
) -> QuantizedModel:
    """Quantise a trained model to the formats of a profile; the file gets its config.

    Each matrix is ternarised by the same function, in the same float32, as in training.
    ``provenance``, the record of the model's origin, is plain JSON; ``tokenizer`` is the one used
    in training. Raises ValueError if the mixers have no integer form, a weight is not finite or a
    scale cannot be represented.
    """
    model.config.check_integer_form()
    projections = {}
    for name, linear in model.named_projections().items():
        codes, weight_scale = ternary_codes(linear.latent)
        projections[name] = quantize_projection(
            name, _numpy(codes), weight_scale,
            None if linear.bias is None else _numpy(linear.bias), profile,
            profile.output_format(name))
    return QuantizedModel(
        language_model(model.config, profile), profile.name, projections,
        to_fixed("embedding", _numpy(model.embedding.weight), profile.x),
        np.array(profile.sigmoid_table(), dtype=np.int32), provenance or {}, tokenizer)


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())


def quantize_checkpoint(
    path: str | Path, profile: NumericProfile | None = None, *, heldout: bytes | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> QuantizedModel:
    """Quantise a checkpoint, by default to the profile it was trained for, measure the float and
    the integer model, and record the origin.

    Both are measured on ``heldout``, UTF-8; by default on the held-out part of the training text,
    if still available. ``note`` is called with a line of text before each stage. Raises
    CheckpointError if the file is missing, damaged or something else; ValueError if the model
    cannot be quantised.
    """
    checkpoint = load_checkpoint(path)
    checkpoint.config.check_integer_form()
    profile = profile or checkpoint.profile
    model = checkpoint.model()
    if heldout is None:
        heldout = _heldout_of(checkpoint, note)
    provenance: dict[str, Any] = {
        "training": {
            "corpus": checkpoint.corpus_name, "corpus_sha256": checkpoint.corpus_sha256,
            "recipe": checkpoint.recipe, "seed": checkpoint.seed, "steps": checkpoint.step,
            "seconds": round(checkpoint.seconds),
        },
        "versions": {
            "sterna": version("sterna"), "torch": str(torch.__version__),
            "numpy": np.__version__, "python": platform.python_version(),
        },
    }
    if heldout is None:
        return quantize(model, profile, provenance, checkpoint.tokenizer)
    note(f"evaluating the float model on {len(heldout):,} bytes")
    float_bpb = measure_heldout(
        model, heldout, TrainRecipe(**checkpoint.recipe), checkpoint.tokenizer).bits_per_byte
    note("evaluating the integer model")
    quantized = quantize(model, profile, tokenizer=checkpoint.tokenizer)
    integer = evaluate(quantized, heldout)
    provenance["heldout"] = {
        "text_sha256": hashlib.sha256(heldout).hexdigest(),
        "predictions": integer.predictions, "float_bpb": round(float_bpb, 5),
        "integer_bpb": round(integer.bits_per_byte, 5),
    }
    return replace(quantized, provenance=provenance)


def evaluate_checkpoint(
    checkpoint: Checkpoint, text: bytes, *, sequences: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure the float model of a checkpoint, as :func:`sterna.evaluate` does an integer model;
    but in windows, each from the initial state, if the recipe says so or a mixer's state grows
    with the text. ``progress`` gets the numbers of predictions so far and in total.

    Raises ValueError if the text is too short or has a byte unknown to the model;
    FloatingPointError if the weights or the loss are not finite.
    """
    return measure_heldout(
        checkpoint.model(), text, TrainRecipe(**checkpoint.recipe), checkpoint.tokenizer,
        sequences=sequences, progress=progress)


def _heldout_of(checkpoint: Checkpoint, note: Callable[[str], None]) -> bytes | None:
    """The held-out part of the training text; None, with a note, if it is not available."""
    try:
        found = heldout_of_run(checkpoint)
    except ValueError as error:
        note(f"nothing is measured: {error}")
        return None
    if found is None:
        note("the training text is not at hand: nothing is measured (--text measures)")
    return found
