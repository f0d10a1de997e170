"""Wave files, and views of them for GTKWave and Surfer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from vcd.gtkw import GTKWSave

from sterna.hw.tools.process import FST_HEADERS, MissingToolError, has_header
from sterna.model.files import check_writable, write_atomically
from sterna.sim.bench.runner import Simulator

__all__ = [
    "WaveSignal", "check_waves", "wave_groups", "with_views", "write_views"]

_FORMATS = (".fst", ".vcd")
_GTKWAVE_ZOOM = -16.0
"""GTKWave shows 2 to the power of minus this, in ps, per pixel."""


@dataclass(frozen=True, slots=True)
class WaveSignal:
    """A signal of the top module, named as in the wave file; ``width`` in bits."""

    name: str
    width: int


def check_waves(
    path: Path | str | None, simulator: Simulator = Simulator.VERILATOR,
) -> Path | None:
    """Return the path of a wave file and create its folder; None for no waves."""
    if path is None:
        return None
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"a wave file must end in {' or '.join(_FORMATS)}, got {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a wave file to write")
    # A missing g++ is reported where it is used.
    if path.suffix == ".fst" and simulator is Simulator.VERILATOR and shutil.which("g++"):
        for header, package in FST_HEADERS.items():
            if not has_header(header):
                raise MissingToolError(
                    f"{header} is not installed, and Verilator needs it to write FST: "
                    f"apt-get install {package}, or name the wave file .vcd")
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def wave_groups(
    manifest: Mapping[str, Any], sources: Sequence[Path],
) -> dict[str, list[WaveSignal]]:
    """Return the signals of a unit to show first: clock and reset, then stream by stream.

    For a stream these are ``valid``, ``ready``, the payload, and its fields that are signals in
    the Verilog; signals without a stream are under the empty name.
    """
    verilog = "".join(path.read_text(encoding="utf-8") for path in sources)
    widths = {port["name"]: port["width"] for port in manifest["ports"]}
    streams = manifest["payloads"]
    inside = {f"{stream}__{part}" for stream in streams for part in ("payload", "valid", "ready")}
    groups = {"": [WaveSignal(name, width) for name, width in widths.items()
                   if name not in inside]}
    for stream, fields in streams.items():
        groups[stream] = [WaveSignal(f"{stream}__{part}", widths[f"{stream}__{part}"])
                          for part in ("valid", "ready", "payload")]
        groups[stream] += [
            WaveSignal(f"{stream}__payload_{field['name']}", field["high"] - field["low"] + 1)
            for field in fields if f" {stream}__payload_{field['name']};" in verilog]
    return groups


@contextmanager
def with_views(
    waves: Path | None, manifest: Mapping[str, Any], sources: Sequence[Path],
) -> Iterator[None]:
    """Call :func:`write_views` after a simulation that left waves, even if it failed."""
    try:
        yield
    finally:
        if waves and waves.exists():
            write_views(waves, manifest["module"], wave_groups(manifest, sources))


def write_views(waves: Path, module: str, groups: Mapping[str, list[WaveSignal]]) -> list[Path]:
    """Write views with the signals to show: ``FILE.gtkw`` for GTKWave, ``FILE.sucl`` for Surfer.

    ``gtkwave x.vcd.gtkw`` opens the waves with them, and so does
    ``surfer -c x.vcd.sucl x.vcd``. The same groups give the same bytes.
    """
    text = StringIO()
    view = GTKWSave(text)
    view.dumpfile(waves.name, abspath=False)
    view.zoom_markers(_GTKWAVE_ZOOM, 0)
    view.treeopen(f"{module}.")
    commands = []
    for group, signals in groups.items():
        if group:
            view.begin_group(group)
            commands.append(f"divider_add {group}")
        for signal in signals:
            bits = f"[{signal.width - 1}:0]" if signal.width > 1 else ""
            view.trace(f"{module}.{signal.name}{bits}", datafmt="hex")
            commands.append(f"variable_add {module}.{signal.name}")
        if group:
            view.end_group(group)
    written = []
    for suffix, content in (
            (".gtkw", text.getvalue()), (".sucl", "\n".join([*commands, "zoom_fit", ""]))):
        written.append(waves.with_name(waves.name + suffix))
        write_atomically(written[-1], content)
    return written
