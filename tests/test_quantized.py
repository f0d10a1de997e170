"""The quantised model file: what is written is what is read, and damage is named."""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ODD
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from sterna.model.profile import C12
from sterna.model.quantized import Projection, QuantizedFileError, load_model
from sterna.model.quantized.file import _digest, pack_trits, unpack_trits
from sterna.model.quantized.synthetic import random_model

Change = Callable[[dict, dict], object]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_trits_survive_packing(rows, columns, seed):
    weight = np.random.default_rng(seed).integers(-1, 2, (rows, columns), dtype=np.int8)
    packed = pack_trits(weight)
    assert packed.size == -(-rows * columns // 4)
    np.testing.assert_array_equal(unpack_trits(packed, (rows, columns)), weight)


@pytest.mark.parametrize(("packed", "message"), [
    (np.array([2], np.uint8), "trit 0 has code 2"),
    (np.array([1 << 6], np.uint8), "filling"),
    (np.array([0, 0], np.uint8), "3 trits take 1"),
    (np.array([0], np.int16), "uint8"),
])
def test_packed_trits_that_are_none_are_refused(packed, message):
    with pytest.raises(ValueError, match=message):
        unpack_trits(packed, (1, 3))


def test_a_model_survives_the_file(odd_model, tmp_path):
    path = odd_model.save(tmp_path / "m.safetensors")
    back = load_model(path)
    assert back.to_bytes() == path.read_bytes() == odd_model.to_bytes()
    assert back.config == odd_model.config
    assert back.profile == odd_model.profile
    assert back.provenance == odd_model.provenance
    for name, p in odd_model.projections.items():
        assert (back.projections[name].k, back.projections[name].shift) == (p.k, p.shift)
        np.testing.assert_array_equal(back.projections[name].weight, p.weight)
        np.testing.assert_array_equal(back.projections[name].bias, p.bias)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.safetensors"]


def _rewrite(blob: bytes, change: Change) -> bytes:
    """Apply ``change(header, tensors)`` to a file, with a matching checksum."""
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(json.loads(blob[8:8 + size])["__metadata__"]["sterna"])
    tensors = {name: value.copy() for name, value in load(blob).items()}
    change(header, tensors)
    header["sha256"] = _digest(tensors, header)
    return save(tensors, metadata={"sterna": json.dumps(header)})


def _set(tensor: str, value: int) -> Change:
    def change(header: dict, tensors: dict) -> None:
        tensors[tensor].reshape(-1)[0] = value
    return change


CHANGES = {
    "version": (lambda h, t: h.update(version=2), "format version 2, this Sterna reads version 3"),
    "trit": (_set("layer0.mlgru.f.weight", 2), r"layer0\.mlgru\.f\.weight: trit 0 has code 2"),
    "missing": (lambda h, t: t.pop("embedding"), "missing or unknown tensors: embedding"),
    "unknown": (lambda h, t: t.update(extra=np.zeros(1)), "unknown tensors: extra"),
    "shape": (lambda h, t: t.update(embedding=t["embedding"][:3]), "embedding must have shape"),
    "type": (lambda h, t: t.update(embedding=t["embedding"].astype(np.float32)),
             "embedding must hold integers"),
    "mantissa": (_set("head.scale", 1), "head: k must be from"),
    "shift": (lambda h, t: t["head.scale"].__setitem__(1, 41), "shift must be from 1 to 40"),
    "table": (lambda h, t: t["sigmoid"].__setitem__(60, 0), "sigmoid must not decrease"),
    "records": (lambda h, t: h.update(records={}), "records must be a list"),
    "size": (lambda h, t: h["records"][0].update(width=0),
             r"record 0 \(embedding\): width must be a whole number"),
    "kind": (lambda h, t: h["records"][1].update(kind="attention"),
             "record 1 must be one of embedding, narrow, .* got 'attention'"),
    "input": (lambda h, t: h["records"].insert(1, {
        "kind": "input", "name": "frame", "x": "embedding.x", "channels": 12, "bits": 16,
        "output": {"bits": 16, "frac": 11}}), "the record frame is an input, with which only"),
    "unknown value": (lambda h, t: h["records"][1].update(x="y"),
                      "reads y with 12 values, of which there are none"),
    "width": (lambda h, t: h["records"][1].update(width=13),
              r"layer0\.mlgru\.norm reads embedding\.x with 13 values, of which there are 12"),
    "twice": (lambda h, t: h["records"].insert(1, h["records"][0]), "gives .* a second time"),
    "name": (lambda h, t: h["records"][0].update(name=3), "name must be of type str, got 3"),
    "complement": (lambda h, t: [each.update(complement=True, step_bits=0) for each in h["records"]
                                 if each["kind"] == "sigmoid"],
                   "a complement needs a table that is interpolated"),
    "header": (lambda h, t: h.update(profile=3), "profile must be a name"),
    "provenance": (lambda h, t: h.update(provenance=[]), "provenance must be an object"),
    "format": (lambda h, t: h.update(format="x"), "not a Sterna quantised model, but 'x'"),
    "float scale": (lambda h, t: t.update({"head.scale": np.array([9.5, 9.5])}),
                    "head.scale must be the integers"),
    "float table": (lambda h, t: t.update(sigmoid=t["sigmoid"] * 1.0),
                    "sigmoid must hold integers"),
    "tokenizer": (lambda h, t: h.update(tokenizer="bpe"), "not a Sterna tokenizer"),
    "field": (lambda h, t: h["records"][0].update(heads=2),
              "must have the fields name, vocab, width, output; unknown: heads"),
    "field missing": (lambda h, t: h["records"][1].pop("x"), "must have .*; missing: x"),
    "format of a number": (lambda h, t: h["records"][0].update(output=3),
                           "output must be an object with the fields bits, frac, got 3"),
    "header field": (lambda h, t: h.pop("tokenizer"), "the header must .*; missing: tokenizer"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_file_is_refused_by_name(odd_model, tmp_path, name):
    change, message = CHANGES[name]
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(_rewrite(odd_model.to_bytes(), change))
    with pytest.raises(QuantizedFileError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


BLOB = random_model(ODD, C12, 7).to_bytes()


@given(st.integers(0, len(BLOB) - 1), st.integers(0, 7))
def test_a_truncated_file_and_a_flipped_bit_are_noticed(at, bit):
    flipped = BLOB[:at] + bytes([BLOB[at] ^ (1 << bit)]) + BLOB[at + 1:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.safetensors"
        for damaged in (BLOB[:at], flipped):
            path.write_bytes(damaged)
            with pytest.raises(QuantizedFileError, match=r"damaged\.safetensors"):
                load_model(path)


@pytest.mark.parametrize(("name", "message"), [
    ("nothing.safetensors", r"No such file.*tiny, tiny-c12, micro, tiny-bpe"),
    (".", "cannot read")])
def test_what_is_no_file_is_refused_with_the_bundled_models(tmp_path, name, message):
    with pytest.raises(QuantizedFileError, match=message):
        load_model(tmp_path / name)


def test_a_wide_bias_is_refused(odd_model):
    name = "layer0.mlgru.f"
    p = odd_model.projections[name]
    wide = np.full(p.bias.shape, 1 << odd_model.profile.z.bits, dtype=np.int32)
    with pytest.raises(ValueError, match=r"layer0\.mlgru\.f\.bias must be from"):
        dataclasses.replace(odd_model, projections={
            **odd_model.projections, name: Projection(p.weight, wide, p.k, p.shift)})


def test_writing_where_nothing_can_be_written_leaves_nothing(odd_model, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        odd_model.save(tmp_path / "nowhere" / "m.safetensors")
    assert not list(tmp_path.iterdir())
