"""The scripts that time attention by length, and read a long text with a window and with sinks."""

import json
import math
import sys

import attention
import numpy as np
import pytest
import streaming
import torch
import torch.nn.functional as F

from sterna.model.config import ModelConfig
from sterna.model.torch.network.recurrence import naive_mlgru
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.study.contract import shaken
from sterna.model.torch.training.checkpoint import Checkpoint, save_checkpoint


def test_cores_compute_what_they_are_called():
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 2, 40, 8, generator=generator, dtype=torch.float64)
    scores = (q * 8 ** -0.5 @ k.transpose(-1, -2)).exp()
    features = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)
    for name, weights in (
            ("softmax", scores), ("softmax fused", scores), ("softmax causal", scores.tril()),
            ("linear", features), ("linear causal", features.tril())):
        expected = weights / weights.sum(-1, keepdim=True) @ v
        torch.testing.assert_close(attention.CORES[name](q, k, v), expected, rtol=1e-5, atol=1e-6)
    f, c, g = torch.randn(3, 40, 2, 8, generator=generator, dtype=torch.float64)
    states = naive_mlgru(f.sigmoid(), F.silu(c), torch.zeros(2, 8).double())
    torch.testing.assert_close(attention.CORES["mlgru"](f, c, g), g.sigmoid() * states)


@pytest.mark.parametrize("part", ["core", "float", "ternary"])
def test_attention_is_timed_in_every_part(part, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [
        "attention.py", "--part", part, "--lengths", "4", "9", "--batch", "2", "--runs", "2",
        "--backward", "-o", str(tmp_path)])
    monkeypatch.setattr(attention, "keep_memory", lambda: None)     # for the whole process
    attention.main()
    cells = json.loads((tmp_path / "attention.json").read_text())["cells"]
    assert [(cell["contestant"], cell["length"], cell["runs"]) for cell in cells] == [
        (name, length, 2) for length in (4, 9) for name in attention.CORES]
    assert all(name in (tmp_path / "attention.svg").read_text() for name in attention.CORES)


def test_a_text_is_read_in_three_forms_of_the_same_weights(tmp_path, monkeypatch):
    config = ModelConfig(d=16, layers=2, dff=24, mixer="attention(heads=2) + attention",
                         weights="float")
    model = LanguageModel(config).double()
    shaken(model, torch.Generator().manual_seed(3))
    for block in model.blocks():
        block.mixer.theta = 77.0
    monkeypatch.setattr(streaming, "PIECE", 9)
    for form in streaming.FORMS:
        other = streaming.in_form(model, form)
        torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
        assert [block.mixer.theta for block in other.blocks()] == [77.0, 77.0]
        tokens = torch.arange(71) * 7 % 256
        with torch.no_grad():
            logits, _ = other(tokens[:-1].unsqueeze(0))
        whole = F.cross_entropy(logits[0], tokens[1:], reduction="none") / math.log(2)
        np.testing.assert_allclose(streaming.read(other, tokens, lambda at: None), whole)
    weights = model.float().state_dict()
    save_checkpoint(Checkpoint(config, {}, "none", "", 0, 0, 0.0, weights, {}, ()),
                    tmp_path / "checkpoint.pt")
    monkeypatch.setattr(streaming, "PIECE", 256)
    monkeypatch.setattr(sys, "argv", ["streaming.py", str(tmp_path / "checkpoint.pt"), "-o",
                                      str(tmp_path), "--tokens", "600"])
    streaming.main()
    full, window, sinks = json.loads((tmp_path / "streaming.json").read_text())["forms"]
    assert full["first"] == window["first"] == sinks["first"]
    assert window["between"] != full["between"] != sinks["between"]
    assert sinks["mixer"] == "sinks(heads=2, sinks=4, size=252) + sinks(sinks=4, size=252)"
    assert "the first 4 and the newest 252" in (tmp_path / "streaming.svg").read_text()
