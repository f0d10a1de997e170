import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.profile import C12, S16, FixedPoint


def test_named_profiles_have_these_widths_ranges_and_tables(profile):
    """Training clamps to the ranges; C12 looks its sigmoid up in bytes, S16 interpolates."""
    formats = (profile.x, profile.z, profile.h, profile.o, profile.p)
    assert [each.limit for each in formats] == [16, 8, 8, 8, 32]
    table = profile.sigmoid_table()
    assert ([each.bits for each in formats], profile.sigmoid_step_bits, len(table)) == {
        "S16": ([16] * 5, 10, 65), "C12": ([12, 8, 12, 10, 10], 0, 256)}[profile.name]
    assert (table[0], table[len(table) // 2], table[-1]) == {
        "S16": (11, 1 << 14, 32757), "C12": (0, 128, 255)}[profile.name]


def test_sigmoid_table_is_the_sigmoid(profile):
    table = np.array(profile.sigmoid_table())
    at = -8 + np.arange(table.size) * 16 / profile.sigmoid_segments
    exact = 1 / (1 + np.exp(-at)) * (1 << profile.sigmoid_frac)
    limited = np.minimum(exact, profile.sigmoid_max)
    assert np.abs(table - limited).max() <= 0.5


@pytest.mark.parametrize(("change", "message"), [
    ({"reciprocal_bits": 12}, "reciprocal_bits must be from 16"),
    ({"reciprocal_bits": 25}, "from 2 to 24"),
    ({"sigmoid_segments": 48}, "power of two"),
    ({"sigmoid_segments": 1 << 17}, "at most one for each value"),
    ({"scale_bits": 14}, r"scale_bits must be from mantissa_bits - 1 \(15\)"),
    ({"scale_frac": 16.0}, "scale_frac must be a whole number"),
    ({"root_frac": -1}, "root_frac must be a whole number"),
    ({"z": FixedPoint(16, 5), "h": FixedPoint(16, 5)}, "a sigmoid has long been"),
    ({"name": ""}, "name must be text"),
    ({"h": FixedPoint(16, 11)}, "h must have the real range of z"),
    ({"p": FixedPoint(24, 25 - 1), "z": FixedPoint(8, 4), "h": FixedPoint(12, 8)},
     "negative product_shift"),
])
def test_contradicting_formats_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(S16, **change)


@pytest.mark.parametrize("bits", [1, 25])
def test_a_format_has_2_to_24_bits(bits):
    with pytest.raises(ValueError, match="bits must be a whole number from 2 to 24"):
        FixedPoint(bits, 0)


@given(st.sampled_from([S16, C12]), st.floats(1e-9, 30, allow_subnormal=False))
def test_a_quantized_scale_is_within_half_a_unit_of_its_mantissa(profile, scale):
    try:
        k, shift = profile.quantize_scale(scale)
    except ValueError:
        assert scale < 2.0 ** (profile.scale_bits - profile.max_shift)
        return
    assert 1 << (profile.mantissa_bits - 1) <= k < 1 << profile.mantissa_bits
    back = k * 2.0 ** (profile.scale_bits - profile.mantissa_bits - shift)
    assert abs(back / scale - 1) <= 2.0 ** -profile.mantissa_bits


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e9, 1e-30])
def test_a_scale_that_cannot_be_represented_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        S16.quantize_scale(scale)
