"""A checkpoint in the published layout (hgrn_bit) with random weights, and a tokenizer for it.

    python benchmarks/published_checkpoint.py build/hub/370M --size 370M

Written from the published code, without using Sterna.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor

SIZES = {"370M": (1024, 24, 2816), "1.3B": (2048, 24, 5632), "2.7B": (2560, 32, 6912)}
"""Width, layers and intermediate size of the published checkpoints; all have 32,000 tokens."""
_BYTES = 256


def make_checkpoint(
    folder: Path, *, d: int = 64, layers: int = 3, dff: int = 96, vocab: int = 80, seed: int = 0,
    dtype: torch.dtype = torch.bfloat16, shards: int = 1, ternary: bool = False, gain: float = 1.0,
) -> dict[str, Tensor]:
    """Write a random checkpoint; return its tensors. ``ternary`` stores only -s, 0 and s; every
    tenth gain is negative."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}

    def normal(name: str, *shape: int, mean: float = 0.0, deviation: float = 1.0) -> None:
        values = torch.randn(*shape, generator=random) * deviation + mean
        if ternary and name.endswith("proj.weight"):
            values = values.sign() * (values.abs() > deviation / 2) * 0.0173
        tensors[name] = values.to(dtype)

    def linear(name: str, rows: int, columns: int) -> None:
        normal(f"{name}.weight", rows, columns, deviation=0.02)
        gains = gain * (0.5 + torch.rand(columns, generator=random))
        gains[3::10] *= -1
        tensors[f"{name}.norm.weight"] = gains.to(dtype)

    normal("model.embeddings.weight", vocab, d, deviation=0.3)
    normal("model.norm.weight", d, mean=1.0, deviation=0.3)
    normal("model.lower_bounds", layers, d)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name in ("attn_norm", "mlp_norm", "attn.g_norm"):
            normal(f"{at}.{name}.weight", d, mean=1.0, deviation=0.3)
        for part in "ifgo":
            linear(f"{at}.attn.{part}_proj", d, d)
        linear(f"{at}.mlp.gate_proj", 2 * dff, d)
        linear(f"{at}.mlp.down_proj", d, dff)
    linear("lm_head", vocab, d)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["HGRNBitForCausalLM"], "model_type": "hgrn_bit", "hidden_size": d,
        "num_hidden_layers": layers, "intermediate_size": dff, "vocab_size": vocab, "num_heads": 1,
        "expand_ratio": 1, "hidden_ratio": 4, "rms_norm_eps": 1e-6, "use_lower_bound": True,
        "use_short_conv": False, "hidden_act": "swish", "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    places = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors"
              for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return tensors


def make_tokenizer(vocab: int) -> Tokenizer:
    """As Llama's and Mistral's: a space is U+2581, unknown characters are bytes, and each text
    starts with a special token. Most tokens never occur."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTES)), "▁"]
    pieces += sorted(set("Themothisinthemist,andgreyZwlfMor."))
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "s"), ("▁", "is"), ("m", "is")]
    pieces += ["".join(pair) for pair in merges]
    pieces += [f"<filler{i}>" for i in range(vocab - len(pieces))]
    tokenizer = Tokenizer(models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True,
        unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def main() -> None:
    """Read the command line, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="370M")
    arguments = parser.parse_args()
    d, layers, dff = SIZES[arguments.size]
    make_checkpoint(arguments.folder, d=d, layers=layers, dff=dff, vocab=32000)
    make_tokenizer(32000).save(str(arguments.folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
