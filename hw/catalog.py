"""The units that can be emitted, and emitting one by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amaranth.lib import wiring

from sterna.hw.core.product.core_product import CORE
from sterna.hw.core.product.registers import Bus
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.emit.names import check_name
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.parts.skid import Registered
from sterna.hw.units.glu_product import GLU
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.mlgru_product import MLGRU
from sterna.hw.units.spec import UnitSpec
from sterna.model.checks import one_of
from sterna.model.folder import check_replaceable
from sterna.model.quantized import QuantizedModel

__all__ = ["UNITS", "emit_verilog", "model_component", "unit_named"]

UNITS: Mapping[str, UnitSpec] = MappingProxyType({spec.name: spec for spec in (
    MAC, MLGRU, GLU, CORE, NETWORK)})
"""Every unit that can be emitted by itself, by name; a new one needs a place in this list."""


_REGISTERED = """\
## Registers at the ports

Every stream passes registers: no path leads from a port to another one, or into the unit. A word
comes in a cycle later, and goes out a cycle later, than this page and `params.json` say; as many
words pass in a cycle.
"""


def unit_named(name: str | None, model: QuantizedModel | None = None) -> UnitSpec:
    """Return a unit by its name, or for None the one that is the whole of ``model``; ValueError
    if there is none.

    >>> unit_named("glu").sizes
    {'lanes': 8, 'trace': False}
    """
    if name is None:
        return NETWORK if model is not None and model.is_network else CORE
    if name not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {name!r}")
    return UNITS[name]


def emit_verilog(
    model: QuantizedModel, unit: str | None, out_dir: str | Path, *, axis: bool = False,
    bus: Bus | str | None = None, registered: bool = False, name: str | None = None, **sizes: Any,
) -> EmittedUnit:
    """Emit one unit for a model.

    Parameters
    ----------
    model
        The quantised model.
    unit
        Name of the unit: ``"mac"``, for example; None for that of the whole model.
    out_dir
        Folder to write; see :func:`sterna.model.folder.write_folder` for when it is refused.
    axis
        Write a wrapper with AXI4-Stream ports, too: ``<module>_axis.v``.
    bus
        Put core or network behind registers on this bus, ``axi4-lite`` or ``wishbone``; see
        :class:`~sterna.hw.core.product.registers.RegisterUnit`.
    registered
        Put registers between the unit and its ports; see
        :class:`~sterna.hw.parts.skid.Registered`.
    name
        Name of the module, None for the unit's own. Modules within it begin with it, so that units
        of two names stand in one design.
    sizes
        Sizes of the unit: those that :attr:`sterna.hw.units.spec.UnitSpec.sizes` lists.

    Raises
    ------
    ValueError
        If there is no such unit, it has no such size, a size does not fit the model, the folder
        is refused, or ``bus`` goes with a part of a core, ``axis`` or ``registered``.
    OSError
        If the folder cannot be written.
    """
    spec = unit_named(unit, model)
    if name is not None:
        check_name(name)
    check_replaceable(Path(out_dir))
    params = spec.params_for(model, sizes)
    if bus is None:
        design = spec.tested_design(model, params)
    elif spec.registers is None or axis or registered:
        raise ValueError("--bus is for --unit core or network, without --axis or --registered")
    elif params.trace:
        raise ValueError("--trace does not go with --bus: its port has no register")
    elif params.port_bits and not 32 <= params.port_bits <= 512:
        raise ValueError(f"an AXI4 bus has 32 to 512 bits: --port-bits is {params.port_bits}")
    else:
        design = spec.registers(
            model, params, one_of("bus", bus, Bus), name or f"{spec.module}_bus")
    if name is not None:
        design = replace(design, module=name)
    if registered:
        design = replace(design, component=Registered(design.component),
                         sections=f"{_REGISTERED}\n{design.sections}")
    return emit_component(model, design, out_dir, axis=axis)


def model_component(model: QuantizedModel, unit: str | None, **sizes: Any) -> wiring.Component:
    """The Amaranth component that :func:`emit_verilog` writes: its ``params`` has sizes and
    latencies, its class lists the members. ValueError if unit or size do not fit.
    """
    spec = unit_named(unit, model)
    return spec.design(model, spec.params_for(model, sizes)).component
