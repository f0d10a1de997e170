"""Linear attention with the features relu."""

from __future__ import annotations

from torch import Tensor

from sterna.model.mixers.linear.feature_attention import FeatureAttention
from sterna.model.network.registry import token_mixer

__all__ = ["ReluLinearAttention"]


@token_mixer("linear_relu")
class ReluLinearAttention(FeatureAttention):
    """``y_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + 1e-6)`` for each
    head, with ``phi(x) = relu(x)`` (Performer-ReLU of arXiv 2009.14794, section 4, without its
    random projection).

    It needs no exponential. A query whose features are all 0 gets 0. Options and costs are those
    of ``linear``.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        """``relu(q)``, of keys as well."""
        return q.relu()
