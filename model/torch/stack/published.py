"""Published checkpoints as trainable models, and back.

Each is a language model of the mixer ``hgrn_bit`` with other tensor names.
:mod:`sterna.model.hub.convert` converts one to integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import save
from torch import Tensor, from_numpy

from sterna.model.config import ModelConfig
from sterna.model.hub.folder import HubFolder
from sterna.model.hub.layout import config_of, shape_of, tensor_shapes
from sterna.model.quantized.hgrn_bit import HgrnBitShape
from sterna.model.tokens.bpe_training import package_json
from sterna.model.tokens.tokenizer import Tokenizer
from sterna.model.torch.stack.language_model import LanguageModel

__all__ = ["load_published", "published_files", "published_shape", "published_tensors"]

_NORMS = {"attn_norm": "mixer.norm", "attn.g_norm": "mixer.gate_norm", "mlp_norm": "channel.norm"}
_PROJECTIONS = {
    "attn.i_proj": "mixer.fcg.c", "attn.f_proj": "mixer.fcg.f", "attn.g_proj": "mixer.fcg.g",
    "attn.o_proj": "mixer.out", "mlp.gate_proj": "channel.gate_up.both",
    "mlp.down_proj": "channel.down"}
"""Names of a layer's modules in a checkpoint and in our model."""


def load_published(folder: HubFolder) -> LanguageModel:
    """The float model of a published checkpoint, for further training.

    Raises HubError if the folder holds another architecture, another kind of bound, or a tensor
    is missing, unknown, misshapen or not finite.
    """
    shape = shape_of(folder)
    folder.check(tensor_shapes(shape))
    model = LanguageModel(
        ModelConfig(shape.d, shape.layers, shape.dff, shape.vocab, mixer="hgrn_bit"))
    parameters = dict(model.named_parameters())
    for theirs, ours in _places(shape.layers).items():
        parameters[ours].data.copy_(from_numpy(folder.tensor(theirs)))
    return model


def published_shape(config: ModelConfig) -> HgrnBitShape:
    """The shape of a checkpoint. Raises ValueError if the mixers are not ``hgrn_bit``."""
    if not config.is_hgrn_bit:
        raise ValueError(f"only a model of the mixer hgrn_bit has the published layout, got "
                         f"{config.to_json()}")
    return HgrnBitShape(config.d, config.layers, config.dff, config.vocab)


def published_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """The tensors of a model of the mixer ``hgrn_bit``, by their names in a checkpoint."""
    parameters = dict(model.named_parameters())
    places = _places(published_shape(model.config).layers)
    return {theirs: parameters[ours].detach() for theirs, ours in places.items()}


def _places(layers: int) -> dict[str, str]:
    places = {"model.embeddings.weight": "embedding.weight", "model.norm.weight": "norm.weight",
              "model.lower_bounds": "layers.0.mixer.bounds.logits",
              "lm_head.weight": "head.linear.weight", "lm_head.norm.weight": "head.gain"}
    for layer in range(layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        for norm, place in _NORMS.items():
            places[f"{theirs}.{norm}.weight"] = f"{ours}.{place}.weight"
        for projection, place in _PROJECTIONS.items():
            places[f"{theirs}.{projection}.weight"] = f"{ours}.{place}.linear.weight"
            places[f"{theirs}.{projection}.norm.weight"] = f"{ours}.{place}.gain"
    return places


def published_files(
    model: LanguageModel, tokenizer: Tokenizer, facts: Mapping[str, object],
) -> dict[str, str | bytes]:
    """The files of a model hub folder: configuration, float32 weights, tokenizer, generation
    settings, and a card with a table of ``facts``.

    Raises ValueError if the mixers are not ``hgrn_bit``, or the tokenizer covers fewer than 256
    bytes; ModuleNotFoundError without the package `tokenizers`.
    """
    shape = published_shape(model.config)
    tensors = {name: np.ascontiguousarray(value.float().cpu().numpy())
               for name, value in published_tensors(model).items()}
    weights = sum(value.size for name, value in tensors.items()
                  if name.endswith(("_proj.weight", "lm_head.weight")))
    rows = {"width": shape.d, "layers": shape.layers, "intermediate size": shape.dff,
            "tokens": shape.vocab, "ternary weights": weights, **facts}
    table = "\n".join(f"| {name} | {value:,} |" if isinstance(value, int) else
                      f"| {name} | {value} |" for name, value in rows.items())
    ends = {} if tokenizer.end_of_text is None else {"eos_token_id": tokenizer.end_of_text}
    return {
        "config.json": json.dumps(config_of(shape) | ends, indent=2) + "\n",
        "generation_config.json": json.dumps(
            {"do_sample": True, "temperature": 0.7, **ends}, indent=2) + "\n",
        "tokenizer.json": package_json(tokenizer),
        "model.safetensors": bytes(save(tensors, metadata={"format": "pt"})),
        "README.md": _CARD.format(table=table)}


_CARD = """\
---
library_name: sterna
tags: [matmul-free, ternary, hgrn_bit]
---

# A MatMul-free language model

Trained by Sterna. Integers for CPUs, by standard onnxruntime or
alone:

    sterna convert FOLDER -o model.safetensors
    sterna generate model.safetensors

| | |
|---|---|
{table}
"""
