"""``sterna bench streaming``: one model's weights in three forms, and what is said of them."""

import json
import math
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import refusal, run

from sterna.model.config import ModelConfig
from sterna.model.mixers.attention import Attention
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study import streaming
from sterna.model.study.streaming import (
    FORMS,
    Streaming,
    StreamingResult,
    decode,
    in_form,
    read,
    stream,
)
from sterna.model.training.checkpoint import Checkpoint, save_checkpoint

PLAN = Streaming(tokens=70, sinks=2, size=6, most_keys=40)
TEXT = torch.arange(71) * 7 % 20


def silent(done: int, total: int) -> None:
    """Nobody is told."""


TWO_LAYERS = "attention(heads=2) + attention(heads=4, rope=false)"


def small_model(mixer: str = TWO_LAYERS) -> LanguageModel:
    model = LanguageModel(ModelConfig(
        d=16, layers=2, dff=24, vocab=20, mixer=mixer, weights="float")).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return model


def streamed(model: LanguageModel, **options: int) -> StreamingResult:
    return stream(model, TEXT, PLAN, decoded=options.get("decoded", 70),
                  note=lambda label: nullcontext(silent))


def test_forms_are_patterns_with_the_options_of_the_model() -> None:
    model = small_model()
    assert [in_form(model, form, PLAN).config.mixer for form in FORMS] == [
        "attention(heads=2) + attention(heads=4, rope=false)",
        "window(heads=2, size=8) + window(heads=4, rope=false, size=8)",
        "sinks(heads=2, sinks=2, size=6) + sinks(heads=4, rope=false, sinks=2, size=6)"]


def test_forms_have_the_weights_and_the_rotation_of_the_model() -> None:
    model = small_model()
    for block in model.blocks():
        assert isinstance(block.mixer, Attention)
        block.mixer.theta = 77.0
    for form in FORMS:
        other = in_form(model, form, PLAN)
        torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
        assert [block.mixer.theta for block in other.blocks()] == [77.0, 77.0]
    assert model.config.mixer.startswith("attention")
    assert type(model.blocks()[0].mixer) is Attention


def test_other_mixers_cannot_be_read_in_these_forms() -> None:
    with pytest.raises(ValueError, match=r"attention in every layer.* has attention \+ mlgru"):
        in_form(small_model("attention + mlgru"), "window", PLAN)


@pytest.mark.parametrize("form", FORMS)
def test_pieces_and_steps_are_the_losses_of_the_whole_text(
    form: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "_PIECE", 9)
    model = in_form(small_model(), form, PLAN)
    with torch.no_grad():
        logits, _ = model(TEXT[:-1].unsqueeze(0))
    whole = F.nll_loss(logits[0].log_softmax(-1), TEXT[1:], reduction="none") / math.log(2)
    np.testing.assert_allclose(read(model, TEXT, silent), whole, rtol=1e-9)
    np.testing.assert_allclose(decode(model, TEXT, silent).bits, whole, rtol=1e-9)


def test_nothing_is_lost_until_the_window_is_full() -> None:
    result = streamed(small_model())
    full, window, sinks = result.forms
    keys = PLAN.keys
    np.testing.assert_allclose(window.bits[:keys], full.bits[:keys], rtol=1e-9)
    np.testing.assert_allclose(sinks.bits[:keys], full.bits[:keys], rtol=1e-9)
    assert (np.abs(window.bits - sinks.bits)[keys:] > 1e-6).all()
    assert [len(each.bits) for each in result.forms] == [40, 70, 70]


def test_the_state_is_constant_and_as_declared() -> None:
    result = streamed(small_model())
    assert result.problems() == []
    full, *others = (each["state_words"] for each in result.as_dict()["forms"])
    assert full == 2 * 2 * 16 * 40
    assert others == [2 * 2 * 16 * 7] * 2
    assert [each.get("constant_state_words") for each in result.as_dict()["forms"]] == [
        None, *others]


def test_a_state_that_grows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    grown = decode(model, TEXT, silent)
    assert grown.constant_state(PLAN.keys) is None
    monkeypatch.setattr(streaming, "decode", lambda *arguments: grown)
    told = streamed(model).problems()
    assert "the state has no constant number of words, declared are 448" in told[0]
    assert "read token by token it differs by" in told[1]
    assert len(told) == 4


def test_bits_are_divided_by_the_bytes_of_their_tokens() -> None:
    result = streamed(small_model(), decoded=0)
    window = result.forms[1]
    sizes = np.arange(70) % 3 + 1
    of_bytes = replace(result, sizes=sizes)
    assert of_bytes.bits_per_byte(window, 8, 20) == pytest.approx(
        sum(window.bits[8:20]) / sum(sizes[8:20]))
    assert len(result.curve(window)) == 70 // 8
    assert result.curve(window)[1] == pytest.approx(window.bits[8:16].mean(), abs=1e-4)
    assert result.parts(result.forms[0])[2] is None     # it ended before the text did


@pytest.mark.parametrize(("options", "message"), [
    ({"tokens": 16}, "tokens must be a whole number from 17"),
    ({"sinks": -1}, "sinks must be"), ({"size": 0}, "size must be"),
    ({"most_keys": 0}, "most_keys must be")])
def test_plans_that_make_no_sense_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Streaming(**{"tokens": 70, "sinks": 2, "size": 6, **options})


def test_too_little_text_or_decoding_is_refused() -> None:
    with pytest.raises(ValueError, match="the text has 71 tokens; to predict 71"):
        stream(small_model(), TEXT, replace(PLAN, tokens=71), decoded=0,
               note=lambda label: nullcontext(silent))
    with pytest.raises(ValueError, match=r"decoded must be 0, or from 8 .* got 7"):
        streamed(small_model(), decoded=7)


def test_the_command_trains_reads_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{number} times {number} is {number * number}\n"
                            for number in range(300)))
    size = ("--text", text, "--tokens", 60, "--sinks", 2, "--size", 10, "--most-keys", 36,
            "--quiet")
    code, out, _ = run(capsys, "bench", "streaming", "--config", "micro", "--steps", 2, *size,
                       "-o", tmp_path)
    assert code == 0
    told = json.loads((tmp_path / "streaming.json").read_text())
    assert [each["form"] for each in told["forms"]] == list(FORMS)
    assert told["window"] == told["plan"]["keys"] == 12
    assert f"{told['forms'][1]['rest']:.3f}" in out
    drawn = ElementTree.fromstring((tmp_path / "streaming.svg").read_text())
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "the first 2 and the newest 10" in "".join(drawn.itertext())

    for each in told["forms"]:
        each.pop("decode_us", None)
    for model in (("--checkpoint", tmp_path / "checkpoint.pt"),
                  ("--config", "micro", "--steps", 2, "--resume")):     # which is trained
        code, out, _ = run(capsys, "bench", "streaming", *model, *size, "--json", "-o", tmp_path)
        assert code == 0
        again = json.loads(out)
        for each in again["forms"]:
            each.pop("decode_us", None)
        assert again == told


def test_an_interruption_in_training_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    signals = [signal.SIGINT, signal.SIGTERM]

    def interrupted(*_: object, **options: object) -> SimpleNamespace:
        asked.append(options["resume"])
        return SimpleNamespace(interrupted=True, stop_signal=signals[len(asked) - 1])

    monkeypatch.setattr("sterna.model.training.train.train", interrupted)
    for option, expected in (((), 130), (("--resume",), 143)):
        if option:
            (tmp_path / "checkpoint.pt").touch()
        code, _, err = run(capsys, "bench", "streaming", "--quiet", "-o", tmp_path, *option)
        assert code == expected
        assert f"go on with the same command and --resume -o {tmp_path}" in err
    assert asked == [False, True]


def test_bad_input_is_refused_before_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    bench = ("bench", "streaming", "-o", tmp_path / "none")
    assert "--tokens must be below that, got 9999999" in refusal(
        capsys, *bench, "--tokens", 9999999)
    assert "--weights must be one of ternary, float" in refusal(capsys, *bench, "--weights", "int")
    missing = tmp_path / "x.pt"
    assert "cannot read the checkpoint" in refusal(capsys, *bench, "--checkpoint", missing)
    for option in (("--config", "nano"), ("--weights", "float"), ("--steps", 1000), ("--seed", 0),
                   ("--resume",), ("--overwrite",)):
        assert f"{option[0]} is for a model to be trained: leave it out with --checkpoint" in (
            refusal(capsys, *bench, "--checkpoint", missing, *option))
    save_checkpoint(Checkpoint(ModelConfig(d=16, layers=1, dff=16, mixer="attention"), {}, "none",
                               "", 0, 0, 0.0, {}, {}, ()), missing)
    assert f"{missing} does not say in what windows it was trained" in refusal(
        capsys, *bench, "--checkpoint", missing)
    assert not (tmp_path / "none").exists()
