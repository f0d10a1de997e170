"""Project files for third-party tools: FuseSoC, Vivado, IP-XACT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from xml.etree import ElementTree as Xml

from sterna.hw.emit.documents import Port

__all__ = ["project_files"]

_VENDOR = "sterna"
_PERIOD = 10.0      # ns, of the constraints
_IPXACT = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"


def project_files(
    module: str, summary: str, module_ports: Sequence[Port], sources: Sequence[str],
    models: Sequence[str], memories: Sequence[str], registers: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """Return the files by name.

    ``sources`` are Verilog for synthesis, ``models`` cell models for simulators only. Each of
    ``registers`` has a name, an offset in bytes, bits, access and meaning.
    """
    return {
        f"{module}.core": _fusesoc(module, summary, sources, models, memories),
        f"{module}.sdc": f"create_clock -name clk -period {_PERIOD} [get_ports clk]\n",
        f"{module}.ipxact.xml": _ipxact(
            module, summary, module_ports, [*sources, *memories], registers),
        "vivado.tcl": _VIVADO.format(
            module=module, sources=" ".join(sources),
            memories=f"read_mem [glob {module}*.mem]\n" if memories else "")}


def _fusesoc(
    module: str, summary: str, sources: Sequence[str], models: Sequence[str],
    memories: Sequence[str],
) -> str:
    def files(name: str, members: Sequence[str], kind: str) -> list[str]:
        return [f"  {name}:", "    files:", *(f"      - {each}" for each in members),
                f"    file_type: {kind}"] if members else []

    # Simulators and synthesis look for memory files in their working folder.
    copied = [f"{name}: {{copyto: {name}}}" for name in memories]
    names = ["rtl", *(["memories"] if memories else [])]
    simulated = [*(["models"] if models else []), *names]
    return "\n".join([
        "CAPI=2:", f"name: {_VENDOR}:cores:{module}:{version('sterna')}",
        f"description: {summary.split(': ')[0].split('. ')[0]}", "", "filesets:",
        *files("rtl", sources, "verilogSource"),
        *files("memories", copied, "user"),
        *files("models", models, "verilogSource"),
        *files("waivers", ["sterna.vlt"], "vlt"),
        *files("constraints", [f"{module}.sdc"], "SDC"), "",
        "targets:",
        "  default:", f"    filesets: [{', '.join(names)}]", f"    toplevel: {module}",
        "  lint:", f"    filesets: [waivers, {', '.join(simulated)}]", f"    toplevel: {module}",
        "    default_tool: verilator", "    tools:", "      verilator:", "        mode: lint-only",
        "        verilator_options: [-Wall]", ""])


_VIVADO = """\
# vivado -mode batch -source vivado.tcl -tclargs PART
# Written by Sterna, and not run: synthesis, placement and routing out of context, on any part.
set part [lindex $argv 0]
read_verilog {{{sources}}}
{memories}read_xdc {module}.sdc
synth_design -top {module} -part $part -mode out_of_context
opt_design
place_design
route_design
report_utilization -file utilization.txt
report_timing_summary -file timing.txt
write_checkpoint -force {module}.dcp
"""


def _ipxact(
    module: str, summary: str, module_ports: Sequence[Port], names: Sequence[str],
    registers: Sequence[Mapping[str, Any]],
) -> str:
    Xml.register_namespace("ipxact", _IPXACT)
    root = Xml.Element(_name("component"))
    for name, text in (("vendor", _VENDOR), ("library", "cores"), ("name", module),
                       ("version", version("sterna"))):
        _add(root, name, text)
    if registers:
        _add_registers(root, registers)
    model = _add(root, "model")
    view = _add(_add(model, "views"), "view")
    _add(view, "name", "rtl")
    _add(view, "componentInstantiationRef", "verilog")
    instantiation = _add(_add(model, "instantiations"), "componentInstantiation")
    _add(instantiation, "name", "verilog")
    _add(instantiation, "language", "verilog")
    _add(instantiation, "moduleName", module)
    _add(_add(instantiation, "fileSetRef"), "localName", "rtl")
    ports = _add(model, "ports")
    for each in module_ports:
        port = _add(ports, "port")
        _add(port, "name", each.name)
        wire = _add(port, "wire")
        _add(wire, "direction", each.direction.removesuffix("put"))
        if each.width > 1:
            vector = _add(_add(wire, "vectors"), "vector")
            _add(vector, "left", str(each.width - 1))
            _add(vector, "right", "0")
    files = _add(_add(root, "fileSets"), "fileSet")
    _add(files, "name", "rtl")
    for name in names:
        file = _add(files, "file")
        _add(file, "name", name)
        _add(file, "fileType", "verilogSource" if name.endswith(".v") else "user")
    _add(root, "description", summary)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_ACCESS = {"r": "read-only", "w": "write-only", "rw": "read-write"}


def _add_registers(root: Xml.Element, registers: Sequence[Mapping[str, Any]]) -> None:
    memory = _add(_add(root, "memoryMaps"), "memoryMap")
    _add(memory, "name", "registers")
    block = _add(memory, "addressBlock")
    for name, text in (("name", "registers"), ("baseAddress", "0"), ("range", "4096"),
                       ("width", "32")):
        _add(block, name, text)
    for each in registers:
        register = _add(block, "register")
        _add(register, "name", each["name"])
        _add(register, "description", each["meaning"])
        _add(register, "addressOffset", str(each["offset"]))
        _add(register, "size", "32")
        field = _add(register, "field")
        for name, text in (("name", "value"), ("bitOffset", "0"), ("bitWidth", str(each["bits"])),
                           ("access", _ACCESS[each["access"]])):
            _add(field, name, text)


def _name(tag: str) -> str:
    return f"{{{_IPXACT}}}{tag}"


def _add(parent: Xml.Element, tag: str, text: str | None = None) -> Xml.Element:
    child = Xml.SubElement(parent, _name(tag))
    child.text = text
    return child
