"""The unit ``mac``: its sizes, its folder with the packed weights of a model, its stimulus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import FieldBits, UnitPorts
from sterna.hw.testbench.job import Phase
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, count_words
from sterna.hw.testbench.stimulus import Activations, Stimulus
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import beat_payloads, pack_projection
from sterna.hw.units.spec import UnitSpec
from sterna.model.checks import check_whole
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import ternary_matmul, transposed

__all__ = ["MAC", "WEIGHTS_FILE"]

WEIGHTS_FILE = "weights.hex"


def mac_design(model: QuantizedModel, params: MacParams) -> UnitDesign:
    """Design a ternary array for every projection of a model.

    ``weights.hex`` holds one weight word per line (the low bits of the payload of
    ``beats``), all projections in the order of use; ``params.json`` has the start of each.
    """
    index: dict[str, dict[str, int]] = {}
    words: list[int] = []
    for name, projection in model.projections.items():
        packed = pack_projection(projection.weight, params)
        matrix_rows, columns = projection.weight.shape
        index[name] = {"first_line": len(words), "lines": len(packed),
                       "rows": matrix_rows, "columns": columns}
        words += packed
    digits = -(-params.word_bits // 4)
    return UnitDesign(
        TernaryMacArray(params), "ternary_mac_array",
        derived=("count_bits", "sum_bits", "sum_limit", "row_steps", "latency",
                 "max_beats", "word_bits"),
        summary=(f"Dot products of ternary rows with {params.act_bits}-bit activations: "
                 f"{params.rows} rows side by side, {params.cols} columns per beat, no "
                 f"multiplier."),
        sections=_sections(params),
        extra={"weights": {"file": WEIGHTS_FILE, "lines": len(words), "projections": index}},
        extra_files={WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in words)})


def _sections(params: MacParams) -> str:
    codes = _PAIR_CODES if params.style is ArrayStyle.XC7_PAIR else _TRIT_CODES
    return _MAC_SECTIONS.format(
        params=params, file=WEIGHTS_FILE, codes=codes,
        fields=", ".join(f"`{name}`" for name in params.beat_layout.members if name != "acts"))


_TRIT_CODES = "A weight is 0, 1 or 3\n(for -1); 2 is not a weight."
_PAIR_CODES = """Two columns share
a code of four bits: `sterna.hw.units.mac.weight_codes` has the table."""

_MAC_SECTIONS = """\
## What to send

A matrix is taken in groups of {params.rows} rows, a group in beats of {params.cols} columns. Fill
up the last group and the last beat with zero weights: they change no sum. {codes} `last` is high
with the last beat of a group. `minus_counts[i]` is the number of -1 weights in the whole row i,
read with the first beat of a group only. A group has at most {params.max_beats} beats, and a row at
most {params.max_columns} weights that are not zero; sums then cannot overflow.

One beat per cycle, without a pause between groups. The sums of a group are valid
{params.latency} cycles after the cycle that took its last beat, plus the cycles in which sums
waited to be taken, for the whole pipeline waits with them.

## Weight memory

`{file}` is for `$readmemh`: one beat per line, the low {params.word_bits} bits of
`beats__payload` ({fields}). Only `acts` is to be added:

    assign beats__payload = {{acts, word}};

`params.json` gives, under `weights`, the first line and the number of lines of every projection.
"""


def mac_tensors(model: QuantizedModel) -> list[str]:
    return [*(f"{stage.norm}.q" for stage in model.stages),
            *(f"{name}.acc" for stage in model.stages for name in stage.matrices)]


def mac_phases(model: QuantizedModel, emitted: EmittedUnit, acts: Activations) -> list[ScoredPhase]:
    """Make the phases; the weight words are read from the emitted weight image."""
    params: MacParams = emitted.params
    words = _weight_words(emitted, params)
    matrices = [(name, stage) for stage in model.stages for name in stage.matrices]
    groups = [params.beats_per_group(stage.columns)
              for _, stage in matrices for _ in range(params.groups(stage.rows))]
    bits = UnitPorts.of(emitted.manifest).fields["sums"][""]

    def every_projection(tokens: int) -> tuple[list[int], list[ExpectedTensor]]:
        beats: list[int] = []
        expected: list[ExpectedTensor] = []
        for token in range(tokens):
            for name, stage in matrices:
                q = acts.reference[f"{stage.norm}.q"][token]
                beats += beat_payloads(words[name], q, params)
                tensor = f"{name}.acc"
                expected.append(ExpectedTensor(
                    token, tensor, "sums", count_words(expected[-1:], "sums"),
                    params.groups(stage.rows), bits, acts.reference[tensor][token],
                    acts.onnx[tensor][token]))
        return beats, expected

    first_beats, first_expected = every_projection(1)
    extreme_beats, extreme_expected = _extremes(params, bits)
    rest = first_beats[:_inside_a_row(model, params)]

    def phase(
        name: str, beats: list[int], expected: list[ExpectedTensor], *, reset: bool = False,
        random_pauses: bool = True, steps: Sequence[Mapping[str, int]] = (),
    ) -> ScoredPhase:
        return ScoredPhase(
            Phase(name, {"beats": beats}, {"sums": count_words(expected, "sums")}, reset=reset,
                  random_pauses=random_pauses), expected, steps)

    return [
        phase("real activations", *every_projection(acts.tokens), steps=_steps(groups)),
        phase("no pauses", first_beats, first_expected, random_pauses=False),
        phase("cut in mid-row", rest, []),
        phase("after a reset in mid-row", first_beats, first_expected, reset=True),
        phase("extremes", extreme_beats, extreme_expected,
              steps=_steps([params.max_beats] * len(extreme_expected))),
    ]


def _weight_words(emitted: EmittedUnit, params: MacParams) -> dict[str, list[int]]:
    """Weight words of every projection, from the emitted memory image."""
    lines = emitted.text(WEIGHTS_FILE).split()
    words = {}
    for name, entry in emitted.manifest["weights"]["projections"].items():
        first = entry["first_line"]
        words[name] = [int(line, 16) for line in lines[first:first + entry["lines"]]]
        if any(word >> params.word_bits for word in words[name]):
            raise ValueError(f"{emitted.folder / WEIGHTS_FILE}: a word of {name} is too wide")
    return words


def _steps(groups: Sequence[int]) -> list[dict[str, int]]:
    """Steps after each group of rows, given its beats: one word of sums per group."""
    return [{"beats": int(beats), "sums": sums}
            for sums, beats in enumerate(np.cumsum(groups), 1)]


def _inside_a_row(model: QuantizedModel, params: MacParams) -> int:
    """Beats up to the middle of a row of the first matrix with the most beats per row."""
    beats = 0
    for each in model.projections.values():
        rows, columns = each.weight.shape
        if params.beats_per_group(columns) == params.max_beats:
            return beats + max(1, params.max_beats // 2)
        beats += params.groups(rows) * params.beats_per_group(columns)
    return 1


def _extremes(params: MacParams, bits: FieldBits) -> tuple[list[int], list[ExpectedTensor]]:
    """Every corner case of the accumulator, and single lanes that must not leak."""
    n = params.max_columns
    low, high = -(1 << (params.act_bits - 1)), (1 << (params.act_bits - 1)) - 1
    one_hot = np.zeros((params.rows, n), dtype=np.int8)
    one_hot[np.arange(params.rows), np.arange(params.rows) * (n - 1) // max(params.rows - 1, 1)
            ] = 1
    weights = {
        "ones": np.ones((params.rows, n), dtype=np.int8),
        "minus ones": -np.ones((params.rows, n), dtype=np.int8),
        "zeros": np.zeros((params.rows, n), dtype=np.int8),
        "one hot": one_hot,
        "all but one": one_hot - 1,
        "alternating": np.where(np.indices((params.rows, n)).sum(axis=0) % 2, 1, -1
                                ).astype(np.int8),
    }
    vectors = {
        "lowest": np.full(n, low), "highest": np.full(n, high), "zero": np.zeros(n),
        "ramp": np.arange(n) % (high - low + 1) + low,
    }
    beats: list[int] = []
    expected: list[ExpectedTensor] = []
    for weight_name, weight in weights.items():
        words = pack_projection(weight, params)
        for vector_name, vector in vectors.items():
            q = vector.astype(np.int64)
            beats += beat_payloads(words, q, params)
            reference = ternary_matmul(q, transposed(weight, q))
            expected.append(ExpectedTensor(
                0, f"extreme({weight_name} x {vector_name})", "sums", len(expected), 1, bits,
                reference))
    return beats, expected


_ROWS, _COLS = 8, 128
"""Default sizes of an array; a smaller model gets a smaller array."""


def mac_params(
    model: QuantizedModel, *, rows: int | None = None, cols: int | None = None,
    style: ArrayStyle = ArrayStyle.GENERIC,
) -> MacParams:
    most_rows, most_columns = map(max, zip(*(
        each.weight.shape for each in model.projections.values()), strict=True))
    return MacParams(
        _size("rows", rows, _ROWS, most_rows, "the rows of the largest projection"),
        _size("cols", cols, _COLS, most_columns, "the columns of the widest projection"),
        most_columns, style=style)


def _size(name: str, value: int | None, usual: int, most: int, which: str) -> int:
    if value is None:
        return min(usual, most)
    check_whole(name, value, 1)
    if value > most:
        raise ValueError(f"{name} must be from 1 to {most} ({which} of this model), got {value}")
    return value


MAC = UnitSpec(
    "mac", "the ternary multiply-accumulate array",
    "ternary_mac_array", mac_params, mac_design, Stimulus(mac_tensors, mac_phases), tokens=4)
