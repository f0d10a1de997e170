"""Float graphs of any mixers: they follow torch, say what they are, and a wrong one is noticed."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import torch
from command_line import refusal, run
from mixer_parts import built, pattern_of
from onnx import numpy_helper
from torch import Tensor, nn

from sterna.cli.main import main
from sterna.model.config import ModelConfig
from sterna.model.torch.mixers.attention import Attention
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.onnx_float.check import FloatReport, GraphCodes, check_float, with_codes
from sterna.model.torch.onnx_float.operators import has_linear_attention, translations
from sterna.model.torch.onnx_float.writer import (
    ExportError,
    export_float,
    quietly,
    state_tensors,
    trace,
)
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.study.contract import shaken
from sterna.model.torch.training.checkpoint import Checkpoint, save_checkpoint


def tiny(**choices: Any) -> ModelConfig:
    """Tracing a graph takes seconds, so there is one layer."""
    return ModelConfig(**{"d": 16, "layers": 1, "dff": 16, "vocab": 32} | choices)


GROWING = tiny(mixer="window(size=5)", weights="float")
"""Its state grows, then stays."""


def lively(config: ModelConfig) -> Any:
    """A language model of which no part starts at zero."""
    return shaken(LanguageModel(config), torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder, model, said = tmp_path_factory.mktemp("graphs"), lively(GROWING), io.StringIO()
    checkpoint = folder / "checkpoint.pt"
    save_checkpoint(Checkpoint(
        model.config, {}, "none", "", 0, 0, 0.0, model.state_dict(), {}, ()), checkpoint)
    with contextlib.redirect_stdout(said):
        code = main(["export", str(checkpoint), "-o", str(folder / "new"), "--check", "40",
                     "--quiet", "--json"])
    return SimpleNamespace(model=model, checkpoint=checkpoint, folder=folder / "new", code=code,
                           results=json.loads(said.getvalue()))


def test_a_checkpoint_becomes_two_graphs_that_follow_torch(exported):
    assert exported.code == 0
    assert [Path(each["file"]).name for each in exported.results] == ["step.onnx", "sequence.onnx"]
    for each in exported.results:
        assert 0 < each["difference"] < 1e-4
        assert (each["tokens"], each["codes"], each["missing"]) == (40, 0, 0)
        data = Path(each["file"]).read_bytes()      # without traces of where it was made
        assert b".py" not in data
        assert str(exported.folder).encode() not in data


@torch.no_grad()
def test_a_prompt_and_steps_after_it_run_by_what_the_files_say(exported):
    """Three texts; the window is full in the middle."""
    texts = torch.arange(36).reshape(3, 12) % 32
    expected, _ = exported.model(texts)
    found = {each.key: each.value
             for each in onnx.load(exported.folder / "step.onnx").metadata_props}
    states = [np.zeros([3 if size == "batch" else size for size in each["at_start"]],
                       dtype=each["dtype"]) for each in json.loads(found["sterna.states"])]
    sequence, step = (onnxruntime.InferenceSession(exported.folder / f"{name}.onnx")
                      for name in ("sequence", "step"))
    names = [each.name for each in step.get_inputs()]
    assert names == ["tokens", "layer0.state0", "layer0.state1"]
    assert [each.name for each in step.get_outputs()] == [
        "logits", *(f"{name}_out" for name in names[1:])]
    assert [each.shape for each in step.get_inputs()] == [
        ["batch"], *(["batch", 1, f"layer0.state{index}.axis2", 16] for index in (0, 1))]
    assert sequence.get_inputs()[0].shape == ["batch", "time"]
    logits, *states = sequence.run(None, dict(zip(
        names, [texts[:, :3].numpy(), *states], strict=True)))
    np.testing.assert_allclose(logits, expected[:, :3], atol=1e-5)
    for at in range(3, 12):
        logits, *states = step.run(None, dict(zip(
            names, [texts[:, at].numpy(), *states], strict=True)))
        np.testing.assert_allclose(logits, expected[:, at], atol=1e-5)
    assert found["sterna.config"] == json.dumps(GROWING.to_json(), sort_keys=True)
    assert "not the integers" in found["sterna.arithmetic"]


def test_a_wrong_weight_and_a_wrong_axis_are_noticed(exported, tmp_path, capsys, monkeypatch):
    wrong = tmp_path / "step.onnx"
    monkeypatch.setattr("sterna.model.torch.onnx_float.writer.export_float",
                        lambda *_, **__: [wrong])
    command = ("export", exported.checkpoint, "-o", tmp_path, "--check", 40, "--quiet")
    proto = onnx.load(exported.folder / "step.onnx")
    weight = next(each for each in proto.graph.initializer if "embedding" in each.name)
    values = numpy_helper.to_array(weight).copy()
    values[3, 5] += 1e-3
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(proto, wrong)
    report = check_float(exported.model, wrong, tokens=40)
    assert (report.close, report.difference > 1e-4) == (False, True)
    code, out, _ = run(capsys, *command)
    assert (code, "and 0.0001 is allowed" in out) == (1, True)

    proto = onnx.load(exported.folder / "sequence.onnx")
    (state,) = (each for each in proto.graph.input if each.name == "layer0.state0")
    state.type.tensor_type.shape.dim[2].dim_value = 7
    onnx.save(proto, wrong)
    code, out, _ = run(capsys, *command, "--json")
    assert (code, json.loads(out)[0]["difference"]) == (1, None)
    for _ in range(2):
        report = check_float(exported.model, wrong, tokens=40)
        assert (report.close, report.where[:15]) == (False, "it does not run")
        proto.graph.node[0].op_type = "Nothing"     # of which onnxruntime makes no session
        onnx.save(proto, wrong)


def test_a_ternary_graph_is_compared_by_its_own_codes(tmp_path):
    """Torch with other numbers rounds some codes the other way, goes on with the graph's, and
    still comes to the same logits; with a code that is no neighbour it says so."""
    model = lively(tiny())
    (path,) = export_float(model, tmp_path, graphs=("sequence",))
    report = check_float(model, path, tokens=40)
    assert report.close
    # x, output, gate and up, down, head; twice, as the text is read twice.
    assert report.codes == 2 * 2 * 40 * 5 * 16
    weight = model.embedding.weight.data
    weight.mul_(1 + 2e-5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    off = check_float(model, path, tokens=40)
    assert off.flipped > report.flipped
    assert 0 < off.farthest < 0.01
    assert off.close
    weight[:, 0].neg_()
    assert check_float(model, path, tokens=40).missing > 0


def test_codes_are_found_by_value_whether_from_a_loop_or_not():
    report = FloatReport(2)
    codes = GraphCodes(report)
    codes.take([(np.array([[1.0, -127.0]], dtype=np.float32), False),
                (np.array([[[3.0, 4.0]], [[5.0, 6.0]]], dtype=np.float32), True)])
    assert codes(torch.tensor([[5.2, 5.499]])).tolist() == [[5.0, 6.0]]     # one turn of the loop
    assert (report.codes, report.flipped, report.missing) == (2, 1, 0)
    assert report.farthest == pytest.approx(0.001, abs=1e-5)
    assert codes(torch.tensor([3.0, 4.0, 5.0, 6.0])).tolist() == [3, 4, 5, 6]     # all of them
    assert codes(torch.tensor([0.4, 0.6])).tolist() == [0.0, 1.0]       # nothing like it
    assert (report.codes, report.flipped, report.missing) == (6, 1, 1)


def test_rounded_values_become_outputs_also_from_inside_of_a_loop():
    proto = onnx.parser.parse_model('''
        <ir_version: 10, opset_import: ["": 20]>
        graph (float start, float[n] xs) => (float end) {
            [loop] end, ys = Scan <num_scan_inputs: int = 1,
                body: graph = body (float before, float x) => (float after, float y) {
                    y = Add(before, x)
                    rounded = Round(y)
                    after = Identity(rounded)
                }> (start, xs)
            all = Round(ys)
        }''')
    tapped, names = with_codes(proto)
    assert [loop for _, loop in names] == [True, False]
    session = onnxruntime.InferenceSession(tapped.SerializeToString())
    end, inside, outside = session.run(None, {
        "start": np.array(0, dtype=np.float32), "xs": np.array([0.6, 0.6, 0.8], dtype=np.float32)})
    assert end == 3
    assert inside.tolist() == [1.0, 2.0, 3.0]
    assert outside.tolist() == [1.0, 2.0, 3.0]
    assert len(proto.graph.output) == 1


class Positions(nn.Module):
    """What blocks of tokens need of an exporter."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = -(-x.shape[0] // 4)     # a floor below zero
        return x.argsort(stable=True), x.sort(stable=True, descending=True)[1], torch.ones(count)


def test_operators_that_the_exporter_lacks():
    x = torch.tensor([2, 1, 2, 1, 2, 1, 0, 0, 1])
    with quietly(), torch.no_grad():
        program = torch.onnx.export(
            Positions(), (x,), dynamo=True, verbose=False, custom_translation_table=translations(),
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    got = session.run(None, {session.get_inputs()[0].name: x[:7].numpy()})
    for found, right in zip(got, Positions()(x[:7]), strict=True):
        assert found.tolist() == right.tolist()


class Restless(TokenMixer):
    """Few tokens are read otherwise than many: a branch in Python, which no graph can hold."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.out = init.linear(init.d, init.d)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if x.shape[0] > 40:
            first, state = self.forward(x[:40], state)
            rest, state = self.forward(x[40:], state)
            return torch.cat([first, rest]), state
        sums = state[0] + x.cumsum(0)
        return self.out(sums), (sums[-1],)

    def initial_state(self, x: Tensor) -> State:
        return (x.new_zeros(x.shape[-2:]),)


class Looping(Attention):
    """A loop in Python over a state that grows."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        rows = []
        for each in x.unbind(0):
            y, state = super().forward(each.unsqueeze(0), state)
            rows.append(y[0])
        return torch.stack(rows), state


class Capped(Attention):
    """Another branch in Python, by the tokens before and those of now."""

    forgets = True

    def kept(self, keys: Tensor) -> Tensor:
        return keys[:, :, -30:].clone() if keys.shape[2] > 30 else keys


class Rows(Restless):
    """A state that gets a row for every twenty tokens."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        every = torch.cat([state[0], x.transpose(0, 1)], dim=1)
        full = every.shape[1] // 20
        rows = every[:, :20 * full].unflatten(1, (full, 20)).sum(2)
        return self.out(x), (every[:, 20 * full:], torch.cat([state[1], rows], dim=1))

    def initial_state(self, x: Tensor) -> State:
        none = x.new_zeros(x.shape[-2], 0, x.shape[-1])
        return none, none


class Peeking(nn.Module):
    """Where it goes on depends on a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


def test_an_attempt_to_trace_prints_nothing(capsys):
    with quietly(), pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Peeking(), (torch.ones(3),), strict=False)
    assert capsys.readouterr() == ("", "")


class Ready(Restless):
    """A state that begins elsewhere than at zero."""

    def initial_state(self, x: Tensor) -> State:
        return (x.new_ones(x.shape[-2:]),)


def test_mixers_of_ones_own_loop_where_they_branch_or_are_refused(tmp_path):
    def own(name: str) -> LanguageModel:
        return LanguageModel(tiny(mixer=f"{__file__}:{name}", weights="float"))

    tensors, *_ = state_tensors(own("Rows"))
    assert [each.growing for each in tensors] == [(1,), (1,)]      # although they grow seldom
    assert trace(
        own("Restless"), "sequence", *state_tensors(own("Restless")))[1] == [0]
    with pytest.raises(ExportError, match=r"Capped: it does something else for more than 29 token"):
        export_float(own("Capped"), tmp_path, graphs=("step",))
    with pytest.raises(ExportError, match=r"Looping cannot be traced for any number of tokens .*a "
                                          r"loop over its step needs a state that does not grow"):
        export_float(own("Looping"), tmp_path, graphs=("sequence",))
    with pytest.raises(ValueError, match="the state of layer 0 does not start at zeros"):
        export_float(own("Ready"), tmp_path)
    with pytest.raises(ValueError, match="mixers that take at least 4 tokens, got 3"):
        export_float(LanguageModel(tiny(mixer="gmlp(length=3)")), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_apply_are_refused(exported, tmp_path, capsys, monkeypatch):
    path = exported.checkpoint
    for arguments, message in (
        ((path, "--form", "exact"), "--form goes with a quantised model"),
        ((path, "--graphs", "all"), "--graphs must be one of step, sequence, both"),
        ((path, "--check", -1), "--check must be a whole number from 0 to 65536, got -1"),
        (("tiny", "--linear-attention"), "--linear-attention goes with a checkpoint"),
        ((tmp_path / "no.pt",), "cannot read the checkpoint"),
    ):
        assert message in refusal(capsys, "export", *arguments, "-o", tmp_path / "x", "--quiet")
    assert "--output of a checkpoint is a folder" in refusal(
        capsys, "export", path, "-o", tmp_path / "m.onnx", "--quiet")
    monkeypatch.setattr("sterna.model.torch.onnx_float.writer.has_linear_attention", lambda: False)
    assert "this onnxruntime does not have the operator LinearAttention" in refusal(
        capsys, "export", path, "-o", tmp_path / "x", "--linear-attention", "--quiet")
    assert "the graph is of the float model of a checkpoint" in refusal(
        capsys, "generate", exported.folder / "step.onnx", "--quiet")
    assert list(tmp_path.iterdir()) == []


def small(name: str) -> str:
    """A mixer whose limits come into play within the texts of these tests, causal if it can be."""
    return pattern_of(name, length="96", bucket="32", causal="true")


CAUSAL = [small(name) for name in TOKEN_MIXERS.names()
          if not name.startswith("shift") and built(small(name)).causal]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("choices", [
    *({"mixer": each, "weights": "float"} for each in CAUSAL),
    # Codes at a projection's input are made in chunks, in loops and in blocks.
    *({"mixer": small(name)} for name in ("gru", "hgrn2", "bigbird")),
    {"mixer": "mlgru + local(block=4)", "layers": 2, "norm": "post", "channel": "relu2"},
    {"mixer": "gru", "layers": 2, "channel": "glumml", "residual": "reversible",
     "weights": "float"},
], ids=lambda choices: " ".join(map(str, choices.values())))
def test_both_graphs_of_any_causal_mixers_follow_torch(choices, tmp_path):
    model = lively(tiny(vocab=64, **choices))
    for path in export_float(model, tmp_path):
        report = check_float(model, path, tokens=150)
        assert report.close, f"{path.name}: {report}"
        assert (report.codes == 0) == (choices.get("weights") == "float")


@pytest.mark.long
@pytest.mark.skipif(not has_linear_attention(), reason="this onnxruntime does not have it")
@pytest.mark.parametrize("name", [
    "mlgru", "hgrn2", "linear", "linear(decay=2)", "performer"])
def test_graphs_with_linear_attention_follow_torch(name, tmp_path):
    model = lively(tiny(vocab=64, mixer=name, weights="float"))
    for at, parameter in model.named_parameters():
        if at.endswith(("fcg.f.bias", "qfv.f.bias")):       # gates shut, and open
            parameter.data[:8] = torch.tensor([-200.0, 200.0]).repeat(4)
    (path,) = export_float(model, tmp_path, graphs=("sequence",), use_linear_attention=True)
    assert [each.op_type for each in onnx.load(path).graph.node].count("LinearAttention") == 1
    assert check_float(model, path, tokens=150).close
    assert check_float(model, path, tokens=9).difference < 1e-5      # before many are added up


@pytest.mark.long
def test_the_same_model_gives_the_same_bytes(exported, tmp_path):
    for path in export_float(exported.model, tmp_path):
        assert path.read_bytes() == (exported.folder / path.name).read_bytes()
