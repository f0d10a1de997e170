"""No model can be made whose integers float64 could not carry."""

import dataclasses

import numpy as np
import pytest
from conftest import ODD, replace_weights

from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.bounds import CARRIER_BITS, tensor_bounds
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.records import language_model
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder


def test_every_tensor_has_a_bound(odd_model):
    taps = TapRecorder()
    IntegerModel(odd_model).step(np.array([1]), IntegerModel(odd_model).start(), taps)
    derived = {"m", "r", "n", "acc"}  # bounded by the tensors they are made from
    wanted = [name for name in taps.names()
              if name.rsplit(".", 1)[-1] not in derived | {"embedding.x", "logits"}
              and name not in ("embedding.x", "logits")]
    assert sorted(tensor_bounds(odd_model.records, odd_model.projections)) == sorted(wanted)


@pytest.mark.parametrize("gain", [1.5, 200.0])
@pytest.mark.parametrize("weight", [None, 1, -1])
def test_no_value_passes_its_bound(profile, gain, weight):
    model = random_model(ODD, profile, 6, gain=gain)
    model = model if weight is None else replace_weights(model, weight)
    taps = TapRecorder()
    IntegerModel(model).run(np.arange(65)[None, :], tap=taps)
    bounds = tensor_bounds(model.records, model.projections)
    assert max(bounds.values()) < 1 << CARRIER_BITS
    for name in bounds:
        assert np.abs(taps[name]).max() <= bounds[name], name
    for name, projection in model.projections.items():
        scale = taps[f"{_norm(name)}.v"] * projection.k
        assert scale.max() <= bounds[f"{name}.a"], name
        product = np.abs(taps[f"{name}.acc"] * taps[f"{name}.a"])
        assert product.max() + (1 << (projection.shift - 1)) <= bounds[f"{name}.z"], name


def _norm(projection: str) -> str:
    """Name of the norm whose output the projection reads."""
    at, _, part = projection.rpartition(".")
    return {"head": "head.norm", "out": f"{at}.out_norm", "down": f"{at}.down_norm"}.get(
        part, f"{at}.norm")


@pytest.mark.parametrize(("change", "tensor"), [
    ({"scale_frac": 45}, r"layer0\.mlgru\.norm\.v"),
    ({"root_frac": 20}, r"layer0\.mlgru\.norm\.s"),
    ({"mantissa_bits": 40}, r"layer0\.mlgru\.f\.a"),
    ({"mantissa_bits": 30, "scale_bits": 42}, r"layer0\.mlgru\.f\.z"),
])
def test_a_profile_out_of_reach_is_refused(change: dict[str, int], tensor: str) -> None:
    # No profile that can be made goes that far; this is the net below its limits.
    profile = dataclasses.replace(S16)
    for field, value in change.items():
        object.__setattr__(profile, field, value)
    good = random_model(ModelConfig(d=64, layers=1, dff=64), S16)
    projections = {
        name: dataclasses.replace(p, k=1 << (profile.mantissa_bits - 1))
        for name, p in good.projections.items()}
    with pytest.raises(ValueError, match=tensor + r": these formats at this shape need .* 2\^"):
        dataclasses.replace(
            good, records=language_model(good.config, profile), projections=projections)
