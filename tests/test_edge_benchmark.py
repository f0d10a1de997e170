"""The edge benchmark measures every contestant, keeps what is done and says what is missing.

No time is asserted: the machine is shared.
"""

from __future__ import annotations

import doctest
import json

import edge
import edge_report
import numpy as np
import pytest
import timing

from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

TINY = ["--quick", "--quiet", "--rounds", "2", "--sizes", "16x24", "--shapes", "256x64"]


@pytest.mark.slow
def test_quick_run_writes_finite_numbers_for_every_contestant(tmp_path, capsys):
    output = tmp_path / "edge"
    assert edge.main([*TINY, "--cold", "-o", str(output)]) == 0
    text = output.with_suffix(".json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    record = json.loads(text)
    (model,), (product,) = record["models"], record["products"]
    forms = record["settings"]["forms"]
    assert "float32" in forms
    assert set(forms) | set(record["missing"]) >= set(edge.contestants.NAMES)
    assert model["failed"] == product["failed"] == {}
    for part in ("step", "prefill"):
        for state in ("warm", "cold"):
            assert list(model[part][state]) == forms
    assert list(model["files"]) == forms
    assert len(product["warm"]) >= 3
    page, printed = output.with_suffix(".md").read_text(), capsys.readouterr().out
    for name in forms:
        assert f"| {name} |" in page
        assert name in printed
    assert str(tmp_path) not in page + text
    assert b"<svg" in output.with_suffix(".svg").read_bytes()


def test_without_a_compiler_or_llama_the_rest_is_measured(tmp_path, monkeypatch, capsys):
    def build_ops():
        raise edge.OpsError("g++ is not installed")

    monkeypatch.setattr(edge, "build_ops", build_ops)
    monkeypatch.setattr(edge, "find_ggml", lambda: None)
    monkeypatch.setattr(edge, "measure_model", measured)
    output = tmp_path / "edge"
    assert edge.main([*TINY, "-o", str(output)]) == 0
    record = json.loads(output.with_suffix(".json").read_text())
    assert record["missing"]["exact + ops"] == "g++ is not installed"
    assert "llama-cpp-python" in record["missing"]["llama.cpp"]
    assert len(record["products"][0]["warm"]) == 3
    assert "g++ is not installed" in capsys.readouterr().err
    assert "- exact + ops: g++ is not installed" in output.with_suffix(".md").read_text()


def measured(d, dff, *_):
    """In place of a measurement; of d = 8 it is interrupted."""
    if d == 8:
        raise KeyboardInterrupt
    return {"d": d, "dff": dff, "weights": 1, "files": {}, "failed": {}}


def test_an_interrupted_run_leaves_the_sizes_that_are_done(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(edge, "measure_model", measured)
    output = tmp_path / "edge"
    assert edge.main(["--sizes", "16x24", "8x12", "-o", str(output), "--quiet"]) == 130
    (kept,) = json.loads(output.with_suffix(".json").read_text())["models"]
    assert kept["d"] == 16
    assert "has the sizes that are done" in " ".join(capsys.readouterr().err.split())


def test_a_form_that_cannot_be_loaded_is_left_out_with_its_reason(monkeypatch):
    def open_call(name, *_):
        if name == "fast":
            raise RuntimeError("no such\nkernel")
        return lambda: None

    monkeypatch.setattr(edge.contestants, "open_call", open_call)
    monkeypatch.setattr(edge.contestants, "probe", lambda *_: {"load_ms": 1.0})
    model = edge.measure_model(16, 24, edge.read_options(TINY), ["float32", "fast"], None)
    assert model["failed"] == {"fast, step": "no such kernel", "fast, prefill": "no such kernel"}
    assert list(model["step"]["warm"]) == ["float32"]


@pytest.mark.parametrize("wrong", [["--sizes", "16"], ["--sizes", "0x4"], ["--rounds", "0"]])
def test_wrong_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        edge.read_options(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_a_folder_without_ggml_is_refused(tmp_path, capsys):
    assert edge.main(["--ggml", str(tmp_path), "-o", str(tmp_path / "edge")]) == 2
    assert "libggml-base" in capsys.readouterr().err


def test_examples_in_the_benchmark_hold():
    for module in (edge, timing, edge_report):
        found = doctest.testmod(module)
        assert (found.failed, found.attempted > 0) == (0, True)


def test_a_call_of_each_in_turn_is_timed():
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    taken = timing.measure(calls, rounds=2, cold=False, seconds=60)
    assert order == ["a", "b", "a", "a", "b", "b", "b", "b", "a", "a"]
    summary = timing.summarise(taken, ["a", "c"])
    assert summary["a"]["speed"] == {"a": [1.0, 1.0, 1.0]}
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        timing.measure(calls, rounds=0, cold=False, seconds=1)


def test_dense_model_is_the_integer_model_in_float(tmp_path):
    torch = pytest.importorskip("torch")
    import edge_torch as dense

    model = random_model(ModelConfig(d=32, layers=2, dff=48), S16)
    path = dense.write_dense(model, tmp_path / "dense.pt")
    loaded = dense.open_dense(path, model.config, S16)
    tokens = np.random.default_rng(3).integers(0, 256, (1, 20))
    expected, end = IntegerModel(model).run(tokens)
    logits, state = loaded(torch.from_numpy(tokens.T.copy()), torch.zeros(2, 1, 32))
    error = logits[:, 0].numpy() - expected[0] / 2 ** S16.logit.frac
    assert np.sqrt((error ** 2).mean()) < 0.1 * expected.std() / 2 ** S16.logit.frac
    np.testing.assert_allclose(state.numpy(), end / 2 ** S16.h.frac, atol=0.3)
    at = torch.zeros(2, 1, 32)
    for token in tokens[0]:
        last, at = loaded(torch.tensor([token]), at)
    np.testing.assert_allclose(last.numpy(), logits[-1].numpy(), atol=1e-3)
