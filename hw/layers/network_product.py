"""The unit ``network``: a model over frames as one unit, with the sizes of its parts."""

from __future__ import annotations

from sterna.hw.emit.folder import UnitDesign
from sterna.hw.layers.emit import layer_design, layer_params
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.spec import UnitSpec
from sterna.model.layers.layer import NetworkLayer
from sterna.model.quantized import QuantizedModel

__all__ = ["NETWORK"]


def network_params(
    model: QuantizedModel, *, rows: int | None = None, cols: int | None = None,
    quant_lanes: int | None = None, sequences: int = 1, style: ArrayStyle = ArrayStyle.GENERIC,
    compact: bool = False, trace: bool = False,
) -> LayerParams:
    """Parameters for a model; :func:`~sterna.hw.layers.emit.emit_layer` says what each size is."""
    return layer_params(
        NetworkLayer(model), sequences=sequences, rows=rows, cols=cols, lanes=quant_lanes,
        style=style, compact=compact, trace=trace)


def network_design(model: QuantizedModel, params: LayerParams) -> UnitDesign:
    return layer_design(NetworkLayer(model), params, NETWORK.module)


NETWORK = UnitSpec(
    "network", "a whole network over frames", "network", network_params, network_design, None,
    tokens=64, takes_frames=True)
