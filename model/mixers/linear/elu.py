"""Linear attention with the features elu + 1."""

from __future__ import annotations

from torch import Tensor

from sterna.model.mixers.linear.feature_attention import FeatureAttention
from sterna.model.mixers.linear.sums import elu_features
from sterna.model.network.registry import token_mixer

__all__ = ["LinearAttention"]


@token_mixer("linear")
class LinearAttention(FeatureAttention):
    """Linear attention with ``phi(x) = elu(x) + 1`` (arXiv 2006.16236, equations 7 and 18 to 20).

    Every feature is positive, so every row of the implied attention matrix is a mean; the width
    of a head is its number of features. Per token: 4 d^2 MACs, 2 d^2/heads + d products (and 4 d
    for positions), d^2/heads + d words of state (and a count). Options as
    :class:`FeatureAttention` has them.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        """``elu(q) + 1``, of keys as well."""
        return elu_features(q)
