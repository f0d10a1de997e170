"""A model over sequences of which every process holds a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from sterna.model.network.mixer import TokenMixer
from sterna.model.parallel.group import rank_and_size

__all__ = ["context_parallel", "sum_gradients"]


@contextmanager
def context_parallel(model: nn.Module, group: ProcessGroup) -> Iterator[None]:
    """Within it the model maps the own part of sequences that the processes of a group share.

    Every process calls the same model with its own part, as of
    :func:`sterna.model.parallel.group.own_part`, from the initial state, and gets the outputs of
    that part. Only token mixers exchange anything; all else in a block takes each token by itself.
    Gradients may be taken outside of it, by all processes; the weights' are those of the own
    outputs, to be added up by :func:`sum_gradients`.

    Raises
    ------
    ValueError
        If a token mixer of the model cannot share sequences, or this process is not in the group.

    Examples
    --------
    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.stack.language_model import LanguageModel
    >>> model = LanguageModel(ModelConfig(d=16, layers=2, dff=16, mixer="mlgru + ring"))
    >>> def loss_of_part(tokens, targets, group):    # each [time, batch], targets a token later
    ...     with context_parallel(model, group):
    ...         logits, _ = model.forward_time_major(
    ...             own_part(tokens, group), model.initial_state(tokens.shape[1]))
    ...     return cross_entropy(
    ...         logits.flatten(0, 1), own_part(targets, group).flatten(), reduction="sum")
    """
    rank_and_size(group)
    mixers = [module for module in model.modules() if isinstance(module, TokenMixer)]
    for mixer in mixers:
        if not mixer.shares_sequences:
            raise ValueError(
                f"{type(mixer).__name__} cannot share a sequence between processes: mixers that "
                f"can are mlgru, and ring for full attention")
    before = [mixer.group for mixer in mixers]
    try:
        for mixer in mixers:
            mixer.group = group
        yield
    finally:
        for mixer, was in zip(mixers, before, strict=True):
            mixer.group = was


def sum_gradients(model: nn.Module, group: ProcessGroup) -> None:
    """Add up the gradients of the weights over the processes, in place.

    With losses that are sums over own tokens, or those divided by the number of all tokens, they
    are then the gradients that one process has with whole sequences.
    """
    rank_and_size(group)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
