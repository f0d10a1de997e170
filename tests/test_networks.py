"""A network over frames is a model: its file, its graph, its Verilog and its commands."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from command_line import refusal, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from random_networks import random_frames, random_layers, random_network

from sterna.export.forms.forms import build, export_onnx
from sterna.export.graph.metadata import OnnxFileError
from sterna.export.native.ops import with_ops
from sterna.export.runtime.check import check_exact
from sterna.export.runtime.runtime import with_taps
from sterna.export.runtime.session import Session
from sterna.hw.board.boards import board_named
from sterna.hw.board.conversation import ConversationError, FrameConversation
from sterna.hw.board.serial_protocol import Answer, Order, order_bytes
from sterna.hw.board.top import BoardParams, board_core, board_design
from sterna.hw.catalog import emit_verilog
from sterna.hw.layers.network_product import NETWORK
from sterna.model.layers import BitLinearLayer, InputLayer, MlgruLayer, SequentialLayer
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_path, bundled_recordings
from sterna.model.quantized.file import QuantizedFileError
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.plan import StageKind
from sterna.model.quantized.recordings import Recordings, accuracy, read_frames, results_of
from sterna.model.quantized.taps import TapRecorder
from sterna.model.torch.stack.network import Network
from sterna.sim.bench.runner import Simulator
from sterna.sim.board import BoardSimulation
from sterna.sim.core.reference import record_activations, tensor_names
from sterna.sim.networks import simulate_network

SMALL: dict[str, Any] = {"rows": 2, "cols": 8, "quant_lanes": 2}


@pytest.fixture(scope="module")
def network() -> QuantizedModel:
    return random_network(C12, 3)


@pytest.fixture(scope="module")
def vowels() -> tuple[QuantizedModel, Recordings]:
    return load_model("vowels"), Recordings.load(bundled_recordings(), held_out=True)


# The file ---------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda each: each.name)
def test_a_network_is_a_model_that_runs_as_its_layers(
    profile: NumericProfile, tmp_path: Path,
) -> None:
    layer = random_network(profile, 1, layers=2)
    path = layer.save(tmp_path / "network.safetensors")
    model = load_model(path)
    assert model.sha256 == layer.sha256
    assert (model.is_network, model.profile.name) == (True, profile.name)
    frames = random_frames(model, 2, 40)
    results, state = IntegerModel(model).run(frames)
    reference = IntegerModel(model)
    one, before = reference.step(frames[:, 0], reference.start(2))
    rest, last = reference.run(frames[:, 1:], before)
    np.testing.assert_array_equal(results, np.concatenate([one[:, None], rest], axis=1))
    np.testing.assert_array_equal(state, last)


def test_real_frames_are_rounded_and_what_is_clipped_is_counted(network: QuantizedModel) -> None:
    frac = network.fraction_bits
    step = np.ldexp(1.0, -frac)
    frames = np.stack([2.5 * step, -2.5 * step, 40000 * step, -40000 * step])
    integers, clipped = network.integers(frames)
    assert integers.tolist() == [[3] * 3, [-2] * 3, [32767] * 3, [-32768] * 3]
    assert clipped == 6
    with pytest.raises(ValueError, match=r"frames must be \[\.\.\., 3\], got \[4, 2\]"):
        network.integers(frames[:, :2])
    with pytest.raises(ValueError, match="frames must be finite numbers"):
        network.integers(frames * np.nan)


def test_what_is_no_network_over_frames_is_refused(network: QuantizedModel, tmp_path: Path) -> None:
    matrix = np.eye(3, dtype=int)
    plain = BitLinearLayer.of(matrix)
    with pytest.raises(ValueError, match=r"begins with an Input.* begins with the Norm norm"):
        plain.to_model()
    entry = InputLayer.of([0.0, 0.0], [0, 0], [1.0, 1.0])
    with pytest.raises(ValueError, match="there must be states"):
        SequentialLayer([entry, plain]).to_model()
    other = replace(S16, name="own")
    own = SequentialLayer([InputLayer.of([0.0, 0.0], [0, 0], [1.0, 1.0], profile=other),
                           MlgruLayer.of(*[matrix] * 4, profile=other)])
    with pytest.raises(ValueError, match="formats of S16 or C12, and profile 'own'"):
        own.to_model()
    with pytest.raises(ValueError, match=r"0\.input\.shift must be from -16 to 16, got .* to 40"):
        replace(network, vectors={**network.vectors,
                                  "0.input.shift": network.vectors["0.input.shift"] * 0 + 40})
    with pytest.raises(ValueError, match="a language model, which takes tokens and no frames"):
        load_model("micro").integers(np.zeros((1, 3)))


def test_frames_of_another_form_are_refused(network: QuantizedModel) -> None:
    reference, session = IntegerModel(network), Session(build(network))
    for frames, said in (
        (np.zeros((1, 4, 2), int), "with 3 channels, got int64 [1, 4, 2]"),
        (np.zeros((1, 4, 3)), "with 3 channels, got float64 [1, 4, 3]"),
        (np.zeros((1, 0, 3), int), "at least one of them with 3 channels"),
        (np.full((1, 4, 3), 32768), "frames must be from -32768 to 32767, got 32768"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            session.run(frames)
        if frames.size:
            with pytest.raises(ValueError, match=r"frames (of a step )?must be"):
                reference.run(frames)


# ONNX -------------------------------------------------------------------------------


@given(seed=st.integers(0, 1 << 16))
@example(0)
@settings(max_examples=4, deadline=None)
def test_any_network_is_the_same_in_onnx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels, d, dff, outputs = (int(each) for each in rng.integers(1, 40, 4))
    model = random_network((S16, C12)[seed % 2], seed, channels=channels, d=d, dff=dff,
                           layers=1 + seed % 3, outputs=outputs)
    frames = random_frames(model, 2, 12, seed=seed)
    for one_token in (False, True):
        graph = build(model, one_token=one_token)
        assert check_exact(model, graph, frames).passed
    last = Session(graph).prefill(frames)
    np.testing.assert_array_equal(last[0], IntegerModel(model).run(frames)[0][:, -1])


def test_every_tensor_is_that_of_the_reference_in_the_evaluator_of_onnx(
    network: QuantizedModel,
) -> None:
    frames, right = random_frames(network, 2, 5), TapRecorder()
    results, last = IntegerModel(network).run(frames, tap=right)
    # The evaluator's GatherElements is made of numpy.choose, which takes 64 entries at most: the
    # graph of one token has none.
    graph = with_taps(build(network, one_token=True))
    names, evaluator = [each.name for each in graph.graph.output], ReferenceEvaluator(graph)
    state = np.zeros((1, 2, 8), np.int32)
    for t in range(5):
        feeds = {"frames": frames[:, t:t + 1].astype(np.int32), "state": state}
        found = dict(zip(names, evaluator.run(None, feeds), strict=True))
        np.testing.assert_array_equal(found.pop("results")[:, 0], results[:, t])
        state = found.pop("state_out")
        assert len(found) > 30
        for name, values in found.items():
            np.testing.assert_array_equal(values, right[name][t], err_msg=name)
    np.testing.assert_array_equal(state, last)


def test_the_file_says_all_that_a_loop_without_sterna_needs(
    network: QuantizedModel, tmp_path: Path,
) -> None:
    path = export_onnx(network, tmp_path / "network.onnx")
    assert path.read_bytes() == export_onnx(network, tmp_path / "again.onnx").read_bytes()
    proto = onnx.load(path)
    said = {each.key: each.value for each in proto.metadata_props}
    assert json.loads(said["sterna.fraction_bits"]) == network.fraction_bits.tolist()
    shapes = {each.name: [axis.dim_param or axis.dim_value
                          for axis in each.type.tensor_type.shape.dim]
              for each in (*proto.graph.input, *proto.graph.output)}
    assert shapes == {
        "frames": ["batch", "length", 3], "state": [1, "batch", 8], "results_from": [1],
        "results": ["batch", "wanted", 5], "state_out": [1, "batch", 8]}
    frames = proto.graph.input[0].doc_string
    assert frames.endswith(f"of each channel: {', '.join(map(str, network.fraction_bits))}")
    session = Session(path)
    state = session.run(random_frames(network, 1, 3))[1]
    np.testing.assert_array_equal(session.load_state(session.save_state(state)), state)
    next(each for each in proto.metadata_props
         if each.key == "sterna.fraction_bits").value = "[1, 2]"
    with pytest.raises(OnnxFileError, match=r"sterna\.fraction_bits are 2 numbers"):
        Session(proto)


def test_what_is_for_text_refuses_a_network(network: QuantizedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the form fast is for language models, and this"):
        build(network, "fast")
    session = Session(build(network))
    with pytest.raises(ValueError, match="a network over frames of 3 channels, not a language"):
        session.complete("text")
    with pytest.raises(ValueError, match="operators is for language models, and this is a network"):
        Session(build(network), ops=True)
    with pytest.raises(ValueError, match="over frames"):
        with_ops(build(network))


# Recordings -------------------------------------------------------------------------


def test_the_bundled_network_is_as_good_as_it_says_in_integers_and_in_onnx(
    vowels: tuple[QuantizedModel, Recordings],
) -> None:
    model, recordings = vowels
    held = model.provenance["held out"]
    found = accuracy(IntegerModel(model), recordings, model.integers)
    assert (found.recordings, found.right, found.clipped) == (370, 360, 0)
    assert abs(found.share - held["float"]) <= 0.003
    frames = [model.integers(each)[0] for each in recordings.frames]
    for one, other in zip(results_of(IntegerModel(model), frames),
                          results_of(Session(build(model)), frames), strict=True):
        np.testing.assert_array_equal(one, other)
    assert bundled_recordings().stat().st_size < 300_000
    assert bundled_path("vowels").stat().st_size < 20_000


def test_a_label_that_is_no_result_is_refused(network: QuantizedModel) -> None:
    recordings = Recordings([np.zeros((2, 3))], np.array([5]))
    with pytest.raises(ValueError, match=r"labels must be from 0 to 4, .* got 5 to 5"):
        accuracy(IntegerModel(network), recordings, network.integers)


def test_recordings_come_from_a_file_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    right = {"frames": np.arange(12.0).reshape(6, 2), "lengths": np.array([2, 4]),
             "labels": np.array([1, 0])}

    def load(**changes: object) -> Recordings:
        np.savez(path, **{name: value for name, value in {**right, **changes}.items()
                          if value is not None})
        return Recordings.load(path)

    found = load(step=0.5)
    assert found.frames[0].tolist() == [[0.0, 0.5], [1.0, 1.5]]
    assert found.labels.tolist() == [1, 0]
    load(held_out=np.array([False, True]))
    assert Recordings.load(path, held_out=True).labels.tolist() == [0]
    for changes, said in (
        ({"labels": None}, "the array labels is missing"),
        ({"frames": np.zeros(6)}, "frames must be numbers [frames, channels], got float64 [6]"),
        ({"lengths": np.array([2.0, 4.0])}, "lengths must be whole numbers [recordings]"),
        ({"lengths": np.array([2, 3])}, "lengths add up to 5, and there are 6 frames"),
        ({"lengths": np.array([6, 0])}, "recording 1 has no frames"),
        ({"lengths": np.array([8, -2])}, "lengths must be from 0"),
        ({"labels": np.array([1])}, "a label each, got 2 and 1 labels"),
        ({"held_out": np.array([True])}, "held_out must be booleans [recordings]"),
        ({"step": np.array("a")}, "step must be a number"),
        ({"frames": np.full((6, 2), np.nan)}, "recording 0 has a number that is not finite"),
    ):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: .*{re.escape(said)}"):
            load(**changes)
    path.write_text("no arrays")
    with pytest.raises(ValueError, match=r"not an \.npz of arrays"):
        Recordings.load(path)


@pytest.mark.parametrize(("text", "said"), [
    ("1,2\n3,4,5\n", "line 2 has 3 fields, and a frame has 2 channels"),
    ("a,b,c\n1,2\n", "line 1 has 3 fields, and a frame has 2 channels"),
    ("a,b\n1,\n", "line 2 has '' where there must be a finite number"),
    ("1,nan\n", "line 1 has 'nan' where there must be a finite number"),
    ("1,2\n\n3,4\n", "line 2 has 0 fields"),
    ("a,b\n1,2\nc,d\n", "line 3 has 'c' where"),
    ("a,b\n", "there is no frame in it"), ("", "there is no frame in it")])
def test_a_table_of_frames_is_checked(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "frames.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {said}')}"):
        read_frames(path, 2)


# Training ---------------------------------------------------------------------------


def test_a_network_is_trained_with_the_same_numbers_each_time_and_becomes_a_model() -> None:
    frames = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0)) * 3 + 1
    lengths = torch.tensor([6, 1, 3, 6, 2])
    networks = [Network(2, 4, d=8, layers=1, dff=12, seed=seed).fit(frames) for seed in (0, 0, 1)]
    pooled = [network(frames, lengths)[1] for network in networks]
    assert torch.equal(pooled[0], pooled[1])
    assert not torch.equal(pooled[0], pooled[2])
    every, alone = networks[0](frames[:3, 2:3])
    torch.testing.assert_close(alone[0], pooled[0][2])
    torch.testing.assert_close(alone[0], every.mean(dim=(0, 1)))
    for profile, close in ((S16, 0.02), (C12, 0.5)):
        model = networks[0].to_model(profile)
        results, _ = IntegerModel(model).run(model.integers(frames.transpose(0, 1).numpy())[0])
        real = results / 2.0 ** model.logit.frac
        assert np.abs(real - networks[0](frames)[0].transpose(0, 1).detach().numpy()).mean() < close
    with pytest.raises(ValueError, match="d must be"):
        Network(2, 4, d=0)


# Verilog ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("sequences", "seed", "kinds"), [
    (1, 135, "GLU PASS RESIDUAL MLGRU PASS PASS MLGRU BEGIN PASS LAST"),
    (4, 235, "RESIDUAL PASS MLGRU BEGIN RESIDUAL GLU HEAD"),
])
def test_every_tensor_of_recordings_in_verilog_is_that_of_both_references(
    sequences: int, seed: int, kinds: str,
) -> None:
    model = random_layers(seed, 12).to_model()
    assert [each.kind.name for each in model.stages] == kinds.split()
    recordings = [random_frames(model, length, seed=length) for length in (3, 5, 1)]
    report = simulate_network(
        model, recordings, sequences=sequences, port_bits=64 if sequences > 1 else 0, **SMALL)
    assert report.passed, report.failure
    assert [each.name for each in report.phases] == [
        "recordings", "no pauses", "cut in mid-vector", "after a reset in mid-vector", "extremes"]
    # Four sequences go together: of three recordings one comes twice, and all are as long as the
    # longest.
    frames = {1: 3 + 5 + 1, 4: 4 * 5}[sequences]
    tensors, = record_activations(model, recordings[:1], tensor_names(model))
    sizes = sum(each[0].size for name, each in tensors.reference.items()
                if not name.endswith((".c.sigmoid", ".gate.sigmoid")))     # within a silu
    outputs = model.stages[-1].rows
    # A sum that leaves is at the port of results alone, and results are in the trace as well.
    sizes += -outputs if model.stages[-1].kind is StageKind.LAST else outputs
    assert report.phases[0].checks.onnx.values == sizes * frames


@pytest.mark.slow
def test_a_wrong_weight_is_named(network: QuantizedModel, tmp_path: Path) -> None:
    name, *_ = network.projections
    one = network.projections[name]
    other = replace(network, projections={
        **network.projections, name: replace(one, weight=-one.weight)})
    emitted = emit_verilog(other, None, tmp_path / "network", **SMALL)
    report = simulate_network(
        network, [random_frames(network, 4)], emitted=emitted, engine="cpp")
    assert not report.passed
    assert report.failure is not None
    assert report.failure.startswith("phase 'recordings': token 0, results of sequence 0, from")


@pytest.mark.long
@pytest.mark.parametrize("simulator", [
    Simulator.VERILATOR, pytest.param(Simulator.ICARUS, marks=pytest.mark.needs("iverilog"))])
def test_every_tensor_of_ten_recordings_in_verilog(
    vowels: tuple[QuantizedModel, Recordings], simulator: Simulator,
) -> None:
    model, recordings = vowels
    shortest = sorted((model.integers(each)[0] for each in recordings.frames), key=len)[:10]
    report = simulate_network(model, shortest, simulator=simulator, rows=8, cols=32)
    assert report.passed, report.failure
    # Of each frame, and with the extremes among them.
    assert report.checks.onnx.values > 2000 * sum(map(len, shortest))


@pytest.mark.long
def test_all_recordings_in_verilog(vowels: tuple[QuantizedModel, Recordings]) -> None:
    model, recordings = vowels
    frames = [model.integers(each)[0] for each in recordings.frames]
    report = simulate_network(model, frames, engine="cpp", rows=2, cols=8, quant_lanes=1,
                              compact=True)
    assert report.passed, report.failure
    assert report.checks.onnx.values == 9 * sum(map(len, frames))


# On a board -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_board_gives_the_results_of_the_reference_and_forgets_when_told(
    network: QuantizedModel, tmp_path: Path,
) -> None:
    board = board_named("ulx3s-85f")
    params = BoardParams(board, clock_hz=25_000_000, baud=25_000_000 // 16)
    design = board_design(network, params, {"rows": 4, "cols": 4, "quant_lanes": 2})
    assert design.core.post_lanes == 2      # so that words are put together and taken apart
    simulation = BoardSimulation(design, tmp_path / "board")
    conversation, reference = FrameConversation(simulation), IntegerModel(network)
    frames = random_frames(network, 6)
    expected = reference.run(frames[None])[0][0].tolist()

    def given(count: int) -> list[list[int]]:
        return [conversation.run(frame, 5) for frame in frames.tolist()[:count]]

    conversation.meet()
    assert given(6) == expected
    conversation.forget()
    assert given(2) == expected[:2]
    conversation.meet()
    assert given(3) == expected[:3]
    # In mid-frame: nothing of it is left.
    feed = order_bytes(Order.FEED, 12345)
    simulation.write(feed + order_bytes(Order.RESTART) + feed)
    assert simulation.read(3) == bytes((Answer.DONE, Answer.REFUSED, Answer.DONE))
    conversation.meet()
    assert given(2) == expected[:2]
    simulation.write(order_bytes(Order.ASK, 1))
    assert simulation.read(1) == bytes((Answer.REFUSED,))
    # While a frame is computed, and while its results are sent.
    for cycles in (1, 300, 900):
        simulation.write(3 * feed)
        simulation.run(3 * 40 * 16 + cycles)
        conversation.meet()
        assert given(1) == expected[:1]
    with pytest.raises(ConversationError, match="is its network of this model"):
        conversation.run(frames[0].tolist(), 6)
    assert simulation.framing_errors == 0


@pytest.mark.slow
def test_run_asks_a_simulated_board(
    capsys: pytest.CaptureFixture[str], network: QuantizedModel, tmp_path: Path,
) -> None:
    model, table = tmp_path / "n.safetensors", tmp_path / "f.csv"
    network.save(model)
    np.savetxt(table, np.random.default_rng(1).normal(size=(4, 3)), delimiter=",")
    code, out, err = run(
        capsys, "run", model, table, "--port", "sim", "--baud", 750_000, "--check")
    assert code == 0
    assert "20 values compared with the integer reference, 0 mismatches" in err
    assert run(capsys, "run", model, table)[1] == out


@pytest.mark.parametrize(("arguments", "said"), [
    (("--clock", 24), "--clock goes with --port"),
    (("--port", "/dev/none"), "cannot open the serial port /dev/none"),
    (("--port", "sim", "--baud", 10**7), "a bit must have at least 16 cycles")])
def test_a_board_that_cannot_be_asked_is_refused(
    arguments: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str],
    network: QuantizedModel, tmp_path: Path,
) -> None:
    model, table = tmp_path / "n.safetensors", tmp_path / "f.csv"
    network.save(model)
    table.write_text("1,2,3\n")
    assert said in refusal(capsys, "run", model, table, *arguments)


def test_a_network_of_several_sequences_or_wide_results_has_no_serial_line(
    network: QuantizedModel,
) -> None:
    board = board_named("icebreaker")
    with pytest.raises(ValueError, match="a serial line has one sequence, the network 2"):
        board_core(network, board, {"sequences": 2})
    with pytest.raises(ValueError, match="a network is in the bitstream: it goes without --sdram"):
        board_core(network, board_named("ulx3s-85f"), sdram=True)


# The command ------------------------------------------------------------------------


def test_the_commands_take_a_network(
    capsys: pytest.CaptureFixture[str], network: QuantizedModel, tmp_path: Path,
) -> None:
    model, graph, table, data = (
        tmp_path / name for name in ("n.safetensors", "n.onnx", "f.csv", "d.npz"))
    network.save(model)
    frames = np.random.default_rng(0).normal(size=(6, 3))
    frames[2, 1] = 1e6
    np.savetxt(table, frames, delimiter=",", header="a,b,c", comments="")
    x, _ = network.integers(frames)
    results, _ = IntegerModel(network).run(x[None])

    def printed(*arguments: object) -> str:
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        return out

    assert "0 mismatches" in printed("export", model, "-o", graph)
    code, out, err = run(capsys, "run", model, table, "--check")
    assert code == 0
    assert "1 of 18 numbers are beyond the range" in err
    assert "values compared with onnxruntime, 0 mismatches" in err
    rows = np.loadtxt(out.splitlines()[1:], delimiter=",")
    np.testing.assert_array_equal(rows * 2.0 ** network.logit.frac, results[0])
    assert printed("run", graph, table) == out
    printed("run", model, table, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == out
    found = json.loads(printed("run", model, table, "--json"))
    assert (found["results"], found["clipped"]) == (results[0].tolist(), 1)

    label = int(results[0].sum(axis=0).argmax())
    np.savez(data, frames=frames, lengths=[6], labels=[label])
    for chosen in ((model,), (model, "--onnx", "exact"), (graph,)):
        found = json.loads(printed("evaluate", *chosen, "--data", data, "--json"))
        assert found.items() >= {"accuracy": 1.0, "recordings": 1, "clipped": 1}.items()
    for file in (model, graph):
        assert "d 8, 1 layers, frames of 3 channels; " in printed("info", file)
    found = json.loads(printed("report", model, "--rows", 2, "--cols", 8, "--clock-mhz", 12,
                               "--json"))
    slow = json.loads(printed("report", model, "--rows", 2, "--cols", 8, "--port-bits", 32,
                              "--clock-mhz", 12, "--memory", 0.012, "--json"))
    params = NETWORK.params_for(network, {"rows": 2, "cols": 8, "port_bits": 32})
    # The memory gives a word of the port in four cycles, and a frame takes all of them.
    assert slow["period"] >= 4 * sum(
        each.words * params.weight_parts + each.headers * params.row_beats * params.header_parts
        for each in params.placed)
    emitted = json.loads(printed("verilog", model, "-o", tmp_path / "v", "--rows", 2, "--cols", 8,
                                 "--json"))
    assert found["latency"] == emitted["cycles"][0]["latency"]
    assert found["frames_per_second"] == 12e6 / found["period"]
    spent = [sum(uses.values()) for uses in found["stages"].values()]
    assert sum(spent) == found["period"]
    words = NETWORK.params_for(network, {"rows": 2, "cols": 8}).most_weights
    four = json.loads(printed(
        "report", model, "--rows", 2, "--cols", 8, "--sequences", 4, "--json"))
    for each in (found, four):
        assert sum(uses["beats"] for uses in each["stages"].values()) == words


def test_the_commands_refuse_what_is_for_the_other_kind_of_model(
    capsys: pytest.CaptureFixture[str], network: QuantizedModel, tmp_path: Path,
) -> None:
    model, table, output = (tmp_path / name for name in ("n.safetensors", "f.csv", "out"))
    network.save(model)
    table.write_text("1,2\n")
    said = "a network over frames of 3 channels, not a language model"
    for command in (("generate", model), ("chat", model, "--port", "sim")):
        assert said in refusal(capsys, *command), command
    assert "unit core is of a language model" in refusal(
        capsys, "verilog", model, "--unit", "core", "-o", output)
    assert "--text goes with a language model" in refusal(
        capsys, "evaluate", model, "--text", table)
    assert "needs recordings: give --data" in refusal(capsys, "evaluate", model)
    assert "--data goes with a network" in refusal(capsys, "evaluate", "micro", "--data", table)
    assert "line 1 has 2 fields, and a frame has 3 channels" in refusal(
        capsys, "run", model, table)
    assert "micro: a language model, which takes no frames" in refusal(
        capsys, "run", "micro", table)
    assert "cocotb compares every tensor anyway" in refusal(capsys, "simulate", model, "--trace")
    assert "--target is for language models" in refusal(
        capsys, "report", model, "--target", "ecp5-85k")
    assert not output.exists()


def test_a_damaged_network_is_refused(network: QuantizedModel, tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    content = bytearray(network.to_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(QuantizedFileError, match="the checksum does not match"):
        load_model(path)
