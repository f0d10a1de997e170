"""Linear attention with the features relu."""

from __future__ import annotations

from torch import Tensor

from sterna.model.mixers.linear.feature_attention import FeatureAttention
from sterna.model.network.registry import token_mixer

__all__ = ["ReluLinearAttention"]


@token_mixer("linear_relu")
class ReluLinearAttention(FeatureAttention):
    """Linear attention with ``phi(x) = relu(x)`` (arXiv 2009.14794, section 4.2, Performer-ReLU).

    It needs no exponential. A query whose features are all 0 gets 0. Costs and options are those
    of ``linear``.
    """

    def of_queries(self, q: Tensor) -> Tensor:
        """``relu(q)``, of keys as well."""
        return q.relu()
