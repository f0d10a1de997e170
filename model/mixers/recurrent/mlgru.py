"""The MLGRU token mixer: a gated recurrence without a matrix product on the state."""

from __future__ import annotations

from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.network.gates import gated_scan, mlgru_gates
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import token_mixer
from sterna.model.parallel.recurrence import mlgru_scan_parallel

__all__ = ["MLGRU"]


@token_mixer("mlgru")
class MLGRU(TokenMixer):
    """``h = f*h + (1-f)*c``, ``y = out(norm(g*h))``  (arXiv 2406.02528, equations 8 to 13).

    With ``n = norm(x)``: ``f = sigmoid(F n)``, ``c = silu(C n)``, ``g = sigmoid(G n)``.
    The three projections share one norm and quantisation, and are limited to the range
    of the profile's ``z`` format. Per token: 4 d^2 ternary MACs, 3 d products, d words of state.
    In float there are no limits, and no norm before ``out``.

    Parameters
    ----------
    heads
        Published configurations carry it. It only reshapes an element-wise recurrence, so no
        number depends on it; d must be a multiple of it.
    """

    resets = True
    shares_sequences = True

    def __init__(self, init: MixerInit, *, heads: int = 1) -> None:
        super().__init__()
        check_whole("heads", heads, 1)
        if init.d % heads:
            raise ValueError(f"d ({init.d}) must be a multiple of heads ({heads})")
        self.d, self.heads, self.numerics = init.d, heads, init.numerics
        forget, candidate, output = (init.linear(init.d, init.d) for _ in range(3))
        self.fcg = Joint(f=forget, c=candidate, g=output)
        self.out = init.linear(init.d, init.d, residual=True)
        assert forget.bias is not None
        nn.init.constant_(forget.bias, 1.0)  # forget slowly until told otherwise

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forget gate, candidate and output gate of ``x [..., d]``, each ``[..., d]``."""
        return mlgru_gates(self._project(x), self.numerics)

    def _project(self, x: Tensor) -> Tensor:
        return self.numerics.z(self.fcg(x, self.numerics.z_limit))

    def output(self, g: Tensor, h: Tensor) -> Tensor:
        """What output gate and state ``[..., d]`` add to the residual stream."""
        return self.out(self.numerics.o(g * h))

    def forward(
        self, x: Tensor, state: State, starts: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d]``.

        Shared between processes, both states are those of the whole sequence.
        """
        if self.group is None:
            gated, last = gated_scan(self._project(x), state[0], self.numerics, starts)
            return self.out(gated), (last,)
        if starts is not None:
            raise ValueError("processes that share a sequence cannot start anew within it")
        f, c, g = self.gates(x)
        h, last = mlgru_scan_parallel(f, c, state[0], self.group)
        return self.output(g, self.numerics.h(h)), (last,)

    def step(
        self, x: Tensor, state: State, starts: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Map one token ``x [batch, d]`` from the state ``[batch, d]``."""
        self.check_alone()
        before = state[0] if starts is None else state[0].masked_fill(starts, 0.0)
        f, c, g = self.gates(x)
        h = self.numerics.h(f * before + (1 - f) * c)
        return self.output(g, h), (h,)

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, d]``."""
        return (x.new_zeros(x.shape[-2], self.d),)

    def state_words(self, length: int) -> int:
        """d, whatever the length."""
        return self.d

    def products(self, length: int) -> int:
        """Forget gate with state, its complement with the candidate, output gate with state."""
        return 3 * self.d
