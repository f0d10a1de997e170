"""What a published checkpoint computes, from the published code alone.

matmulfreellm's ``hgrn_bit`` in float64, layer by layer as its modules are; nothing of Sterna is
used. Gradients pass straight through both quantisers. ``trap`` walks into one of the mistakes that
are easily made: see :data:`TRAPS`.
"""

import torch
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


def forward(tensors: dict[str, Tensor], tokens: Tensor, trap: str = "") -> Tensor:
    """Logits float64 ``[batch, length, vocab]`` of tokens ``[batch, length]``."""
    assert trap in ("", *TRAPS)
    eps = 1e-8 if trap == "eps" else 1e-6
    real = {name: value.double() for name, value in tensors.items()}
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
        w = stored.detach() if trap == "bfloat16" else stored.detach().float()
        values = w.abs().unique()
        if len(values) <= 2 and trap != "twice":
            return stored.double()
        scale = 1.0 / w.abs().mean().clamp_(min=1e-5)
        ternary = ((w * scale).round().clamp_(-1, 1) / scale).double()
        return stored.double() + (ternary - stored.double()).detach()

    def linear(name: str, x: Tensor) -> Tensor:
        y = rms(x, real[f"{name}.norm.weight"], eps)
        scale = 127.0 / y.detach().abs().amax(-1, keepdim=True).clamp_(min=1e-5)
        y = y + ((y * scale).round().clamp_(-128, 127) / scale - y).detach()
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
