"""What becomes of the values of a float model that have a format of their own in integers.

There is one method for each format of a :class:`~sterna.model.profile.NumericProfile`, called
where :mod:`sterna.model.quantized.integer` rounds to it. So a model is trained for other formats,
or with other means, by another object of this kind, and mixers name no profile.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.recurrence import mlgru_scan
from sterna.model.profile import S16, NumericProfile

__all__ = ["S16_LIMITS", "Limits", "Numerics"]


class Numerics:
    """Real numbers: nothing is limited, nothing is rounded. What models in float compute with.

    Every method maps a tensor of any shape to one of the same shape and type. It may work in
    place, so it is given tensors that nobody else needs.
    """

    z_limit: float = math.inf
    """Where pre-activations saturate. The projection that makes them does it, in one piece with
    the rest of its work; :meth:`z` gets what it made."""

    def x(self, stream: Tensor) -> Tensor:
        """The residual stream: the embedding, and the sum after each mixer."""
        return stream

    def z(self, projected: Tensor) -> Tensor:
        """Pre-activations, limited to :attr:`z_limit` by the projection."""
        return projected

    def sigmoid(self, z: Tensor) -> Tensor:
        """The sigmoid of pre-activations."""
        return torch.sigmoid(z)

    def silu(self, z: Tensor) -> Tensor:
        """``z * sigmoid(z)`` of the gate of a GLU, in the format of z."""
        return F.silu(z)

    def h(self, state: Tensor) -> Tensor:
        """Candidates, which go into the recurrent state, and the states that come out."""
        return state

    def scan(self, forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
        """The states of the MLGRU's recurrence, as
        :func:`~sterna.model.network.recurrence.mlgru_scan` gives them, through :meth:`h`."""
        return self.h(mlgru_scan(forget, candidate, initial))

    def o(self, output: Tensor) -> Tensor:
        """The gated state of the MLGRU, before its last projection."""
        return output

    def p(self, product: Tensor) -> Tensor:
        """The hidden vector of a channel mixer, before its last projection."""
        return product

    def logit(self, logits: Tensor) -> Tensor:
        """The logits."""
        return logits

    def bias(self, bias: Tensor, *, residual: bool) -> Tensor:
        """The bias of a ternary projection, whose output is a pre-activation or, if ``residual``,
        added to the residual stream. It is a parameter: this does not work in place."""
        return bias


class Limits(Numerics):
    """Residual stream, pre-activations and hidden vectors saturate where a profile's formats do.

    Saturated values pass no gradient. Nothing is rounded: at 16 bits that costs nothing. States
    and outputs of the MLGRU need no limit, as both are below that of pre-activations; logits
    reach theirs in no model worth having.
    """

    def __init__(self, profile: NumericProfile) -> None:
        self.profile = profile
        self.z_limit = profile.z.limit

    def x(self, stream: Tensor) -> Tensor:
        """Limited to the range of the profile's ``x`` format."""
        return F.hardtanh_(stream, -self.profile.x.limit, self.profile.x.limit)

    def p(self, product: Tensor) -> Tensor:
        """Limited to the range of the profile's ``p`` format."""
        return F.hardtanh_(product, -self.profile.p.limit, self.profile.p.limit)


S16_LIMITS = Limits(S16)
"""What ternary models are made with unless told otherwise."""
