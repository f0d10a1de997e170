"""The interface of a mixer: for blocks, and for comparisons of mixers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from sterna.model.torch.network.bitlinear import BitLinear

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ChannelMixer", "Mixer", "State", "TokenMixer"]

State: TypeAlias = tuple[Tensor, ...]
"""State of a token mixer between tokens: tensors ``[batch, ...]``, none if not causal."""


class Mixer(nn.Module):
    """A part of a block that maps ``[..., d]`` to ``[..., d]``."""

    wants_norm: bool = False
    """Whether the input must be normalised even with ternary projections: set it if the first
    operation on ``x`` is not a projection, which would normalise by itself."""

    def macs(self, length: int) -> int:
        """Ternary multiply-accumulates for one token: the ternary weights, each used once.
        ``length`` is the number of tokens up to and including this one, or of the whole sequence if
        the mixer is not causal."""
        return sum(each.weight.numel() for each in self.modules() if isinstance(each, BitLinear))

    def multiplies(self, length: int) -> int:
        """True multiplications for one token, ``length`` as in :meth:`macs`: of activations with
        each other, and with weights that are not ternary.

        Quantisers, norms, scales and functions of one number (sigmoid, exponential, division) are
        not counted; they grow with the channels alone.
        """
        return self.products(length) + sum(
            each.weight.numel() for each in self.modules() if isinstance(each, nn.Linear))

    def products(self, length: int) -> int:
        """The multiplications of :meth:`multiplies` outside projections."""
        return 0


class ChannelMixer(Mixer, ABC):
    """Mixes the channels of each token independently: ``y = forward(x)``."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``."""


class TokenMixer(Mixer, ABC):
    """Mixes the tokens of a sequence.

    A causal mixer reads a sequence in pieces of any size: :meth:`forward` takes the state left by
    the previous piece, and the outputs do not depend on the cuts.
    """

    causal: bool = True
    """Whether an output depends on its own token and earlier ones only."""

    longest: int | None = None
    """Maximum tokens of a sequence, None for any number."""

    resets: bool = False
    """Whether :meth:`forward` and :meth:`step` take a third argument, bool ``[time, batch, 1]`` or
    ``[batch, 1]``, that marks the tokens before which the state is reset to the initial one."""

    shares_sequences: bool = False
    """Whether :meth:`forward` supports :attr:`group`."""

    group: ProcessGroup | None = None
    """Processes that share every sequence, each holding a part; None for this one only. Set by
    :func:`sterna.model.torch.parallel.context.context_parallel`."""

    @abstractmethod
    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]`` from ``state`` to ``[time, batch, d]`` and the next state.

        The next state must not be a view: a slice of the sequence, such as the last of all hidden
        vectors, would keep the whole of it alive, in a checkpoint too. ``state`` is not modified.
        If not causal, ``x`` is the whole sequence and the state ``()``.
        """

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map one token ``x [batch, d]``, with the same result as :meth:`forward`."""
        if not self.causal:
            raise ValueError(f"{type(self).__name__} is not causal: it has no step")
        self.check_alone()
        y, state = self(x.unsqueeze(0), state)
        return y.squeeze(0), state

    def check_alone(self) -> None:
        """Refuse a step of one token if processes share the sequence."""
        if self.group is not None:
            raise ValueError("processes cannot share a step of one token: leave context_parallel")

    def initial_state(self, x: Tensor) -> State:
        """The state before the first token, with batch, dtype and device of ``x [..., batch, d]``.
        """
        return ()

    def state_words(self, length: int) -> int:
        """Number of values in the state of one sequence after ``length`` tokens."""
        return 0

    def check_length(self, length: int) -> None:
        """Refuse a sequence of more than :attr:`longest` tokens."""
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"{type(self).__name__} mixes sequences of at most {self.longest} tokens, got "
                f"{length}: give it the option length={length}")
