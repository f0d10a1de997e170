"""Training on tokens of several bytes: the checkpoint has the tokenizer, the measure is bytes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import refusal, run, settings
from training_parts import run as run_model

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.profile import C12
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES, ByteTokenizer, Tokenizer
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import CheckpointError, load_checkpoint
from sterna.model.torch.training.heldout import heldout_of_run
from sterna.model.torch.training.recipe import Recording, TrainRecipe
from sterna.model.torch.training.state import add_gradient, next_token_loss
from sterna.model.torch.training.windows import WindowSampler

PAIRS = BytePairTokenizer([(116, 104), (256, 101), (257, 32), (97, 114)])
TEXT = "".join(f"the {i} parts are there {i * i} times. " for i in range(300)).encode()
CORPUS = Corpus("parts", TEXT[:-1500], TEXT[-1500:])
CONFIG = ModelConfig(d=8, layers=1, dff=8, vocab=PAIRS.vocab)
RECIPE = TrainRecipe(batch=2, window=16, warmup_steps=2, float_start=0.0)


def test_the_loss_is_told_in_bits_per_byte(tmp_path: Path) -> None:
    text = MemoryText(CORPUS, PAIRS)
    result = run_model(tmp_path, 1, config=CONFIG, corpus=text, recipe=RECIPE)
    windows = torch.from_numpy(WindowSampler(text, RECIPE, 0).windows(0))
    fresh = LanguageModel(CONFIG)
    loss, _ = next_token_loss(fresh, windows, fresh.initial_state(2))
    spelled = sum(len(PAIRS.spellings[token]) for token in windows[1:].flatten().tolist())
    assert spelled > 32
    assert result.train_bpb == pytest.approx(loss.item() * 32 / math.log(2) / spelled, rel=1e-6)


def test_a_run_is_gone_on_with_in_the_same_tokens_and_profile_alone(tmp_path: Path) -> None:
    def trained(tokenizer: BytePairTokenizer, **options: object) -> None:
        run_model(tmp_path, **{"config": CONFIG, "corpus": MemoryText(CORPUS, tokenizer),
                               "recipe": RECIPE, **options})

    trained(PAIRS, profile=C12)
    found = load_checkpoint(tmp_path)
    assert (found.tokenizer.sha256, found.profile) == (PAIRS.sha256, C12)
    assert found.model().profile == C12
    trained(PAIRS, profile=C12, resume=True)
    other = BytePairTokenizer([(116, 104), (256, 101), (257, 32), (111, 114)])
    with pytest.raises(CheckpointError, match=r"trained with tokenizer bpe \w+, not bpe \w+"):
        trained(other, profile=C12, resume=True)
    with pytest.raises(CheckpointError, match=r"trained with profile C12, not S16"):
        trained(PAIRS, resume=True)
    with pytest.raises(ValueError, match="the tokenizer has 260 tokens, and the model 300"):
        trained(PAIRS, config=replace(CONFIG, vocab=300))
    with pytest.raises(ValueError, match="profile must be one of S16, C12, which a checkpoint"):
        trained(PAIRS, profile=replace(C12, name="mine"), resume=True)


def test_heldout_text_that_cannot_be_measured_is_refused_before_a_step(tmp_path: Path) -> None:
    def trained(heldout: bytes, tokenizer: Tokenizer, most: int = 9) -> None:
        run_model(tmp_path / "run", 1, config=replace(CONFIG, vocab=tokenizer.vocab), recipe=RECIPE,
                  corpus=MemoryText(replace(CORPUS, heldout=heldout), tokenizer),
                  recording=Recording(heldout_bytes=most))

    with pytest.raises(ValueError, match=r"its first 3 bytes \(heldout_bytes\) have 1, in whole"):
        trained(CORPUS.heldout[CORPUS.heldout.index(b"the "):], PAIRS, 3)
    with pytest.raises(ValueError, match=r"first 2 bytes .* have 0, in whole characters"):
        trained("\u8a9e\u5b66".encode(), BYTES, 2)
    with pytest.raises(ValueError, match="the byte 232 at offset 0"):
        trained("\u8a9e\u5b66".encode(), ByteTokenizer(128))
    assert list(tmp_path.iterdir()) == []
    trained("\u8a9e\u5b66".encode(), BYTES)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_accumulated_gradients_are_those_of_the_whole_batch(parts: int) -> None:
    model = LanguageModel(CONFIG, seed=2)
    windows = torch.randint(0, 260, (17, 5), generator=torch.Generator().manual_seed(0))
    state = model.initial_state(5)
    found = []
    for count in (1, parts):
        model.zero_grad()
        loss, after = add_gradient(model, windows, state, count)
        found.append((loss, after, [each.grad.clone() for each in model.parameters()
                                    if each.grad is not None]))
    (loss, after, gradients), (loss_2, after_2, gradients_2) = found
    assert loss_2.item() == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(after_2, after, rtol=0.0, atol=1e-6)
    for one, other in zip(gradients, gradients_2, strict=True):
        assert (one - other).abs().max() <= 1e-6 * max(1.0, one.abs().max().item())
    assert not any(each.requires_grad for layer in after_2 for each in layer)


def test_a_run_that_accumulates_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = replace(RECIPE, batch=6, carry_state=True, lr=1e-3)
    one, other = (run_model(
        tmp_path / str(parts), 3, config=CONFIG, corpus=MemoryText(CORPUS, PAIRS),
        recipe=replace(recipe, accumulate=parts)).model.state_dict() for parts in (1, 4))
    torch.testing.assert_close(other, one, rtol=0.0, atol=2e-5)


def test_general_text_of_a_file_is_read_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    (tmp_path / "own.txt").write_bytes(CORPUS.train)
    (tmp_path / "general.txt").write_bytes(CORPUS.train.upper())
    common = ("train", "--config", "micro", *settings(layers=1, window=16), "--steps", 2, "--text",
              tmp_path / "own.txt")
    general = ("--general-text", tmp_path / "general.txt")
    code, _, err = run(capsys, *common, *general, "-o", tmp_path / "run")
    assert code == 0
    assert re.search(r"own.txt-ascii: [\d,]+ bytes to train on, [\d,]+ of general text to begin "
                     r"with, [\d,]+ held out", err)
    found = load_checkpoint(tmp_path / "run")
    assert found.general_sha256 is not None
    assert found.recipe["general_share"] == 0.8
    assert heldout_of_run(found) is not None
    for more, message in (
            (("--resume", "-o", tmp_path / "run"), "general text"),
            ((*general, *settings(carry_state="true")), "does not go with carry_state"),
            ((*general, *settings(general_share=1.5)), "general_share must be from 0 to 1"),
            (("--general-text", tmp_path / "gone.txt"), "gone.txt")):
        assert message in refusal(capsys, *common, "-o", tmp_path / "no", *more, "--quiet")
    for other in ("--docstrings", "--data=x"):
        command = ("train", "--steps", 1, other, *general)
        assert f"leave it out with {other.split('=')[0]}" in refusal(capsys, *command)


@pytest.mark.parametrize(("options", "general"), [
    ((), True), (("--docstrings",), False), (settings(carry_state="true"), False),
    (settings(order="epoch"), False), (settings(general_share=0), False)])
def test_the_manual_has_docstrings_to_begin_with_where_they_are_read(
    options: tuple[object, ...], general: bool, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setattr("sterna.model.corpus._docstrings", lambda folder: iter(["words " * 40]))
    code, _, err = run(capsys, "train", "--config", "micro", "--set", "layers=1", "--steps", 0,
                       *options, "-o", tmp_path / "run")
    assert code == 0
    assert ("of general text to begin with" in err) == general
