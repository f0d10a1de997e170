"""Recurrences: the state is a vector or a matrix, whatever the length of the text."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.torch.network.dense_mml import activation_named, gained, make_dense
from sterna.model.torch.network.gates import gated_scan, mlgru_gates, started
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import Joint, MixerInit
from sterna.model.torch.network.recurrence import complex_scan, matrix_scan, mlgru_scan
from sterna.model.torch.network.registry import token_mixer
from sterna.model.torch.parallel.recurrence import mlgru_scan_parallel

__all__ = ["GRU", "GRUMML", "HGRN2", "LRU", "MLGRU", "AttentionMML"]


class _Gated(TokenMixer):
    """A gated recurrence whose state is one vector of d numbers."""

    d: int

    def initial_state(self, x: Tensor) -> State:
        return (x.new_zeros(x.shape[-2], self.d),)

    def state_words(self, length: int) -> int:
        return self.d

    def products(self, length: int) -> int:
        """Of MLGRU forget gate with state, its complement with the candidate, output gate with
        state; of GRU reset gate with its part of the state, update gate with state and candidate.
        """
        return 3 * self.d


def _check_heads(d: int, heads: int) -> None:
    check_whole("heads", heads, 1)
    if d % heads:
        raise ValueError(f"d ({d}) must be a multiple of heads ({heads})")


@token_mixer("mlgru")
class MLGRU(_Gated):
    """``h = f*h + (1-f)*c``, ``y = out(norm(g*h))`` (arXiv 2406.02528, equations 8 to 13).

    With ``n = norm(x)``: ``f = sigmoid(F n)``, ``c = silu(C n)``, ``g = sigmoid(G n)``. The three
    projections share one norm and quantisation and are limited to the profile's ``z`` format. Per
    token: 3 d products, d words of state. In float there are no limits and no norm before ``out``.

    - ``heads``: a divisor of d in published configurations. It only reshapes an element-wise
      recurrence; no number depends on it.
    - ``gains``: a trained gain in each norm; each projection then has its own norm, behind a shared
      one. This and the following options have no integer form, except all together: the published
      block (docs/published-models.md).
    - ``bounds``: a trained lower bound of the forget gates that grows from layer to layer: the sum
      of a softmax over the layers, less its first term.
    - ``swish``: ``y = out(norm(norm(G n) * silu(h)))`` instead of a sigmoid gate.
    - ``bias``: whether projections have biases.
    """

    resets = True
    shares_sequences = True

    def __init__(
        self, init: MixerInit, *, heads: int = 1, gains: bool = False, bounds: bool = False,
        swish: bool = False, bias: bool = True,
    ) -> None:
        super().__init__()
        _check_heads(init.d, heads)
        self.d, self.heads, self.numerics = init.d, heads, init.numerics
        linear, self.norm = gained(init, gains)
        forget, candidate, output = (linear(init.d, init.d, bias=bias) for _ in range(3))
        self.fcg = Joint(f=forget, c=candidate, g=output)
        self.out = linear(init.d, init.d, bias=bias, residual=True)
        if bias:    # forget slowly until told otherwise
            nn.init.constant_(next(
                each for name, each in forget.named_parameters() if name.endswith("bias")), 1.0)
        self.gate_norm = nn.RMSNorm(init.d, eps=1e-6) if swish else None
        self.layer = init.layer
        self.bounds = init.shared.setdefault(
            "bounds", LowerBounds(init.layers, init.d)) if bounds else None

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forget gate, candidate and output gate of ``x [..., d]``, each ``[..., d]``."""
        return self._gates(self._project(x))

    def _project(self, x: Tensor) -> Tensor:
        return self.numerics.z(self.fcg(self.norm(x), self.numerics.z_limit))

    def _gates(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forget, candidate, gate = mlgru_gates(z, self.numerics)
        if self.bounds is not None:
            bound = self.bounds()[self.layer]
            forget = bound + (1 - bound) * forget
        return forget, candidate, gate if self.gate_norm is None else z.chunk(3, dim=-1)[2]

    def output(self, g: Tensor, h: Tensor) -> Tensor:
        """What output gate and state ``[..., d]`` add to the residual stream."""
        if self.gate_norm is None:
            return self.out(self.numerics.o(g * h))
        return self.out(self.numerics.o(self.gate_norm(g) * F.silu(h)))

    def forward(
        self, x: Tensor, state: State, starts: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d]``. Shared between
        processes, both states are those of the whole sequence."""
        z = self._project(x)
        if self.group is None and self.bounds is None and self.gate_norm is None:
            gated, last = gated_scan(z, state[0], self.numerics, starts)
            return self.out(gated), (last,)
        f, c, g = self._gates(z)
        if self.group is None:
            f, c = started(f, c, starts)
            states = self.numerics.scan(f, c, state[0])
            return self.output(g, states), (states[-1].clone(),)
        if starts is not None:
            raise ValueError("processes that share a sequence cannot start anew within it")
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

    def products(self, length: int) -> int:
        """As of all gated recurrences, and one more for a bound."""
        return super().products(length) + (0 if self.bounds is None else self.d)


class LowerBounds(nn.Module):
    """Bounds of the forget gates of all layers, ``[layers, d]`` from 0 to below 1: 0 in the first,
    larger in each that follows (HGRN, arXiv 2311.04823, section 3.3)."""

    def __init__(self, layers: int, d: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(layers, d))

    def forward(self) -> Tensor:
        """The bounds."""
        share = self.logits.softmax(0)
        return share.cumsum(0) - share[0]


@token_mixer("grumml")
class GRUMML(_Gated):
    """``h = f*h + (1-f)*c``, ``y = O(g*h)`` with biases (keras-matmulless 0.1.2, ``GRUMML``; the
    equations of arXiv 2406.02528, 8 to 13).

    The parts of one :class:`DenseMML`, a ternary layer preceded by a norm with gain, pass through
    the recurrent activation (``f`` and ``g``) and the activation (``c``). Unlike in MLGRU, f, c and
    g thus share one ternary scale, norms have gains, no pre-activation is limited, and all biases
    start at zero. Per token: 3 d products, d words of state; unless ``fully_mml``, 2 d^2 of the
    MACs are multiplications of floats.

    - ``fully_mml``: whether g and O are ternary too.
    - ``heads``: as of ``mlgru``.
    - ``activation``, ``recurrent_activation``: any name that ``glumml`` takes.
    """

    def __init__(
        self, init: MixerInit, *, fully_mml: bool = False, heads: int = 1,
        activation: str = "silu", recurrent_activation: str = "sigmoid",
    ) -> None:
        super().__init__()
        _check_heads(init.d, heads)
        d = self.d = init.d
        self.wants_norm = not fully_mml
        self.activation = activation_named(activation)
        self.recurrent_activation = activation_named(recurrent_activation)
        floats = replace(init, ternary=False)
        self.kernel = make_dense(init, d, 3 * d if fully_mml else 2 * d)
        self.g: nn.Module | None = None if fully_mml else make_dense(floats, d, d)
        self.out = make_dense(init if fully_mml else floats, d, d, residual=True)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forget gate, candidate and output gate of ``x [..., d]``, each ``[..., d]``."""
        parts = self.kernel(x)
        if self.g is not None:
            parts = torch.cat([parts, self.g(x)], dim=-1)
        f, c, g = parts.chunk(3, dim=-1)
        return self.recurrent_activation(f), self.activation(c), self.recurrent_activation(g)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d]``."""
        f, c, g = self.gates(x)
        h = mlgru_scan(f, c, state[0])
        return self.out(g * h), (h[-1].clone(),)   # not all of h


@token_mixer("attentionmml")
class AttentionMML(GRUMML):
    """:class:`GRUMML` with SiLU and sigmoid, ternary throughout unless told otherwise
    (keras-matmulless 0.1.2, ``AttentionMML``): no attention, despite its name.

    With post-norm and channel mixer ``glumml(activation=silu)`` a block is the package's
    ``TransformerBlockMML`` without dropout; norm gains are per channel here, per token and channel
    ``[time, d]`` there.
    """

    def __init__(self, init: MixerInit, *, heads: int = 1, fully_mml: bool = True) -> None:
        super().__init__(init, fully_mml=fully_mml, heads=heads)


@token_mixer("gru")
class GRU(_Gated):
    """``h = (1-z)*n + z*h``, ``y = out(h)`` (arXiv 1406.1078, section 2.3; the form of cuDNN).

    ``r = sigmoid(R x + U_r h)``, ``z = sigmoid(Z x + U_z h)``, ``n = tanh(N x + r * (U_n h))``,
    each matrix with a bias: as in ``torch.nn.GRU`` the reset gate follows its matrix, and z weights
    the old state. Ternary matrices normalise and quantise ``h`` like ``x``. Each step needs the
    last: time is a loop. Per token: 7 d^2 ternary MACs, 3 d products, d words of state.
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


@token_mixer("hgrn2")
class HGRN2(TokenMixer):
    """``S = Diag(f) S + (1-f) v^T``, ``o = q^T S``, ``y = out(norm(o))`` (arXiv 2404.07904).

    ``q = silu(Q x)``, ``f = bound + (1 - bound) * sigmoid(F x)``, ``v = V x``, each cut into d/k
    heads of k channels; with k = 1 and q = 1 it is the recurrence of MLGRU. Per token: 3 d k
    products (d more with a bound), d k words of state.

    The paper learns lower bounds of f that grow from layer to layer. Here the bound is a constant,
    as a mixer knows no other layer; a pattern can set it per layer, such as ``hgrn2 +
    hgrn2(bound=0.5)``.

    - ``expand``: k, the state's size relative to a vector; a divisor of d.
    - ``bound``: least forget gate, from 0 to below 1.
    """

    def __init__(self, init: MixerInit, *, expand: int = 16, bound: float = 0.0) -> None:
        super().__init__()
        check_whole("expand", expand, 1)
        if init.d % expand:
            raise ValueError(f"d ({init.d}) must be a multiple of expand ({expand})")
        if not 0 <= bound < 1:
            raise ValueError(f"bound must be at least 0 and below 1, got {bound}")
        self.d, self.expand, self.bound = init.d, expand, bound
        query, forget, value = (init.linear(init.d, init.d) for _ in range(3))
        self.qfv = Joint(q=query, f=forget, v=value)
        self.norm = nn.Identity() if init.ternary else nn.RMSNorm(init.d, eps=1e-6)
        self.out = init.linear(init.d, init.d, residual=True)
        assert forget.bias is not None
        nn.init.constant_(forget.bias, 1.0)  # forget slowly until told otherwise

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, forget gate and value of ``x [time, batch, d]``, each
        ``[time, batch, d/k, k]``."""
        parts = self.qfv(x).unflatten(-1, (3, -1, self.expand))
        q, f, v = parts.unbind(-3)
        return F.silu(q), self.bound + (1 - self.bound) * torch.sigmoid(f), v

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d/k, k, k]``."""
        q, f, v = self.gates(x)
        o, last = matrix_scan(q, f, 1 - f, v, state[0])
        return self.out(self.norm(o.flatten(-2))), (last,)

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, d/k, k, k]``: heads, channels of f, channels of v."""
        return (x.new_zeros(x.shape[-2], self.d // self.expand, self.expand, self.expand),)

    def state_words(self, length: int) -> int:
        return self.d * self.expand

    def products(self, length: int) -> int:
        """Forget gate with state, its complement with value, query with state; the bound."""
        return 3 * self.d * self.expand + (self.d if self.bound else 0)


@token_mixer("lru")
class LRU(TokenMixer):
    """``x = L x + exp(gamma) * (B u)``, ``y = Re(C x) + D u`` (arXiv 2303.06349, section 3.4;
    keras-matmulless 0.1.2, ``LRUMML``).

    ``u`` is the input, ``x`` the complex state of n channels, ``L = exp(-exp(nu) + i exp(theta))``
    element by element. All is done in real numbers: ``Re(C x) = C_re(x_re) - C_im(x_im)``. Without
    biases, as in the package. Per token: 4 n d + d^2 ternary MACs, 6 n products, 2 n state words.

    - ``state_dim``: n; 0 is d.
    - ``r_min``, ``r_max``, ``max_phase``: L starts uniform on the ring between these radii, with
      phases from 0 to this.
    - ``fully_mml``: whether C and D are ternary like B; not by the package's default.
    """

    def __init__(
        self, init: MixerInit, *, state_dim: int = 0, r_min: float = 0.0, r_max: float = 1.0,
        max_phase: float = 2 * math.pi, fully_mml: bool = True,
    ) -> None:
        super().__init__()
        check_whole("state_dim", state_dim, 0)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"0 <= r_min < r_max <= 1 must hold, got {r_min} and {r_max}")
        if not 0 < max_phase < math.inf:
            raise ValueError(f"max_phase must be above 0 and finite, got {max_phase}")
        d, n = init.d, state_dim or init.d
        self.state_dim = n
        self.wants_norm = not fully_mml
        # Apart from 0 and 1, whose logarithms are not finite.
        area, turn = torch.rand(2, n, generator=init.generator).clamp(1e-6, 1 - 1e-6)
        square = (area * (r_max**2 - r_min**2) + r_min**2).clamp(max=1 - 1e-6)
        self.nu = nn.Parameter((-0.5 * square.log()).log())
        self.theta = nn.Parameter((max_phase * turn).log())
        self.gamma = nn.Parameter(0.5 * (1 - square).log())
        self.b_re = make_dense(init, d, n, bias=False)
        self.b_im = make_dense(init, d, n, bias=False)
        after = init if fully_mml else replace(init, ternary=False)
        self.c_re = make_dense(after, n, d, bias=False, residual=True)
        self.c_im = make_dense(after, n, d, bias=False, residual=True)
        self.direct = make_dense(after, d, d, bias=False, residual=True)

    def multiplier(self) -> tuple[Tensor, Tensor]:
        """L, its real and imaginary part ``[n]``."""
        radius, phase = torch.exp(-self.nu.exp()), self.theta.exp()
        return radius * phase.cos(), radius * phase.sin()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map the inputs ``x [time, batch, d]`` from real and imaginary state ``[batch, n]``."""
        gain = self.gamma.exp()
        re, im = complex_scan(
            self.multiplier(), (gain * self.b_re(x), gain * self.b_im(x)), (state[0], state[1]))
        y = self.c_re(re) - self.c_im(im) + self.direct(x)
        return y, (re[-1].clone(), im[-1].clone())   # not all of re and im

    def initial_state(self, x: Tensor) -> State:
        zeros = x.new_zeros(x.shape[-2], self.state_dim)
        return zeros, zeros.clone()

    def state_words(self, length: int) -> int:
        return 2 * self.state_dim

    def products(self, length: int) -> int:
        """Complex multiplier with state, gain with input."""
        return 6 * self.state_dim
