"""Grouped-query and multi-query attention: fewer heads of keys and values than of queries."""

from __future__ import annotations

from sterna.model.checks import check_whole
from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.heads import head_count
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["GroupedQueryAttention", "MultiQueryAttention", "group_count"]


def group_count(heads: int, groups: int) -> int:
    """``groups``, or if that is 0 half of ``heads`` or the next smaller divisor, at least one.

    Raises
    ------
    ValueError
        If ``heads`` is not a multiple of it.

    >>> [group_count(heads, 0) for heads in (1, 2, 3, 8, 9)]
    [1, 1, 1, 4, 3]
    """
    check_whole("groups", groups, 0)
    groups = groups or max(
        count for count in range(1, max(2, heads // 2 + 1)) if heads % count == 0)
    if heads % groups:
        raise ValueError(f"heads ({heads}) must be a multiple of groups ({groups})")
    return groups


@token_mixer("gqa")
class GroupedQueryAttention(Attention):
    """Causal :class:`Attention` with ``groups`` heads of keys and values (arXiv 2305.13245).

    ``softmax(s Q_h K_g^T) V_g`` for query head h with ``g = h // (heads / groups)``. With
    ``r = groups / heads``, per token after n: 2 (1 + r) d^2 MACs, 2 n d products (with ``rope``
    2 (1 + r) d more), 2 r n d words of state.

    Parameters
    ----------
    heads
        Number of heads of queries; 0 is one for every 32 channels.
    groups
        Number of heads of keys and values, a divisor of ``heads``; 0 is half of them, or the
        next smaller divisor, and at least one.
    rope
        Whether queries and keys are turned by their positions.
    """

    def __init__(
        self, init: MixerInit, *, heads: int = 0, groups: int = 0, rope: bool = True,
    ) -> None:
        heads = head_count(init.d, heads)
        super().__init__(init, group_count(heads, groups), heads=heads, rope=rope)


@token_mixer("mqa")
class MultiQueryAttention(GroupedQueryAttention):
    """:class:`GroupedQueryAttention` with one head of keys and values (arXiv 1911.02150).

    ``softmax(s Q_h K^T) V`` for every query head h.
    Per token after n: 2 (1 + 1/heads) d^2 MACs, 2 n d products, 2 n d / heads words of state.

    Parameters
    ----------
    heads
        Number of heads of queries; 0 is one for every 32 channels.
    rope
        Whether queries and keys are turned by their positions.
    """

    def __init__(self, init: MixerInit, *, heads: int = 0, rope: bool = True) -> None:
        super().__init__(init, heads=heads, groups=1, rope=rope)
