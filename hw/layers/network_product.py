"""The unit ``network``: a model over frames as one unit, with the sizes of its parts."""

from __future__ import annotations

from typing import Any

from sterna.hw.core.image.program import ProgramImage
from sterna.hw.core.product.registers import Bus, StreamRegisters
from sterna.hw.core.product.registers_product import register_design
from sterna.hw.emit.folder import UnitDesign
from sterna.hw.layers.emit import layer_design, layer_image, layer_params
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.units.spec import UnitSpec
from sterna.model.layers.layer import NetworkLayer
from sterna.model.quantized import QuantizedModel

__all__ = ["NETWORK", "network_image"]


def network_params(
    model: QuantizedModel, *, quant_lanes: int | None = None, **sizes: Any,
) -> LayerParams:
    """Parameters for a model; see :func:`~sterna.hw.layers.emit.emit_layer` for the sizes."""
    return layer_params(NetworkLayer(model), lanes=quant_lanes, **sizes)


def network_design(model: QuantizedModel, params: LayerParams) -> UnitDesign:
    return layer_design(NetworkLayer(model), params, NETWORK.module)


def network_image(model: QuantizedModel, params: LayerParams) -> ProgramImage:
    return layer_image(NetworkLayer(model), params)


_FRAME_MEANINGS = {
    "x": "a channel of the word, of 16 bits with a sign",
    "start": "whether the frame begins a sequence; read with its first word",
    "sequence": "whose frame it is"}


def network_register_design(
    model: QuantizedModel, params: LayerParams, bus: Bus, name: str,
) -> UnitDesign:
    """Design a network behind registers; ``name`` is the module's."""
    design = network_design(model, params)
    unit = design.component
    return register_design(
        design, bus, name, StreamRegisters(
            "FRAME", unit.vectors, "a word of a frame", _FRAME_MEANINGS),
        [StreamRegisters("RESULT", unit.results, "a word of results")], _USE)


_USE = """\
- **Send a frame** word by word, each once `CAN_SEND` is 1: write the channels of the word to
  `FRAME_X_0` and so on, 0 behind the last channel, then `FRAME_SEND`.
- **Take results** once `RESULT` is 1: read `RESULT_Y_0` and so on, and `RESULT_LAST`, which is 1
  with the last word of a frame, then write `RESULT_TAKE`. The network waits for that.
- **Refused** is a word if a number in its registers is out of range or another one still waits,
  and a `TAKE` while nothing waits: nothing is sent or taken.
- While bit 0 of `CONTROL` is 1 the network is in reset. Afterwards every sequence begins anew.
"""

NETWORK = UnitSpec(
    "network", "a whole network over frames", "network", network_params, network_design, None,
    tokens=64, takes_frames=True, registers=network_register_design,
    own_sizes=LayerParams.defaults() | {"rows": None, "cols": None, "quant_lanes": None})
