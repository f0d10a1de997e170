"""Text from a float model of any mixers, drawn by the sampler of the integer model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from sterna.model.quantized.sampling import Sampler
from sterna.model.stack.language_model import LanguageModel

__all__ = ["sample_tokens"]


def sample_tokens(
    model: LanguageModel, prompt: np.ndarray, *, tokens: int, sampler: Sampler,
    end_of_text: int | None = None,
) -> Iterator[int]:
    """Continue a text, the tokens ``prompt [time]``, by up to ``tokens``, one at a time; the token
    ``end_of_text`` is the last.

    Logits are rounded to the format of the model's profile, so that the sampler is the one that all
    other forms of a model use. A model with mixers of a fixed length ends with it. The model is put
    into evaluation mode.

    Raises
    ------
    ValueError
        If the prompt alone is longer than a mixer allows.
    """
    logit = model.profile.logit
    device = model.embedding.weight.device
    row = torch.from_numpy(prompt.astype(np.int64)).reshape(1, -1).to(device)
    lengths = [each.mixer.longest for each in model.blocks() if each.mixer.longest is not None]
    room = min([tokens, *(longest - row.shape[1] + 1 for longest in lengths)])
    model.eval()    # ternary weights are then made once, not for every token
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
