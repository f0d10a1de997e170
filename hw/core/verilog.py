"""What the folder of the core holds: the whole model, and the images of its memories."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sterna.hw.core.core import MatMulFreeCore
from sterna.hw.core.plan.image import CoreImage, build_image
from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.program import program
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.trace import Tap, trace_layout
from sterna.hw.emit.design import UnitDesign
from sterna.hw.emit.documents import field_bits
from sterna.model.quantized import QuantizedModel

__all__ = ["CORE_MODULE", "CORE_WEIGHTS_FILE", "core_design"]

CORE_MODULE = "matmul_free_core"
CORE_WEIGHTS_FILE = "weights.hex"


def core_design(model: QuantizedModel, params: CoreParams) -> UnitDesign:
    """Design a core that runs a model.

    With ``external_weights`` the folder has ``weights.hex``: the weight words that the port
    is asked for, one per line. Otherwise they are in the Verilog.

    Raises
    ------
    ValueError
        If the parameters are those of another model shape or profile.
    """
    image = build_image(model, params)
    return UnitDesign(
        MatMulFreeCore(image), CORE_MODULE,
        derived=("stages", "mac_cycles", "tiles", "weight_bits", "token_bits", "vocab_words"),
        summary=(f"A MatMul-free language model of {model.config.layers} layers, d "
                 f"{model.config.d}, dff {model.config.dff}, {model.config.vocab} tokens, in "
                 f"numeric profile {model.profile.name}: prompt tokens in, generated tokens "
                 f"out. {params.rows} rows of {params.cols} columns, "
                 f"{params.sequences} sequence{'s' if params.sequences > 1 else ''}."),
        sections=_sections(image),
        extra=_extra(image),
        extra_files=_images(image) if params.external_weights else {})


def _extra(image: CoreImage) -> dict[str, Any]:
    params = image.params
    cycles = CycleModel(params)
    extra: dict[str, Any] = {
        "memory_bits": {
            name: bits for name, bits in image.memory_bits.items()
            if name != "weights" or not params.external_weights},
        "cycles_per_token": {
            "greedy": cycles.cycles_per_token(), "sampled": cycles.cycles_per_token(sampled=True)},
        "program": [
            {**asdict(stage), "kind": stage.kind.name, "beats": stage.beats}
            for stage in program(params)],
    }
    if params.trace:
        layout = trace_layout(image)
        extra["trace"] = {
            tap.name.lower(): {
                "tap": int(tap), "low": layout[tap.name.lower()].offset,
                "width": layout[tap.name.lower()].width,
                "fields": [asdict(bits) for bits in field_bits(
                    _lane(layout[tap.name.lower()].shape))]}
            for tap in Tap}
    return extra


def _lane(shape: Any) -> Any:
    """The layout of a lane; of one of them where there is one for each sequence."""
    return getattr(shape, "elem_shape", shape)


def _images(image: CoreImage) -> dict[str, str]:
    digits = -(-image.params.weight_bits // 4)
    return {CORE_WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in image.weights)}


def _sections(image: CoreImage) -> str:
    params = image.params
    sections = [_USE.format(
        sequences="" if params.sequences == 1 else
        " Each sequence has ports of its own; they run independently of each other.")]
    if params.logits:
        sections.append(_LOGITS.format(
            words=params.vocab_words, rows=params.rows, vocab=params.config.vocab))
    if params.external_weights:
        sections.append(_WEIGHTS.format(
            file=CORE_WEIGHTS_FILE, bits=params.weight_bits, cols=params.cols,
            words=params.mac_cycles))
    if params.trace:
        sections.append(_TRACE.format(width=trace_layout(image).size))
    return "\n".join(sections)


_USE = """\
## How to use it

Give `prompts` the tokens of a prompt: `start` with the first token of a sequence (the model then
forgets everything before), `predict` with the last one. While `go` is high a token is taken as
soon as the one before is done. After a token with `predict` the core computes logits; if
`control__*__limit` is not 0 it chooses a token, gives it on `tokens`, runs it, and so on until it
has given `limit` tokens or `control__*__stop_token` (if `control__*__stop` is high); `last` comes
with the last one. The last token given is not run: to go on with the sequence, send it first,
without `start`.{sequences}

`control__*__beta` is log2(e) / T * 1024, rounded, for temperature T; 0 chooses the largest logit.
`control__*__seed` (0 counts as 1) is loaded with a token that has `start`. Change `control` of a
sequence before the first token of a prompt only, while its `prompts__*__ready` is high.

`busy` is high while a token is in progress; `cycles` counts those cycles. Lowering `go` stops the
core after the token in progress only if that is a prompt's: generation runs to its end.
"""

_LOGITS = """\
## Logits

After each token that has a prediction, {words} words of {rows} logits, lowest token first; those
from token {vocab} on mean nothing. The core waits until they are taken: tie `logits__*__ready` to 1
if you do not look at them.
"""

_WEIGHTS = """\
## Weights

Before each stage the core asks on `weight_requests` for `count` words from word `first` on, and
takes them from `weights` in that order, one per cycle at most. It may ask for the next run while
the words of this one are still coming. `{file}` (for `$readmemh`) holds all {words} words of {bits}
bits: trit of row r and column c at bit 2*({cols}*r + c), 0, 1 or 3 (for -1). Reset the source with
the core: what it still sends for an older request would be taken for the new one.
"""

_TRACE = """\
## Trace

`taps` ({width} bits) shows every intermediate vector in the cycle in which it moves; it has no
`ready`. `params.json` gives, under `trace`, tap number, place and fields of every lane.
"""
