"""The layout of a published checkpoint: the fields of its configuration, and its tensors."""

from __future__ import annotations

from typing import Any

from sterna.model.hub.folder import HubError, HubFolder
from sterna.model.quantized.hgrn_bit import HgrnBitShape

__all__ = ["config_of", "shape_of", "tensor_shapes"]

_KIND = "hgrn_bit"
_FIXED = {"use_short_conv": False, "expand_ratio": 1, "tie_word_embeddings": False,
          "rms_norm_eps": 1e-6, "hidden_act": "swish"}
"""Options that all published checkpoints set like this; other values are not supported."""


def config_of(shape: HgrnBitShape) -> dict[str, Any]:
    """The configuration of a checkpoint of this shape."""
    return {
        "architectures": ["HGRNBitForCausalLM"], "model_type": _KIND, "hidden_size": shape.d,
        "num_hidden_layers": shape.layers, "intermediate_size": shape.dff,
        "vocab_size": shape.vocab, "num_heads": 1,
        "use_lower_bound": shape.lower_bounds, **_FIXED}


def shape_of(folder: HubFolder) -> HgrnBitShape:
    """The shape that a configuration describes.

    Raises HubError for another architecture, or if a field is missing or out of range.
    """
    config, path = folder.config, folder.path / "config.json"
    if config.get("model_type") != _KIND:
        raise HubError(f"{path}: model_type must be {_KIND!r}, got {config.get('model_type')!r}: "
                       f"no other architecture can be converted")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise HubError(f"{path}: {name} must be {value!r}, got {config[name]!r}")
    try:
        d, dff = config["hidden_size"], config.get("intermediate_size")
        if dff is None:
            dff = 256 * -(-int(d * config.get("hidden_ratio", 4) * 2 / 3) // 256)
        return HgrnBitShape(
            d, config["num_hidden_layers"], dff, config["vocab_size"],
            config.get("use_lower_bound", True))
    except KeyError as error:
        raise HubError(f"{path}: the field {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise HubError(f"{path}: {error}") from error


def tensor_shapes(shape: HgrnBitShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint."""
    d, dff, vocab = shape.d, shape.dff, shape.vocab
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (vocab, d), "model.norm.weight": (d,),
        "lm_head.weight": (vocab, d), "lm_head.norm.weight": (d,)}
    if shape.lower_bounds:
        shapes["model.lower_bounds"] = (shape.layers, d)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{name}.weight": (d,) for name in ("attn_norm", "mlp_norm", "attn.g_norm")}
        for name, size in (
            *((f"attn.{part}_proj", (d, d)) for part in "ifgo"),
            ("mlp.gate_proj", (2 * dff, d)), ("mlp.down_proj", (d, dff)),
        ):
            shapes[f"{at}.{name}.weight"] = size
            shapes[f"{at}.{name}.norm.weight"] = size[1:]
    return shapes
