"""Ternary matrices of BitNet checkpoints, as stored by the package transformers."""

from __future__ import annotations

import numpy as np

from sterna.model.hub.convert import ternarize
from sterna.model.hub.folder import HubError, HubFolder
from sterna.model.layers.matrix import TernaryMatrix

__all__ = ["bitnet_matrix"]


def bitnet_matrix(folder: HubFolder, name: str) -> TernaryMatrix:
    """The matrix ``name`` of a checkpoint with ``quant_method: bitnet``, such as
    ``model.layers.0.self_attn.q_proj``.

    Packed weights hold four rows in a byte: row ``i + k * rows / 4`` is in bits ``2k`` and
    ``2k + 1`` of row i, as the code plus 1. Sums are divided by ``weight_scale``, or with
    ``linear_class: autobitlinear`` multiplied by it; with its ``quantization_mode: online`` weights
    are real numbers, and become ternary by their mean magnitude. Only the matrix is read: the
    activation function, the norm and their order are defined by the checkpoint's code.

    Raises HubError if the folder has another quantisation, or the tensors are missing, of another
    type or not codes.
    """
    config = folder.config.get("quantization_config")
    method = config.get("quant_method") if isinstance(config, dict) else None
    if not isinstance(config, dict) or method != "bitnet":
        raise HubError(f"{folder.path / 'config.json'}: quant_method must be 'bitnet', "
                       f"got {method!r}")
    automatic = config.get("linear_class", "bitlinear") == "autobitlinear"
    weight = folder.tensor(f"{name}.weight")
    bias = (folder.tensor(f"{name}.bias").astype(np.float64)
            if f"{name}.bias" in folder.names else None)
    if weight.ndim != 2:
        raise HubError(f"{folder.path}: {name}.weight must be a matrix, got {list(weight.shape)}")
    if weight.dtype != np.uint8:
        if not automatic or config.get("quantization_mode", "offline") != "online":
            raise HubError(f"{folder.path}: {name}.weight must be packed in bytes, "
                           f"got {weight.dtype}")
        codes, value = ternarize(weight)
        return TernaryMatrix(codes, value, bias)
    codes = np.concatenate([(weight >> shift) & 3 for shift in (0, 2, 4, 6)]).astype(np.int8) - 1
    scale = folder.tensor(f"{name}.weight_scale")
    if (codes > 1).any() or scale.size != 1 or not scale.item() > 0:
        raise HubError(f"{folder.path}: {name} holds a code that is none, or no positive scale")
    return TernaryMatrix(codes, scale.item() if automatic else 1 / scale.item(), bias)
