"""Performer: linear attention whose random features estimate softmax attention without bias."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.linear.feature_attention import FeatureAttention
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Performer", "log_features", "orthogonal_rows"]

_WIDEST = 64
"""Widest head whose features stay in float32's range: see :class:`Performer`."""


def orthogonal_rows(
    rows: int, width: int, generator: torch.Generator | None = None,
) -> Tensor:
    """Random vectors ``[rows, width]``, each as if its numbers were independent and normal.

    Within ``width`` of them they are orthogonal to each other, which lowers the variance of the
    estimate. A QR decomposition alone gives directions that are not uniform, and so a bias: the
    columns of Q need the signs of the diagonal of R.
    """
    blocks = []
    for _ in range(-(-rows // width)):
        normal = torch.empty(width, width, dtype=torch.float64).normal_(generator=generator)
        q, r = torch.linalg.qr(normal)
        blocks.append((q * r.diagonal().sign()).t())
    # The length of a normal vector, independent of its direction.
    lengths = torch.empty(rows, width, dtype=torch.float64).normal_(generator=generator).norm(
        dim=1, keepdim=True)
    return (torch.cat(blocks)[:rows] * lengths).to(torch.get_default_dtype())


def log_features(x: Tensor, rows: Tensor) -> Tensor:
    """The logarithm of the features ``exp(w x - |x|^2 / 2) / sqrt(m)``, one for each of m rows w.

    ``x [..., width]`` to ``[..., m]``. The expectation over the rows of the product of the
    features of x and of y is ``exp(x y)``.
    """
    return x @ rows.t() - (x.square().sum(-1, keepdim=True) + math.log(rows.shape[0])) / 2


@token_mixer("performer")
class Performer(FeatureAttention):
    """``y_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + 1e-6)`` for each
    head, with ``phi(x) = exp(W x - |x|^2/2) / sqrt(m)`` (FAVOR+, arXiv 2009.14794, lemma 1 and
    section 2.4), x being a query or key over the fourth root of its width.

    ``E[phi(q) phi(k)] = exp(q k)``, so it estimates softmax attention. The m rows of W are drawn
    once, orthogonal where they can be, and not trained. Per token: 4 d^2 MACs,
    4 m d + m heads + 2 d products and 4 d for positions, m d + m heads words of state and a count.

    It stays in range without looking at other tokens: ``w x - |x|^2/2 = (|w|^2 - |x-w|^2)/2`` is
    at most ``|w|^2/2``, some 50 for the longest of m rows of width 64, where float32 ends at
    e^88. Queries moreover are divided by their largest feature, which cancels. A maximum over the
    keys would do the same for them, but tell a token how large later keys are.

    Parameters
    ----------
    features
        m, features of a head; 0 is twice its width.
    heads, causal, rope
        As ``linear`` has them; a head has at most 64 channels.
    """

    rows: Tensor

    def __init__(
        self, init: MixerInit, *, features: int = 0, heads: int = 0, causal: bool = True,
        rope: bool = True,
    ) -> None:
        super().__init__(init, heads=heads, causal=causal, rope=rope)
        check_whole("features", features, 0)
        if self.width > _WIDEST:
            raise ValueError(
                f"a head of {self.width} channels has features beyond the range of float32: take "
                f"more heads than {self.heads}, of at most {_WIDEST} channels each")
        self.features = features or 2 * self.width
        self.register_buffer("rows", orthogonal_rows(self.features, self.width, init.generator))

    def of_queries(self, q: Tensor) -> Tensor:
        """phi over its largest feature."""
        exponents = log_features(q * self.width ** -0.25, self.rows)
        return (exponents - exponents.amax(-1, keepdim=True)).exp()

    def of_keys(self, k: Tensor) -> Tensor:
        """phi."""
        return log_features(k * self.width ** -0.25, self.rows).exp()

    def products(self, length: int) -> int:
        """Beside those of linear attention W x, and the square of x."""
        return super().products(length) + 2 * self.d * (self.features + 1)
