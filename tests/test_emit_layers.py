"""Matrices and layers of one's own in gateware: the same integers, and the cycles stated."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_matrices import random_matrices
from random_networks import random_input, random_layers, with_numbers
from stream_bench import Pauses, StreamRun, run_ports

from sterna.hw import emit_layer, emit_matrix, layer_cost
from sterna.hw.core.image.linear import pack_image
from sterna.hw.core.image.reader import ImageStatus
from sterna.hw.emit.documents import payload_fields
from sterna.hw.emit.payloads import Fields, pack_words
from sterna.hw.layers.cycles import result_times, unit_cycles
from sterna.hw.layers.documents import act_values, result_values, result_words, vector_values
from sterna.hw.layers.emit import layer_component, layer_image, layer_params, plan_matrices
from sterna.hw.layers.units import LayerUnit, MatrixUnit
from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.tools.process import verilator_environment
from sterna.model.cache import Cache
from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    Layer,
    MatrixLayer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.layers.layer import input_bits
from sterna.model.profile import C12, S16, FixedPoint
from sterna.sim.core.memory import ImageMemory

_MATRICES = random_matrices()
_EIGHT = FixedPoint(8, 2)
_EYE = np.eye(4, dtype=int)
_STEADY = Pauses()


def fields_of(unit) -> dict[str, Fields]:
    return {name: {each.name: each for each in members}
            for name, members in payload_fields(unit).items()}


def run_matrices(layers, sizes, sent, *, pauses=_STEADY) -> None:
    """Run vectors, pairs of a matrix and its activations, and compare every bit that leaves."""
    params, image = plan_matrices(layers, **sizes)
    unit = MatrixUnit(params, image)
    fields = fields_of(unit)
    name = "results" if params.limits.requantizes else "sums"
    inputs, expected = [], []
    for matrix, acts in sent:
        inputs += pack_words(fields["acts"], act_values(params, acts, matrix))
        expected += pack_words(fields[name], result_values(params, layers[matrix](acts), matrix))
    run = _run(unit, unit.acts, getattr(unit, name), inputs, expected, pauses)
    if pauses is _STEADY:
        check_cycles(params, run, [matrix for matrix, _ in sent])


def run_layer(layer: Layer, sizes, vectors, starts=(0,), *, pauses=_STEADY) -> None:
    """Run vectors through a layer, those of the second sequence backwards, and compare every bit
    that leaves. With a port, once all that can be read ahead has come."""
    params, loading = layer_params(layer, **sizes), 0
    if params.port_bits:
        params = replace(params, ring=16)
        image = layer_image(layer, params)
        unit, data = LayerUnit(params, image), pack_image(image)
        dut, loading = behind_memory(unit, data), 4 * len(data)
    else:
        dut = unit = layer_component(layer, **sizes)
    fields = fields_of(unit)
    states = [layer.start()] * params.sequences
    inputs, expected = [], []
    for index in range(len(vectors)):
        results = []
        for sequence in range(params.sequences):
            x = vectors[-1 - index if sequence == 1 else index]
            start = index in starts
            y, states[sequence] = layer.step(
                x[None], layer.start() if start or not index else states[sequence])
            inputs += pack_words(fields["vectors"], vector_values(
                params, x, start=start, sequence=sequence))
            results.append((sequence, y[0]))
        expected += result_words(params, fields["results"], results)
    run = _run(dut, unit.vectors, unit.results, inputs, expected, pauses, loading)
    if pauses is _STEADY:
        check_cycles(params, run, list(range(params.sequences)) * len(vectors))


def behind_memory(unit, image: bytes) -> Module:
    m = Module()
    m.submodules.unit, m.submodules.memory = unit, ImageMemory(unit.params, image)
    for name in ("reads", "data"):
        wiring.connect(m, getattr(unit, name), getattr(m.submodules.memory, name))
    return m


def _run(dut, inputs, outputs, words, expected, pauses, loading=0) -> StreamRun:
    """Nothing is sent for ``loading`` cycles."""
    cycles = itertools.count()
    run, = run_ports(
        dut, {"in": inputs}, {"out": outputs}, [({"in": words}, {"out": len(expected)}, None)],
        pauses=pauses, max_cycles=200_000, hold=lambda ctx, run: next(cycles) < loading)
    run = StreamRun.of(run["in"], run["out"])
    assert run.results == expected
    return run


def check_cycles(params, run: StreamRun, vectors: list[int]) -> None:
    """Hold every cycle in which a result is there to the model."""
    assert [at - run.sent_at[0] for at in run.taken_at] == result_times(params, vectors)


def _is_quick(index: int, name: str) -> bool:
    """Some of the small ones; all are tried in Verilog in any case."""
    sizes = [int(size) for size in name.rsplit("-", 1)[1].split("x")]
    return index % 3 == 0 and np.prod(sizes) < 2500


@pytest.mark.parametrize("index", [
    pytest.param(index, id=name, marks=() if _is_quick(index, name) else pytest.mark.long)
    for index, (name, _) in enumerate(_MATRICES)])
def test_thirty_matrices_as_sums_as_results_and_as_layers(index):
    _, weight = _MATRICES[index]
    rng = np.random.default_rng(index)
    rows, columns = weight.shape
    # A narrow array takes longer and is the harder case: groups and beats that are not full.
    sizes = {"rows": min(1 << rows.bit_length() - 1, 1 << index % 4),
             "cols": 16 if columns > 8 else None}
    acts = [(0, rng.integers(-128, 128, columns)), (0, np.full(columns, -128)),
            (0, np.full(columns, 127))]
    # One form of each in Amaranth's simulator; the sums and results of all are tried in Verilog.
    form = ("sums", "results", "layer")[index // 3 % 3]
    matrix = with_numbers(weight, rng)
    if form == "sums":
        run_matrices([MatrixLayer.of(weight)], sizes, acts)
    elif form == "results":
        run_matrices([MatrixLayer.of(matrix, _EIGHT)], sizes, acts)
    else:
        profile = (S16, C12)[index % 2]
        layer = BitLinearLayer.of(matrix, profile=profile)
        limit = 1 << (input_bits(profile) - 1)
        run_layer(layer, {"rows": sizes["rows"], "sequences": 1 << index % 3},
                  rng.integers(-limit, limit, (3, columns)))


def make(folder, *options: str) -> str:
    """Run the test that a folder carries, in Icarus; return what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "SIM=icarus", *options], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PATH": path}, check=False)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


def _sizes_for(layer: Layer, seed: int) -> dict[str, Any]:
    most = max(len(each.weight) for each in layer.matrices().values())
    return {"rows": min(1 << seed % 3, 1 << most.bit_length() - 1), "sequences": 1 << seed // 3 % 3,
            **({"compact": True, "lanes": 1} if seed % 2 else {}),
            "port_bits": 16 << seed % 3 if seed % 5 == 2 else 0}


@given(seed=st.integers(0, 1 << 16))
@example(148)   # a sum after others that only pass, and one in the middle
@example(152)   # one that leaves; the state is that of the third stage
@example(97)    # weights from a memory, for four sequences; the cycles are compared
@example(160)   # frames for four sequences, with pauses; shifts to both sides
@example(35)    # frames of a channel a word
@settings(max_examples=3)
def test_any_network_of_layers_is_one_unit(seed):
    layer = random_layers(seed, 12)
    limit = 1 << (layer.bits - 1)
    vectors = np.random.default_rng(seed).integers(-limit, limit, (3, layer.columns))
    run_layer(layer, _sizes_for(layer, seed), vectors, starts=(0, 2),
              pauses=_STEADY if seed % 4 else Pauses(0.3, 0.4, seed))


def test_a_network_takes_no_image_of_another():
    def made(seed: int, **sizes) -> SequentialLayer:
        return SequentialLayer([random_input(2, S16, np.random.default_rng(seed)),
                                BitLinearLayer.of(np.eye(2, 3, dtype=int), **sizes)])

    own, other, wide = made(1), made(2), made(1, output=FixedPoint(20, 8))
    params, others = (layer_params(each, port_bits=32) for each in (own, other))
    assert params == replace(others, frame=params.frame) != others
    for layer, message in (
        (other, "the scaling of its frames"), (wide, "its formats"),
        (BitLinearLayer.of(np.eye(2, 3, dtype=int)), "the scaling"),
        (BitLinearLayer.of(np.eye(3, dtype=int)), "its layers"),
        (SequentialLayer([own.layers[0], BitLinearLayer.of(
            TernaryMatrix(np.eye(2, 3, dtype=int), 0.01))]), "its shifts, which are"),
    ):
        with pytest.raises(ValueError, match=f"for a network that differs in {message}"):
            layer_image(layer, params)

    for layer, sizes, status in ((own, params, ImageStatus.RUNNING),
                                 (other, others, ImageStatus.OTHER_CORE)):
        unit, found = LayerUnit(params, layer_image(own, params)), []

        async def bench(ctx, unit=unit, found=found):
            for _ in range(200):
                await ctx.tick()
                found.append((ctx.get(unit.status), ctx.get(unit.vectors.ready)))
        run_bench(behind_memory(unit, pack_image(layer_image(layer, sizes))), bench)
        assert found[-1] == (status, layer is own)
        assert all(ready == (each == ImageStatus.RUNNING) for each, ready in found)


@pytest.mark.long
@pytest.mark.needs("iverilog")
@pytest.mark.parametrize("seed", range(8))
def test_wide_networks_in_verilog(seed, tmp_path):
    layer = random_layers(seed, 70)
    emit_layer(layer, tmp_path / "unit", **{**_sizes_for(layer, seed), "port_bits": 0})
    assert "2 of 2 tests passed" in make(tmp_path / "unit")


@pytest.mark.long
@pytest.mark.needs("iverilog")
def test_thirty_matrices_share_one_array_in_verilog(tmp_path):
    weights = [weight for _, weight in _MATRICES]
    emitted = emit_matrix(weights, tmp_path / "sums", rows=8, cols=64)
    assert len(json.loads((tmp_path / "sums/params.json").read_text())["matrices"]) == 30
    assert "2 of 2 tests passed" in make(tmp_path / "sums")
    rng = np.random.default_rng(5)
    emit_matrix([with_numbers(weight, rng) for weight in weights], tmp_path / "results",
                output=_EIGHT, rows=4, cols=64, lanes=32)
    assert "2 of 2 tests passed" in make(tmp_path / "results")
    assert emitted.params.most_weights == 904


@pytest.mark.slow
@pytest.mark.needs("iverilog")
def test_a_wrong_weight_fails_the_test_of_the_folder(tmp_path):
    emit_matrix(np.eye(8, dtype=int), tmp_path / "unit")
    path, = (tmp_path / "unit").glob("*weights*.mem")
    first, _, rest = path.read_text().partition("\n")
    path.write_text(f"{int(first, 16) ^ 2:0{len(first)}x}\n{rest}")
    assert re.search(r"word \d+ of sums, sum\[\d+\]: expected", make(tmp_path / "unit"))


@pytest.mark.slow
@pytest.mark.needs("iverilog")
@pytest.mark.parametrize("style", ["ecp5-chain", "xc7-pair"])
def test_layers_of_the_cells_of_a_family_in_verilog(style, tmp_path):
    rng = np.random.default_rng(1)
    gates = [with_numbers(rng.integers(-1, 2, (9, 20)), rng) for _ in range(3)]
    last = with_numbers(rng.integers(-1, 2, (7, 9)), rng)
    square = [with_numbers(rng.integers(-1, 2, (7, 7)), rng) for _ in range(4)]
    if style == "xc7-pair":
        emit_layer(MlgruLayer.of(*gates, last, profile=C12), tmp_path / "unit", style=style,
                   rows=4, cols=12, sequences=2)
    else:
        emit_layer(SequentialLayer([
            GluLayer.of(*gates[:2], last), ResidualLayer(MlgruLayer.of(*square))]),
            tmp_path / "unit", style=style, rows=2, cols=12, lanes=4)
    assert "2 of 2 tests passed" in make(tmp_path / "unit")


@pytest.mark.parametrize(("profile", "rows", "d", "columns", "out"), [
    (S16, 1, 3, 4, 2), (C12, 4, 9, 6, 11), pytest.param(S16, 4, 9, 6, 11, marks=pytest.mark.long)])
def test_mixers_with_pauses_at_both_ends(profile, rows, d, columns, out):
    rng = np.random.default_rng(rows)

    def matrix(rows: int, columns: int) -> TernaryMatrix:
        return with_numbers(rng.integers(-1, 2, (rows, columns)), rng)

    limit = 1 << (input_bits(profile) - 1)
    vectors = rng.integers(-limit, limit, (5, columns)) >> np.arange(5)[:, None]
    vectors[2] = 0
    pauses = Pauses(0.3, 0.4, seed=rows)
    gates = [matrix(d, columns) for _ in range(3)]
    for layer in (MlgruLayer.of(*gates, matrix(out, d), profile=profile),
                  GluLayer.of(*gates[:2], matrix(out, d), profile=profile)):
        run_layer(layer, {"rows": rows, "sequences": rows}, vectors, starts=(0, 3), pauses=pauses)
        run_layer(layer, {"rows": rows}, vectors)


@pytest.mark.slow
def test_a_folder_is_clean_for_verilator(tmp_path):
    rng = np.random.default_rng(4)
    matrices = [with_numbers(rng.integers(-1, 2, shape), rng) for shape in ((3, 9), (5, 4))]
    emit_matrix(matrices[0], tmp_path / "one", output=_EIGHT, axis=True)
    emit_matrix(matrices, tmp_path / "two", output=_EIGHT, axis=True)
    emit_layer(matrices[0], tmp_path / "linear", axis=True)
    down = with_numbers(rng.integers(-1, 2, (2, 3)), rng)
    emit_layer(GluLayer.of(matrices[0], matrices[0], down, profile=C12), tmp_path / "glu",
               axis=True)
    square = [with_numbers(rng.integers(-1, 2, (3, 3)), rng) for _ in range(4)]
    emit_layer(SequentialLayer([
        random_input(8, S16, rng), BitLinearLayer.of(matrices[0], output=S16.x),
        BitLinearLayer.of(square[0], output=S16.x),
        ResidualLayer(MlgruLayer.of(*square)), ResidualLayer(GluLayer.of(*square[:3]))]),
        tmp_path / "network", sequences=2, axis=True)
    for folder in sorted(tmp_path.iterdir()):
        module = json.loads((folder / "params.json").read_text())["module"]
        done = subprocess.run(
            ["verilator", "--lint-only", "-Wall", "--top-module", f"{module}_axis",
             "sterna.vlt", "-f", "filelist.f"],
            cwd=folder, capture_output=True, text=True, check=False,
            env=verilator_environment())
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("seed", range(4))
def test_matrices_take_turns_and_the_rate_is_as_stated(seed):
    rng = np.random.default_rng(seed)
    shapes = rng.integers(1, 40, (3, 2))
    output = _EIGHT if seed % 2 else None
    layers = [MatrixLayer.of(with_numbers(w, rng) if output else w, output)
              for w in (rng.integers(-1, 2, shape) for shape in shapes)]
    most = int(shapes[:, 0].max())
    sizes = {"rows": min(1 << int(rng.integers(0, 4)), 1 << most.bit_length() - 1),
             "cols": 16 if shapes[:, 1].max() > 8 else None}
    some = [(int(which), rng.integers(-128, 128, layers[which].columns))
            for which in rng.integers(0, 3, 9)]
    run_matrices(layers, sizes, some, pauses=Pauses(0.3, 0.3, seed))
    run_matrices(layers, sizes, some)
    params, _ = plan_matrices(layers, **sizes)
    for matrix, stated in enumerate(unit_cycles(params)):
        times = result_times(params, [matrix] * 40)
        ends = times[params.words_out(matrix) - 1::params.words_out(matrix)]
        assert ends[0] == stated.latency
        assert abs((ends[-1] - ends[9]) / 30 - stated.period) < 0.5


def test_area_and_cycles_come_from_one_call(tmp_path):
    weight = dict(_MATRICES)["drawn-5x9"]
    emitted = emit_matrix(weight, tmp_path / "unit", rows=2)
    cost = layer_cost(emitted, "ice40-hx8k", cache=Cache(tmp_path / "cache"))
    assert cost.area.lut > 50
    assert cost.area.dsp == 0
    stated, = emitted.manifest["cycles"]
    assert (cost.latency, cost.period) == ((stated["latency"],), (stated["period"],))
    assert str(cost).startswith(
        f"ternary_matrix on ice40-hx8k: {cost.area.lut:,} LUTs ({cost.area.lut / 7680:.0%}), ")
    with pytest.raises(ValueError, match="target must be one of"):
        layer_cost(emitted, "ecp6")
    layer = emit_layer([[1]], tmp_path / "layer", profile=C12, style="xc7-pair")
    with pytest.raises(ValueError, match="style xc7-pair is built from cells of xc7"):
        layer_cost(layer, "ice40-hx8k")
    cost = replace(cost, latency=(8, 9), period=(4, 1000))
    assert "\nmatrix 1: 9 cycles from vector to result, one vector every 1,000" in str(cost)


def test_a_folder_has_the_name_that_is_asked_for(tmp_path):
    emit_layer(_EYE, tmp_path / "a", output=FixedPoint(10, 4), name="mine")
    assert {"mine.v", "test_mine.py", "vectors.json", "params.json", "README.md"} <= {
        path.name for path in (tmp_path / "a").iterdir()}


@pytest.mark.parametrize(("call", "message"), [
    (lambda out: emit_matrix([[2, 0]], out), "every weight must be -1, 0 or 1, got 2"),
    (lambda out: emit_matrix([], out), "there must be at least one matrix"),
    (lambda out: emit_matrix(TernaryMatrix(_EYE, 0.5), out), "needs an output format"),
    (lambda out: emit_matrix(_EYE, out, rows=5), "rows must be a whole number from 1 to 4, got 5"),
    (lambda out: emit_matrix(_EYE, out, cols=3, lanes=4), r"cols \(3\) must be a multiple of"),
    (lambda out: emit_matrix(_EYE, out, rows=3), r"rows must be a power of two, got 3"),
    (lambda out: emit_matrix(_EYE, out, cols=1, style="xc7-pair"), "takes pairs of columns"),
    (lambda out: emit_matrix(_EYE, out, style="lut6"), "style must be one of generic, ecp5-chain"),
    (lambda out: emit_matrix(_EYE, out, name="2nd"), "name must be a Verilog name"),
    (lambda out: emit_matrix(_EYE, out, name=None), "name must be a Verilog name"),
    (lambda out: emit_matrix(_EYE, out, name="module"), "name must be no word of Verilog"),
    (lambda out: emit_matrix(_EYE, out, name="ecp5"), "none of ecp5, xc7"),
    (lambda out: emit_matrix([_EYE, [[2, 0]]], out), "matrix 1: .*every weight must be"),
    (lambda out: emit_matrix(_EYE, out, output=(8, 0)), r"output must be a FixedPoint, got \(8, 0"),
    (lambda out: emit_matrix(_EYE, out, output=FixedPoint(24, 0)), "2 to 23 bits, got 24"),
    (lambda out: emit_layer(_EYE, out, profile="C13"), "a NumericProfile or one of S16, C12, got"),
    (lambda out: emit_matrix(_EYE, None), "folder must name a file or folder, got None"),
    (lambda out: emit_layer(_EYE, out, sequences=3), "sequences must be a power of two, got 3"),
    (lambda out: emit_layer(BitLinearLayer.of(_EYE), out, profile=S16), "has its own formats"),
    (lambda out: emit_layer(MatrixLayer.of(_EYE), out), "it is for emit_matrix"),
    (lambda out: emit_layer(ResidualLayer(ResidualLayer(GluLayer.of(*[_EYE] * 3))), out),
     "computes these layers in this order: Add residual.sum has saturates False, not True"),
    (lambda out: emit_layer(SequentialLayer([BitLinearLayer.of(_EYE, profile=C12)] * 2), out),
     r"Project 0.linear has output FixedPoint\(bits=8, frac=4\), not FixedPoint\(bits=12"),
    (lambda out: emit_layer(BitLinearLayer.of(_EYE), out, profile=C12), "has its own formats"),
    (lambda out: emit_layer(_EYE, out, lanes=3), "quant_lanes must be a power of two, got 3"),
    (lambda out: emit_layer(GluLayer.of(_EYE, _EYE, np.eye(3)), out), "down must have 4 columns"),
])
def test_what_does_not_fit_is_refused_and_nothing_is_written(call, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "unit")
    assert not (tmp_path / "unit").exists()
