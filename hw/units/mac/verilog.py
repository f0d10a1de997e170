"""What the folder of the ternary array holds: the array, and the packed weights of a model."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.base.style import ArrayStyle
from sterna.hw.units.mac.gateware import TernaryMacArray
from sterna.hw.units.mac.packing import pack_projection
from sterna.model.quantized import QuantizedModel

__all__ = ["MAC_MODULE", "WEIGHTS_FILE", "mac_design", "packed_weights"]

MAC_MODULE = "ternary_mac_array"
WEIGHTS_FILE = "weights.hex"


def mac_design(model: QuantizedModel, params: MacParams) -> UnitDesign:
    """Design a ternary array that takes every projection of a model.

    ``weights.hex`` holds one weight word per line (the low bits of the payload of
    ``beats``), all projections in the order of use; ``params.json`` says where each begins.
    """
    words, index = packed_weights(model, params)
    digits = -(-params.word_bits // 4)
    return UnitDesign(
        TernaryMacArray(params), MAC_MODULE,
        derived=("count_bits", "sum_bits", "sum_limit", "row_steps", "latency", "fill_steps",
                 "max_beats", "word_bits"),
        summary=(f"Dot products of ternary rows with {params.act_bits}-bit activations: "
                 f"{params.rows} rows side by side, {params.cols} columns per beat, no "
                 f"multiplier."),
        sections=_sections(params),
        extra={"weights": {"file": WEIGHTS_FILE, "lines": len(words), "projections": index}},
        extra_files={WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in words)})


def packed_weights(
    model: QuantizedModel, params: MacParams,
) -> tuple[list[int], dict[str, dict[str, int]]]:
    """Return the weight words of every projection in the order of use, and where each begins."""
    index: dict[str, dict[str, int]] = {}
    words: list[int] = []
    for name, projection in model.projections.items():
        packed = pack_projection(projection.weight, params)
        matrix_rows, columns = projection.weight.shape
        index[name] = {"first_line": len(words), "lines": len(packed),
                       "rows": matrix_rows, "columns": columns}
        words += packed
    return words, index


def _sections(params: MacParams) -> str:
    codes = {
        ArrayStyle.XC7_PAIR: _PAIR_CODES, ArrayStyle.ECP5_TABLE: _RELATIVE_CODES,
        ArrayStyle.XC7_TABLE: _TRIPLE_CODES}.get(params.style, _TRIT_CODES)
    starts = _START_VALUES.get(params.start_name or "", "")
    fresh = _FRESH.format(params=params) if params.style.has_tables else ""
    pauses = (" but for those fills" if params.style.has_tables else "")
    return _MAC_SECTIONS.format(
        params=params, module=MAC_MODULE, file=WEIGHTS_FILE, codes=codes, starts=starts,
        fresh=fresh, pauses=pauses,
        fields=", ".join(f"`{name}`" for name in params.beat_layout.members if name != "acts"))


_TRIT_CODES = "A weight is 0, 1 or 3\n(for -1); 2 is not a weight."
_PAIR_CODES = """Two columns share
a code of four bits: `sterna.hw.units.mac.base.pair_codes` has the table."""
_TRIPLE_CODES = """Three columns share
a code of five bits: `sterna.hw.parts.trit_codes` has the table."""
_RELATIVE_CODES = """Three columns share
a code of five bits, the highest of which is a relative sign: `sterna.hw.parts.trit_codes` has the
table and the rule."""
_START_VALUES = {
    "minus_counts": """ `minus_counts[i]` is
the number of -1 weights in the whole row i, read with the first beat of a group only.""",
    "starts": """ `starts[i]` is what
row i starts from, read with the first beat of a group only:
`sterna.hw.units.mac.base.codes.row_starts`.""",
}
_FRESH = """
`fresh` is high if the activations are not those of the beat before, and with the first beat of all.
Such a beat waits {params.fill_steps} cycles: the sums of every three activations are written to
tables.
"""

_MAC_SECTIONS = """\
## What to send

A matrix is taken in groups of {params.rows} rows, a group in beats of {params.cols} columns. Fill
up the last group and the last beat with zero weights: they change no sum. {codes} `last` is high
with the last beat of a group.{starts} A group has at most {params.max_beats} beats, and a row at
most {params.max_columns} weights that are not zero; sums then cannot overflow.
{fresh}
One beat per cycle{pauses}, without a pause between groups. The sums of a group are valid
{params.latency} cycles after the cycle that took its last beat, plus the cycles in which sums
waited to be taken, for the whole pipeline waits with them.

## Weight memory

`{file}` is for `$readmemh`: one beat per line, the low {params.word_bits} bits of
`beats__payload` ({fields}). Only `acts` is to be added:

    assign beats__payload = {{acts, word}};

`params.json` gives, under `weights`, the first line and the number of lines of every projection.
"""
