"""What requests an old core takes."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.hw.core.request import Request
from sterna.hw.oldcore.plan.core_params import CoreParams

__all__ = ["check_requests", "check_sequences"]


def check_sequences(params: CoreParams, requests: Sequence[Sequence[Request]]) -> None:
    """Raise ValueError if there is not a list of requests for each sequence."""
    if len(requests) != params.sequences:
        raise ValueError(
            f"there must be a list of requests for each of {params.sequences} sequences, "
            f"got {len(requests)}")


def check_requests(params: CoreParams, requests: Sequence[Sequence[Request]]) -> None:
    """Check that requests can run on a core."""
    check_sequences(params, requests)
    for queue in requests:
        for request in queue:
            request.check_vocab(params.config.vocab)
            if request.beta and not params.sampling:
                raise ValueError(
                    f"this core has no sampling: take temperature 0, not {request.temperature}")
