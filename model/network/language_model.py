"""The MatMul-free language model in float, with quantisation-aware forward."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.glu import GLU
from sterna.model.network.mlgru import MLGRU
from sterna.model.profile import S16
from sterna.model.tokenizer import check_bytes, contiguous_sequences, encode

__all__ = ["MatMulFreeLM", "heldout_bpb"]


def _limit(x: Tensor) -> Tensor:
    """Limit the residual stream, in place, to the range of the profile's ``x`` format."""
    return F.hardtanh_(x, -S16.x.limit, S16.x.limit)


class _Block(nn.Module):
    """One layer: ``x += mlgru(norm(x))``, then ``x += glu(norm(x))``."""

    def __init__(self, config: ModelConfig, generator: torch.Generator | None) -> None:
        super().__init__()
        self.mlgru = MLGRU(config.d, generator=generator)
        self.glu = GLU(config.d, config.dff, generator=generator)


class MatMulFreeLM(nn.Module):
    """A stack of MLGRU and GLU blocks between an embedding and a ternary head.

    Parameters
    ----------
    config
        Shape of the model.
    seed
        Seed of the initial weights. The same seed gives the same model, whatever the
        state of torch's global generator.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.config = config
        self.embedding = nn.Embedding(
            config.vocab, config.d,
            _weight=torch.empty(config.vocab, config.d).normal_(generator=generator))
        self.layers = nn.ModuleList(
            _Block(config, generator) for _ in range(config.layers))
        self.head = BitLinear(config.d, config.vocab, bias=False, generator=generator)

    def blocks(self) -> list[_Block]:
        """The layers, first to last."""
        return [block for block in self.layers if isinstance(block, _Block)]

    def named_projections(self) -> dict[str, BitLinear]:
        """Every ternary projection by the name and in the order of ``config.projections()``."""
        named = {}
        for name in self.config.projections():
            module = self.get_submodule(
                "layers." + name.removeprefix("layer") if name.startswith("layer") else name)
            assert isinstance(module, BitLinear)
            named[name] = module
        return named

    def initial_state(self, batch: int) -> Tensor:
        """Return the state at the start of a text: zeros ``[layers, batch, d]``."""
        return self.embedding.weight.new_zeros(self.config.layers, batch, self.config.d)

    def forward_time_major(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`forward` for tokens ``[time, batch]``; logits are ``[time, batch, vocab]``."""
        x = _limit(self.embedding(tokens))
        last = []
        for block, initial in zip(self.blocks(), state.unbind(0), strict=True):
            mixed, h = block.mlgru(x, initial)
            x = _limit(x + mixed)
            x = _limit(x + block.glu(x))
            last.append(h)
        return self.head(x), torch.stack(last)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predict the token after each of a row.

        Parameters
        ----------
        tokens
            Whole numbers ``[batch, time]``.
        state
            State before the row ``[layers, batch, d]``, zeros by default.

        Returns
        -------
        Logits ``[batch, time, vocab]`` and the state after the row.
        """
        if state is None:
            state = self.initial_state(tokens.shape[0])
        logits, state = self.forward_time_major(tokens.t(), state)
        return logits.transpose(0, 1), state

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the token after one: ``tokens [batch]`` to logits ``[batch, vocab]``.

        ``state [layers, batch, d]`` goes in and the next comes out; the same numbers as
        :meth:`forward` on a row of one.
        """
        x = _limit(self.embedding(tokens))
        last = []
        for block, previous in zip(self.blocks(), state.unbind(0), strict=True):
            mixed, h = block.mlgru.step(x, previous)
            x = _limit(x + mixed)
            x = _limit(x + block.glu(x))
            last.append(h)
        return self.head(x), torch.stack(last)


@torch.no_grad()
def heldout_bpb(
    model: MatMulFreeLM, text: bytes, *, sequences: int = 16, chunk_tokens: int = 256,
) -> float:
    """Return bits per byte of ``text``, with the state carried.

    The text is cut by :func:`sterna.model.tokenizer.contiguous_sequences`; every sequence
    starts from the zero state, and its bytes from the second on are predicted from all
    that came before. The result is the mean over ``sequences * (length - 1)`` predictions.

    Parameters
    ----------
    model
        Model whose vocabulary has every byte of the text.
    text
        Text to predict.
    sequences
        Number of contiguous sequences; fewer are used if the text is short.
    chunk_tokens
        Tokens per sequence evaluated at once; bounds memory, does not change the result.

    Raises
    ------
    ValueError
        If the text has fewer than two bytes, or one that the model does not know.
    """
    device = model.embedding.weight.device
    check_bytes(text, model.config.vocab)
    tokens = encode(text)
    sequences = max(1, min(sequences, tokens.size // 2))
    rows = torch.from_numpy(np.ascontiguousarray(contiguous_sequences(tokens, sequences).T))
    rows = rows.to(device)  # [length, sequences]
    state = model.initial_state(sequences)
    nats = 0.0
    for start in range(0, rows.shape[0] - 1, chunk_tokens):
        piece = rows[start:start + chunk_tokens + 1]
        logits, state = model.forward_time_major(piece[:-1], state)
        nats += float(F.cross_entropy(
            logits.flatten(0, 1), piece[1:].flatten(), reduction="sum").double())
    return nats / math.log(2) / (sequences * (rows.shape[0] - 1))
