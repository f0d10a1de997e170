"""The storage of ternary weights in ONNX files: 2 bits each, in tiles that kernels read in
place."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from sterna.export.graph.builder import GraphBuilder

__all__ = ["TILE", "append_weight", "pack_tiles"]

TILE = 16
"""Rows of a block, and columns of a step."""


def pack_tiles(weight: np.ndarray) -> np.ndarray:
    """Pack trits ``[rows, columns]``, uint8 ``[blocks, steps, 16, 4]``.

    A tile is 16 rows by 16 columns, 64 bytes, one for each 16 rows (block) and 16 columns (step).
    Byte ``[row, b]`` holds columns ``b``, ``4 + b``, ``8 + b`` and ``12 + b`` of that row as codes
    0, 1, 2 for -1, 0, 1, the first in its lowest bits. Rows and columns are padded with zeros
    (code 1).

    >>> pack_tiles(np.eye(20, 5, dtype=np.int8)).shape
    (2, 1, 16, 4)
    """
    rows, columns = weight.shape
    blocks, steps = -(-rows // TILE), -(-columns // TILE)
    codes = np.ones((blocks * TILE, steps * TILE), dtype=np.uint8)
    codes[:rows, :columns] = weight + 1
    # [block, row, step, field, b] -> fields of [block, step, row, b]
    fields = codes.reshape(blocks, TILE, steps, 4, 4).transpose(3, 0, 2, 1, 4)
    return np.ascontiguousarray(fields[0] | fields[1] << 2 | fields[2] << 4 | fields[3] << 6)


def append_weight(graph: GraphBuilder, name: str, weight: np.ndarray) -> str:
    """Store a weight ``[rows, columns]`` and append nodes that unpack it, which a runtime folds at
    load time; return their result, codes 0, 1, 2 as int8 ``[columns, rows]``."""
    (rows, columns), packed = weight.shape, pack_tiles(weight)
    blocks, steps = packed.shape[:2]
    stored = graph.op("Unsqueeze", [graph.store(name, packed), graph.integers(4)])
    fields = graph.op("BitShift", [stored, graph.constant([0, 2, 4, 6], np.uint8)],
                      direction="RIGHT")
    codes = graph.cast(graph.op("BitwiseAnd", [fields, graph.constant(3, np.uint8)]),
                       TensorProto.INT8)
    # [block, step, row, b, field] -> [step, field, b, block, row]
    turned = graph.op("Transpose", [codes], perm=[1, 4, 3, 0, 2])
    whole = graph.op("Reshape", [turned, graph.integers(steps * TILE, blocks * TILE)])
    if rows % TILE == columns % TILE == 0:
        return whole
    return graph.op("Slice", [whole, graph.integers(0, 0), graph.integers(columns, rows)])
