"""The dense float32 model in eager PyTorch, for comparison with the ONNX graphs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.export.float.reference import RealNumbers
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["DenseModel", "open_dense", "write_dense"]


class DenseModel:
    """A model with dense float32 weights; f, c and g are one product, gate and up another.

    ``tensors`` are weights ``[rows, columns]`` and biases ``[rows]`` in float32, by projection; the
    profile's ranges limit values between the products.
    """

    def __init__(
        self, config: ModelConfig, profile: NumericProfile, tensors: dict[str, Tensor],
    ) -> None:
        self.config = config
        self.profile = profile
        self.tensors = tensors

    def project(self, name: str, y: Tensor, limit: float) -> Tensor:
        """Normalise ``y [..., columns]``, project it and saturate the result."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return F.linear(F.rms_norm(y, y.shape[-1:]), weight, bias).clamp(-limit, limit)

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run ``tokens [batch]`` or ``[length, batch]`` from ``state [layers, batch, d]``.

        Returns logits ``[..., vocab]`` and the state after the last token.
        """
        profile = self.profile
        x = self.tensors["embedding"][tokens]
        last = []
        for layer in range(self.config.layers):
            at = f"layer{layer}"
            f, c, g = self.project(f"{at}.fcg", x, profile.z.limit).chunk(3, dim=-1)
            f, c = torch.sigmoid(f), F.silu(c)
            h = state[layer]
            if x.dim() == 2:
                h = f * h + (1 - f) * c
                hidden = h
            else:
                rows = []
                for forget, candidate in zip(f, c, strict=True):
                    h = forget * h + (1 - forget) * candidate
                    rows.append(h)
                hidden = torch.stack(rows)
            last.append(h)
            o = torch.sigmoid(g) * hidden
            x = (x + self.project(f"{at}.out", o, math.inf)).clamp(
                -profile.x.limit, profile.x.limit)
            gate, up = self.project(f"{at}.gate_up", x, profile.z.limit).chunk(2, dim=-1)
            p = (F.silu(gate) * up).clamp(-profile.p.limit, profile.p.limit)
            x = (x + self.project(f"{at}.down", p, math.inf)).clamp(
                -profile.x.limit, profile.x.limit)
        return self.project("head", x, profile.logit.limit), torch.stack(last)


def write_dense(model: QuantizedModel, path: Path) -> Path:
    """Write the dense weights of a quantised model for :func:`open_dense`."""
    profile, scales = model.profile, RealNumbers.of(model).scales

    def real(name: str) -> tuple[np.ndarray, np.ndarray]:
        part, frac = model.projections[name], profile.output_format(name).frac
        scale = scales[name] / math.sqrt(part.weight.shape[1])
        return (part.weight.astype(np.float32) * np.float32(scale),
                np.ldexp(part.bias.astype(np.float32), -frac))

    merged = {"head": ["head"]}
    for layer in range(model.config.layers):
        at = f"layer{layer}"
        merged |= {
            f"{at}.fcg": [f"{at}.mlgru.{part}" for part in "fcg"],
            f"{at}.out": [f"{at}.mlgru.out"],
            f"{at}.gate_up": [f"{at}.glu.gate", f"{at}.glu.up"],
            f"{at}.down": [f"{at}.glu.down"]}
    embedding = np.ldexp(model.embedding.astype(np.float32), -profile.x.frac)
    tensors = {"embedding": torch.from_numpy(embedding)}
    for name, members in merged.items():
        weights, biases = zip(*map(real, members), strict=True)
        tensors[f"{name}.weight"] = torch.from_numpy(np.concatenate(weights))
        tensors[f"{name}.bias"] = torch.from_numpy(np.concatenate(biases))
    torch.save(tensors, path)
    return path


def open_dense(path: Path, config: ModelConfig, profile: NumericProfile) -> DenseModel:
    """Read a file of :func:`write_dense`."""
    return DenseModel(config, profile, torch.load(path, weights_only=True))
