"""Loss of a published model in integers: bits per byte beside float64 and float16, by profile.

    python benchmarks/published_loss.py hub/a hub/b --bytes 8192

Each FOLDER has the published layout and byte tokens. It is measured unchanged, with three gains of
each projection 30 times as large, and with two channels of the residual stream at 3,000 and -1,000.
Formats are chosen on training text, losses are measured on held-out text; ± is the standard error
of the difference, over predictions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from sterna.cli.terminal.tables import Table
from sterna.model.corpus import builtin_corpus
from sterna.model.hub.convert import Published, convert
from sterna.model.hub.folder import HubFolder
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.evaluate import surprisal_bits
from sterna.model.quantized.hgrn_bit import WIDTHS, hgrn_bit
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.real import run_real
from sterna.model.tokenizer import contiguous_sequences, encode
from sterna.model.tokens.tokenizer import BYTES
from sterna.model.torch.stack.published import load_published

_CALIBRATION = 16384
_SEQUENCES = 16
Tensors = dict[str, np.ndarray]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--bytes", type=int, default=8192)
    arguments = parser.parse_args()
    tokens = contiguous_sequences(
        encode(bundled_heldout()[:arguments.bytes]), _SEQUENCES)
    rows = []
    for folder in arguments.folders:
        for what, change in CASES.items():
            with tempfile.TemporaryDirectory() as name:
                changed = Path(name)
                (changed / "config.json").write_bytes((folder / "config.json").read_bytes())
                tensors = load_file(folder / "model.safetensors")
                change(tensors)
                save_file(tensors, changed / "model.safetensors")
                rows.append((folder.name, what, *_losses(HubFolder(changed), tokens)))
    Table(f"bits per byte, and what it is more; {tokens.size:,} bytes",
          ("model", "case", "float64", "float16", *WIDTHS), rows).print()


def _as_it_is(tensors: Tensors) -> None:
    pass


def _large_gains(tensors: Tensors) -> None:
    for name, value in tensors.items():
        if name.endswith("_proj.norm.weight"):
            value[[1, 5, 11]] *= 30


def _massive(tensors: Tensors) -> None:
    for channel, size in ((3, 3000.0), (7, -1000.0)):
        tensors["model.embeddings.weight"][:, channel] = size
        for name, value in tensors.items():
            if name.endswith(("attn_norm.weight", "mlp_norm.weight", "model.norm.weight",
                              "o_proj.weight", "down_proj.weight")):
                value[channel] = 0.0


CASES: dict[str, Callable[[Tensors], None]] = {
    "as trained": _as_it_is, "gains x 30": _large_gains, "massive channels": _massive}


def _losses(folder: HubFolder, tokens: np.ndarray) -> list[str]:
    """The loss of float64, then the excess of the others."""
    published = Published(folder)
    plain = hgrn_bit(published.shape, WIDTHS["P24"], published.reals, defaultdict(lambda: 1.0))
    before, after = tokens[:, :-1], tokens[:, 1:]

    def bits(logits: np.ndarray, frac: int = 0) -> np.ndarray:
        return surprisal_bits(logits.reshape(-1, logits.shape[-1]), after.reshape(-1), frac)

    exact = bits(run_real(plain.records, before, published.embedding(), published.matrix,
                          published.reals, plain.constants))
    with torch.no_grad():
        half, _ = load_published(folder).half()(torch.from_numpy(before.copy()))
    found: list[np.ndarray | None] = [bits(half.double().numpy())]
    text = builtin_corpus().train[:_CALIBRATION]
    for widths in WIDTHS.values():
        try:
            model = convert(folder, text, tokenizer=BYTES, widths=widths)
        except ValueError as error:
            print(f"{widths.name}: {error}")
            found.append(None)
            continue
        found.append(bits(IntegerModel(model).run(before)[0], model.logit.frac))
    return [f"{exact.mean():.4f}", *("refused" if each is None else _difference(each - exact)
                                     for each in found)]


def _difference(bits: np.ndarray) -> str:
    return f"{bits.mean():+.4f} ± {bits.std() / np.sqrt(bits.size):.4f}"


if __name__ == "__main__":
    main()
