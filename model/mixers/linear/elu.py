"""Linear attention with the features elu + 1."""

from __future__ import annotations

from torch import Tensor

from sterna.model.mixers.linear.feature_attention import FeatureAttention
from sterna.model.mixers.linear.sums import elu_features
from sterna.model.network.registry import token_mixer

__all__ = ["LinearAttention"]


@token_mixer("linear")
class LinearAttention(FeatureAttention):
    """``y_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + 1e-6)`` for each
    head, with ``phi(x) = elu(x) + 1`` (arXiv 2006.16236, equations 7 and 18 to 20).

    Every feature is positive, so an output is a mean of values. The sums over earlier tokens are
    the state; a long piece is computed in chunks, inside of which scores are written out. Per
    token: 4 d^2 MACs, 2 d^2/heads + d products and 4 d for positions, d^2/heads + d words of
    state and a count.

    Parameters
    ----------
    heads
        Number of heads; 0 is one for every 32 channels.
    causal
        Whether a token sees earlier ones only.
    rope
        Whether queries and keys are turned by their positions (:func:`rotate`), before phi so
        that features stay positive. A score then is no function of the distance alone.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        """``elu(q) + 1``, of keys as well."""
        return elu_features(q)
