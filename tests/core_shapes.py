"""Shapes of cores for property tests, none of them large."""

from __future__ import annotations

from hypothesis import strategies as st

from sterna.hw.core.plan.core_params import CoreParams
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16

__all__ = ["core_params"]


@st.composite
def core_params(draw: st.DrawFn, sequences: tuple[int, ...] = (1, 2)) -> CoreParams:
    """A core of any shape: dimensions need not divide by anything."""
    rows = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    words = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    lanes = draw(st.sampled_from([count for count in range(1, words + 1) if words % count == 0]))
    cols = rows * words
    config = ModelConfig(
        d=draw(st.integers(1, 60)), layers=draw(st.integers(1, 2)),
        dff=draw(st.integers(cols, cols + 100)), vocab=draw(st.sampled_from([2, 65, 256])))
    return CoreParams(
        config, draw(st.sampled_from([S16, C12])), rows=rows, cols=cols,
        sequences=draw(st.sampled_from(sequences)), quant_lanes=rows * lanes,
        digit_bits=draw(st.integers(0, 5)), root_digit_bits=draw(st.integers(1, 4)))
