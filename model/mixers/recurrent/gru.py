"""The GRU: the gated recurrence with matrices on the state, which MLGRU does without."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["GRU"]


@token_mixer("gru")
class GRU(TokenMixer):
    """``h = (1-z)*n + z*h``, ``y = out(h)`` (arXiv 1406.1078, section 2.3; the form of cuDNN).

    ``r = sigmoid(R x + U_r h)``, ``z = sigmoid(Z x + U_z h)``, ``n = tanh(N x + r * (U_n h))``,
    each matrix with a bias: the reset gate comes after its matrix, and z weights the old state, as
    in ``torch.nn.GRU``. Ternary matrices normalise and quantise ``h`` as they do ``x``. A step
    needs the one before, so time is a loop. Per token: 7 d^2 ternary MACs, 3 d products, d words
    of state.
    """

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        d = self.d = init.d
        self.inputs = Joint(r=init.linear(d, d), z=init.linear(d, d), n=init.linear(d, d))
        self.hidden = Joint(r=init.linear(d, d), z=init.linear(d, d), n=init.linear(d, d))
        self.out = init.linear(d, d, residual=True)
        bias = self.inputs["z"].bias
        assert isinstance(bias, Tensor)
        nn.init.constant_(bias, 1.0)  # forget slowly until told otherwise, as MLGRU

    def states(self, x: Tensor, hidden: Tensor) -> Tensor:
        """The state after each token of ``x [time, batch, d]``, from ``hidden [batch, d]``."""
        from_hidden = self.hidden.prepared()
        states = []
        for inputs in self.inputs(x).unbind(0):
            xr, xz, xn = inputs.chunk(3, dim=-1)
            hr, hz, hn = from_hidden(hidden).chunk(3, dim=-1)
            n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            hidden = torch.lerp(n, hidden, torch.sigmoid(xz + hz))
            states.append(hidden)
        return torch.stack(states)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d]``."""
        states = self.states(x, state[0])
        return self.out(states), (states[-1].clone(),)   # not all states

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, d]``."""
        return (x.new_zeros(x.shape[-2], self.d),)

    def state_words(self, length: int) -> int:
        """d, whatever the length."""
        return self.d

    def products(self, length: int) -> int:
        """Reset gate with its part of the state, update gate with state and candidate."""
        return 3 * self.d
