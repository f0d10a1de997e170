"""Held-out bits per byte and text generation for a float model of any mixers and tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.quantized.evaluate import Evaluation
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokenizer import contiguous_sequences
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import BYTES, Tokenizer, spelled_bytes
from sterna.model.torch.stack.language_model import LanguageModel

__all__ = ["heldout_bpb", "measured", "sample_tokens"]


def heldout_bpb(
    model: LanguageModel, text: bytes, *, sequences: int = 16, chunk_tokens: int = 256,
    window: int | None = None, tokenizer: Tokenizer = BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """The bits per byte of :func:`measured`."""
    return measured(model, text, sequences=sequences, chunk_tokens=chunk_tokens, window=window,
                    tokenizer=tokenizer, progress=progress).bits_per_byte


@torch.no_grad()
def measured(
    model: LanguageModel, text: bytes, *, sequences: int = 16, chunk_tokens: int = 256,
    window: int | None = None, tokenizer: Tokenizer = BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Bits per byte of ``text`` (the bits of all predictions over the bytes of the predicted
    tokens), and the number of predictions.

    The tokens are cut into ``sequences`` (fewer if the text is short) by
    :func:`sterna.model.tokenizer.contiguous_sequences`; each starts from the initial state, and its
    tokens from the second on are predicted from all preceding ones, ``chunk_tokens`` at a time,
    which bounds memory. With ``window`` the text is instead cut into windows of that many tokens
    plus one, each overlapping the previous one by a token and starting from the initial state; the
    rest is not predicted. That is for mixers with a state that grows with the text.

    ``progress`` is called now and then with the numbers of predictions so far and in total.
    """
    tokenizer = fitted(tokenizer, model.config.vocab)
    tokens = tokenizer.encode(text)
    if window is not None and tokens.size > window:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, window + 1)[::window]
        pieces = np.split(windows, range(sequences, len(windows), sequences))
    else:
        pieces = [contiguous_sequences(tokens, max(1, min(sequences, tokens.size // 2)))]
    device = model.embedding.weight.device
    done, total = 0, sum(piece[:, 1:].size for piece in pieces)

    def move(count: int) -> None:
        nonlocal done
        progress(done := done + count, total)

    nats = sum(_nats(model, torch.tensor(piece.T, device=device), chunk_tokens, move)
               for piece in pieces)
    judged = sum(spelled_bytes(tokenizer, piece[:, 1:]) for piece in pieces)
    return Evaluation(nats / math.log(2) / judged, total)


def _nats(
    model: LanguageModel, rows: Tensor, chunk_tokens: int, move: Callable[[int], None],
) -> float:
    """The summed loss of predicting ``rows [time, batch]`` from the second on; ``move`` is called
    with the number of predictions of each chunk."""
    state = model.initial_state(rows.shape[1])
    nats = 0.0
    for start in range(0, rows.shape[0] - 1, chunk_tokens):
        piece = rows[start:start + chunk_tokens + 1]
        # Called as a module, so that FSDP gathers weights.
        logits, state = model(piece[:-1].t(), state)
        nats += float(F.cross_entropy(
            logits.transpose(0, 1).flatten(0, 1), piece[1:].flatten(), reduction="sum").double())
        move(piece[1:].numel())
    return nats


def sample_tokens(
    model: LanguageModel, prompt: np.ndarray, *, tokens: int, sampler: Sampler,
    end_of_text: int | None = None,
) -> Iterator[int]:
    """Continue the tokens ``prompt [time]`` by up to ``tokens``, one at a time; stops after the
    token ``end_of_text``, or at the maximum length of a mixer.

    Logits are rounded to the format of the model's profile, so that all forms of a model share one
    sampler. The model is put into evaluation mode.
    """
    logit = model.profile.logit
    device = model.embedding.weight.device
    row = torch.from_numpy(prompt.astype(np.int64)).reshape(1, -1).to(device)
    end = model.longest
    room = tokens if end is None else min(tokens, end - row.shape[1] + 1)
    model.eval()    # ternarise weights once, not for every token
    with torch.inference_mode():
        logits, state = model(row)
        last = logits[:, -1]
        for count in range(room):
            integers = (last[0].double() * 2.0 ** logit.frac).round().clamp(logit.min, logit.max)
            token = sampler(integers.cpu().numpy().astype(np.int64))
            yield token
            if token == end_of_text:
                return
            if count + 1 < room:
                last, state = model.step(torch.tensor([token], device=device), state)
