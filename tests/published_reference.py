"""A checkpoint in the published layout, and what it computes, from the published code alone.

matmulfreellm's ``hgrn_bit`` in float64, layer by layer as its modules are; nothing of Sterna is
used. ``trap`` walks into one of the mistakes that are easily made: see :data:`TRAPS`.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

TRAPS = {
    "eps": "1e-8, as the modules print, in place of 1e-6, which their kernels use",
    "two scales": "gate and up with a scale each; they are one matrix",
    "gate": "silu(g) * rms(h) in place of rms(g) * silu(h)",
    "bfloat16": "ternary weights chosen in bfloat16",
    "twice": "a matrix that is ternary made ternary again, its scale the mean of |w|",
    "positive": "gains that are negative taken as positive",
    "bound": "the first layer's lower bound not subtracted",
    "one norm": "the norm of a block left out, as BitLinear has one",
}


def make_checkpoint(
    folder: Path, *, d: int = 64, layers: int = 3, dff: int = 96, vocab: int = 80, seed: int = 0,
    dtype: torch.dtype = torch.bfloat16, shards: int = 1, ternary: bool = False, gain: float = 1.0,
) -> dict[str, Tensor]:
    """Write a random checkpoint; return its tensors. ``ternary`` stores -s, 0 and s alone."""
    torch.manual_seed(seed)
    tensors = {"model.embeddings.weight": torch.randn(vocab, d) * 0.3,
               "model.norm.weight": 1 + 0.3 * torch.randn(d),
               "model.lower_bounds": torch.randn(layers, d)}

    def linear(name: str, rows: int, columns: int) -> None:
        weight = torch.randn(rows, columns) * 0.02
        if ternary:
            weight = weight.sign() * (weight.abs() > 0.01) * 0.0173
        tensors[f"{name}.weight"] = weight
        # Every tenth gain is negative.
        sign = torch.where(torch.arange(columns) % 10 == 3, -1.0, 1.0)
        tensors[f"{name}.norm.weight"] = gain * (0.5 + torch.rand(columns)) * sign

    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name in ("attn_norm", "mlp_norm", "attn.g_norm"):
            tensors[f"{at}.{name}.weight"] = 1 + 0.3 * torch.randn(d)
        for part in "ifgo":
            linear(f"{at}.attn.{part}_proj", d, d)
        linear(f"{at}.mlp.gate_proj", 2 * dff, d)
        linear(f"{at}.mlp.down_proj", d, dff)
    linear("lm_head", vocab, d)
    tensors = {name: value.to(dtype) for name, value in tensors.items()}
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


def forward(tensors: dict[str, Tensor], tokens: Tensor, trap: str = "") -> Tensor:
    """Logits float64 ``[batch, length, vocab]`` of tokens ``[batch, length]``."""
    assert trap in ("", *TRAPS)
    eps = 1e-8 if trap == "eps" else 1e-6
    real = {name: value.float().double() for name, value in tensors.items()}
    if trap == "positive":
        real = {n: v.abs() if n.endswith("norm.weight") else v for n, v in real.items()}

    def rms(x: Tensor, weight: Tensor, e: float = 1e-6) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + e).rsqrt() * weight

    def weights(name: str) -> Tensor:
        stored = tensors[name]
        if trap == "two scales" and "gate_proj" in name:
            return torch.cat([quantised(part) for part in stored.chunk(2)])
        return quantised(stored)

    def quantised(stored: Tensor) -> Tensor:
        w = stored if trap == "bfloat16" else stored.float()
        values = w.abs().unique()
        if len(values) <= 2 and trap != "twice":
            return w.double()
        scale = 1.0 / w.abs().mean().clamp_(min=1e-5)
        return ((w * scale).round().clamp_(-1, 1) / scale).double()

    def linear(name: str, x: Tensor) -> Tensor:
        y = rms(x, real[f"{name}.norm.weight"], eps)
        scale = 127.0 / y.abs().amax(-1, keepdim=True).clamp_(min=1e-5)
        y = (y * scale).round().clamp_(-128, 127) / scale
        return y @ weights(f"{name}.weight").T

    layers = len(real["model.lower_bounds"])
    share = real["model.lower_bounds"].softmax(0)
    bounds = share.cumsum(0) - (0 if trap == "bound" else share[0])
    x = real["model.embeddings.weight"][tokens]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        u = x if trap == "one norm" else rms(x, real[f"{at}.attn_norm.weight"])
        i, f, g = (linear(f"{at}.attn.{part}_proj", u) for part in "ifg")
        f = f.sigmoid() if layer == 0 else bounds[layer] + (1 - bounds[layer]) * f.sigmoid()
        z = F.silu(i) * (1 - f)
        h, states = torch.zeros_like(z[:, 0]), []
        for t in range(z.shape[1]):
            h = f[:, t] * h + z[:, t]
            states.append(h)
        o = torch.stack(states, 1)
        weight = real[f"{at}.attn.g_norm.weight"]
        o = rms(o, weight) * F.silu(g) if trap == "gate" else rms(g, weight) * F.silu(o)
        x = x + linear(f"{at}.attn.o_proj", o)
        gate, up = linear(f"{at}.mlp.gate_proj", rms(x, real[f"{at}.mlp_norm.weight"])).chunk(2, -1)
        x = x + linear(f"{at}.mlp.down_proj", F.silu(gate) * up)
    return linear("lm_head", rms(x, real["model.norm.weight"]))
