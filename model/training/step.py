"""What one step of training computes: the loss of a batch and its gradient, in parts."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.stack.language_model import ModelState
from sterna.model.training.distributed.layout import local_gradients

__all__ = ["add_gradient", "next_token_loss"]


def next_token_loss(
    model: nn.Module, windows: Tensor, state: ModelState,
) -> tuple[Tensor, ModelState]:
    """The mean loss of predicting every token of windows from those before it.

    Parameters
    ----------
    model
        Predicts: a language model, or what stands for one.
    windows
        Tokens int64 ``[window + 1, batch]``.
    state
        Of the token mixers before the windows.

    Returns
    -------
    The loss in nats per token, and the state after the windows.
    """
    logits, after = model(windows[:-1].t(), state)
    rows = logits.transpose(0, 1).flatten(0, 1)
    return F.cross_entropy(rows, windows[1:].flatten()), after


def add_gradient(
    model: nn.Module, windows: Tensor, state: ModelState, parts: int = 1,
) -> tuple[Tensor, ModelState]:
    """Add the gradient of :func:`next_token_loss` to that of the parameters.

    The windows are read in ``parts`` that differ by one window at most; each has the weight of
    its windows. So the sum is the gradient of the whole, and the activations of one part alone
    are in memory. Of several processes each reads its own windows, and after the last part
    the gradient is the mean over all of them.

    Returns
    -------
    The loss of all windows in nats per token, a scalar without a gradient, and the state after
    them, without one either and with memory of its own.
    """
    pieces = windows.tensor_split(parts, dim=1)
    total, begin, ends = torch.zeros((), device=windows.device), 0, []
    for number, piece in enumerate(pieces, start=1):
        here = slice(begin, begin + piece.shape[1])
        begin = here.stop
        before = state if parts == 1 else tuple(
            tuple(each[here] for each in layer) for layer in state)
        with nullcontext() if number == parts else local_gradients(model):
            loss, after = next_token_loss(model, piece, before)
            share = loss * (piece.shape[1] / windows.shape[1])
            share.backward()
        total += share.detach()
        ends.append(tuple(tuple(each.detach() for each in layer) for layer in after))
    return total, tuple(
        tuple(torch.cat(each) for each in zip(*layers, strict=True))
        for layers in zip(*ends, strict=True))
