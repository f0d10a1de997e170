"""How a run is computed, apart from what it computes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Execution"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What may differ between a run and its continuation: the result is the same, but for
    rounding.

    Parameters
    ----------
    parallel
        How the model lies over the processes that a launcher started
        (:data:`sterna.model.training.distributed.layout.LAYOUTS`). None: ``ddp``, if there is
        more than one.
    checkpoint_activations
        Whether a block keeps nothing but its input for the backward pass, and computes itself
        again there: less memory, about a third more work, the same numbers.
    compile
        Whether ``torch.compile`` compiles the blocks, at the first step. Then neither the compiled
        kernels of this package nor Triton's compute in them; last digits differ.
    """

    parallel: str | None = None
    checkpoint_activations: bool = False
    compile: bool = False
