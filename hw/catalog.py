"""The catalogue of units, and emission by name."""

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
"""Every unit that can be emitted by itself, by name; add new ones here."""


_REGISTERED = """\
## Registers at the ports

Every stream passes registers: no path leads from a port to another one, or into the unit. A word
comes in a cycle later, and goes out a cycle later, than this page and `params.json` say; as many
words pass in a cycle.
"""


def unit_named(name: str | None, model: QuantizedModel | None = None) -> UnitSpec:
    """Return a unit by name, or the unit of the whole ``model`` for None; ValueError if there is
    none.

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
        Folder to write; :func:`sterna.model.folder.write_folder` says when it is refused.
    axis
        Also write a wrapper with AXI4-Stream ports: ``<module>_axis.v``.
    bus
        Put core or network behind registers on this bus, ``axi4-lite`` or ``wishbone``; see
        :class:`~sterna.hw.core.product.registers.RegisterUnit`.
    registered
        Put registers between the unit and its ports; see
        :class:`~sterna.hw.parts.skid.Registered`.
    name
        Name of the module, None for the unit's default. It prefixes the names of submodules, so
        that one design can contain units with different names.
    sizes
        Sizes of the unit, as listed by :attr:`sterna.hw.units.spec.UnitSpec.sizes`.

    Raises
    ------
    ValueError
        If the unit or a size is unknown, a size does not fit the model, the folder is refused, or
        ``bus`` is given with a part of a core, ``axis`` or ``registered``.
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
    """The Amaranth component that :func:`emit_verilog` writes: sizes and latencies are in its
    ``params``, the members in its class. ValueError if unit or size do not fit.
    """
    spec = unit_named(unit, model)
    return spec.design(model, spec.params_for(model, sizes)).component
