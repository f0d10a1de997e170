"""Training: it learns, it leaves whole files."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refusal
from command_line import run as run_sterna
from torch import Tensor
from training_parts import (
    CONFIG,
    CORPUS,
    FILES,
    RECIPE,
    Recorder,
    assert_same_weights,
    run,
)

from sterna.model.corpus import Corpus
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.stack.evaluate import heldout_bpb, sample_tokens
from sterna.model.torch.stack.language_model import Classifier, LanguageModel
from sterna.model.torch.training.checkpoint import load_checkpoint
from sterna.model.torch.training.distributed import Processes
from sterna.model.torch.training.metrics import read_metrics
from sterna.model.torch.training.optimizer import adamw
from sterna.model.torch.training.recipe import Execution, Recording, TrainRecipe
from sterna.model.torch.training.state import RunSettings, TrainState, add_gradient
from sterna.model.torch.training.windows import WindowSampler


def test_training_learns_and_leaves_its_files(tmp_path: Path) -> None:
    recorder, folder = Recorder(), tmp_path / "new" / "run"
    result = run(folder, 120, reporter=recorder, recording=Recording(heldout_evaluations=4))
    assert not result.interrupted
    assert (result.step, result.tokens) == (120, 120 * 160)
    assert result.heldout_bpb is not None
    assert result.heldout_bpb < 4.0  # 8 bits to begin with
    assert result.train_bpb < 4.0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")

    metrics = read_metrics(folder / "metrics.csv")
    assert metrics["step"] == [float(step) for step in range(10, 121, 10)]
    assert metrics["tokens"] == [step * 160 for step in metrics["step"]]
    measured = [step for step, held in zip(metrics["step"], metrics["heldout_bpb"], strict=True)
                if held == held]
    assert measured == [30.0, 60.0, 90.0, 120.0]
    assert metrics["heldout_bpb"][-1] == pytest.approx(result.heldout_bpb, abs=1e-5)

    assert [update.step for update in recorder.updates] == list(range(1, 121))
    assert recorder.updates[-1].fraction == 1.0
    assert recorder.updates[-1].tokens_per_second > 0
    assert recorder.measures == 4 * [(16 * 124, 16 * 124)]      # of 2,000 bytes
    assert recorder.closed == 1
    assert heldout_bpb(load_checkpoint(result.checkpoint).model(), CORPUS.heldout) == pytest.approx(
        result.heldout_bpb, abs=1e-3)


class LastToken(TokenMixer):
    """A mixer of one's own whose state is a slice of the sequence."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.out = init.linear(init.d, init.d)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.out(x), (x[-1],)

    def initial_state(self, x: Tensor) -> State:
        return (x.new_zeros(x.shape[-2:]),)

    def state_words(self, length: int) -> int:
        return 16


def test_what_is_carried_holds_no_more_than_a_state(tmp_path: Path) -> None:
    config = replace(CONFIG, mixer=f"{__file__}:LastToken + mlgru")
    run(tmp_path, 1, recipe=replace(RECIPE, carry_state=True), config=config)
    for each in sum(load_checkpoint(tmp_path / "checkpoint.pt").carried, ()):
        assert each.shape == (RECIPE.batch, 16)
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size()


def test_a_text_read_anew_begins_with_the_initial_state() -> None:
    losses = []
    for value in (0.0, 9.0):
        text = MemoryText(CORPUS, ByteTokenizer())
        settings = RunSettings(CONFIG, replace(RECIPE, carry_state=True), 0, text)
        one = TrainState(settings, Processes(torch.device("cpu")))
        sampler = WindowSampler(text, settings.recipe, 0)
        one.carried = tuple((torch.full_like(h, value),) for (h,) in one.carried)
        one.advance(sampler.windows(0), 1e-3, afresh=sampler.starts_afresh(0))
        losses.append(one.train_bpb)
    assert losses[0] == losses[1]


def test_a_classifier_reads_the_mean_over_time() -> None:
    """Float blocks begin as the identity, so its formula can be written down."""
    config = replace(CONFIG, weights="float", mixer="attention(causal=false)")
    model = Classifier(config, 3, 5, seed=1)
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 9]])
    mean = (model.embedding(tokens) + model.positions.weight).mean(dim=1)
    torch.testing.assert_close(model(tokens), model.head(model.norm(mean)))


def test_minutes_are_kept_and_count_all_sessions(tmp_path: Path) -> None:
    result = run(tmp_path, None, minutes=0.05)
    assert result.seconds > 0.0     # how near to 3 is for tests/test_budget.py, with no real clock
    rates = read_metrics(tmp_path / "metrics.csv")["lr"]
    assert rates[-1] < 0.5 * max(rates)
    again = run(tmp_path, None, minutes=0.05, resume=True)
    assert (again.step, again.seconds) == (result.step, result.seconds)


@pytest.mark.parametrize("weights", ["ternary", "float"])
def test_embedding_learns_faster_and_only_matrices_decay(weights: str) -> None:
    model = LanguageModel(replace(CONFIG, weights=weights))
    optimizer = adamw(model, replace(RECIPE, gain_lr_factor=0.5))
    embedding, matrices, gains, biases = optimizer.param_groups
    assert embedding["params"] == [model.embedding.weight]
    assert [group["lr_factor"] for group in optimizer.param_groups] == [3.0, 1.0, 0.5, 1.0]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [
        0.0, RECIPE.weight_decay, 0.0, 0.0]
    assert {p.dim() for p in matrices["params"]} == {2}
    assert len(gains["params"]) == (len(matrices["params"]) if weights == "ternary" else 0)
    assert {p.dim() for p in biases["params"]} == {1}
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert held == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("given", "message"), [
    ({"steps": None}, "either in steps or in minutes"),
    ({"steps": 1, "minutes": 1.0}, "either in steps or in minutes"),
    ({"steps": -1}, "steps must be a whole number from"),
    ({"seed": 1 << 63}, "seed must be a whole number from"),
    ({"steps": None, "minutes": -1.0}, "minutes must be above 0, got -1"),
    ({"execution": Execution(device="toaster")}, "cannot train on device 'toaster'"),
    ({"execution": Execution(device="meta")}, "cannot train on device 'meta'"),
    ({"config": replace(CONFIG, vocab=100)},
     "swallows has 'h', the byte 104 at offset 1, and this model knows only the bytes 0 to 99"),
    ({"corpus": Corpus("x", b"short", b"short")}, "window of 40 bytes needs a train text"),
    ({"corpus": Corpus("x", b"", b"")}, "too little text that a vocabulary of 256 can spell"),
    ({"config": replace(CONFIG, mixer="atention")},
     "no token mixer is called 'atention'; did you mean"),
    ({"config": replace(CONFIG, mixer="attention"), "recipe": replace(RECIPE, carry_state=True)},
     "carry_state needs mixers whose state does not grow"),
])
def test_bad_arguments_are_refused_before_a_file_is_touched(
        tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", **given)
    assert list(tmp_path.iterdir()) == []


def test_a_reporter_is_closed_also_if_the_metrics_are_damaged(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "metrics.csv").write_text("nonsense\n")
    reporter = Recorder()
    with pytest.raises(ValueError, match="the columns must be"):
        run(tmp_path, 4, resume=True, reporter=reporter)
    assert reporter.closed == 1


def test_a_step_that_is_not_finite_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def spoiled(model: torch.nn.Module, *arguments: Any) -> Any:
        seen.append({name: each.detach().clone() for name, each in model.named_parameters()})
        result = add_gradient(model, *arguments)
        if len(seen) in (3, 5, 6):
            next(model.parameters()).grad[0, 0] = math.inf
        return result

    monkeypatch.setattr("sterna.model.torch.training.state.add_gradient", spoiled)
    recorder, recipe = Recorder(), replace(RECIPE, carry_state=True, ema=0.9)
    result = run(tmp_path, 10, recipe=recipe, reporter=recorder,
                 recording=Recording(heldout_steps=4))
    changed = [any(not torch.equal(before[name], after[name]) for name in before)
               for before, after in pairwise(seen)]
    assert changed == [step not in (3, 5, 6) for step in range(1, 10)]
    assert result.heldout_bpb is not None
    assert [each.skipped for each in recorder.updates] == [0, 0, 1, 1, 2, 3, 3, 3, 3, 3]
    assert "3 steps skipped" in str(recorder.updates[-1])
    figures = read_metrics(tmp_path / "metrics.csv")
    assert (figures["step"], figures["skipped"]) == ([4, 8, 10], [1, 3, 3])
    assert all(0 < norm < math.inf for norm in figures["gradient_norm"])
    kept = load_checkpoint(tmp_path)
    assert kept.skipped == 3
    assert {float(each["step"]) for each in kept.optimizer["state"].values()} == {10.0}
    run(tmp_path, 12, recipe=recipe, resume=True)
    assert load_checkpoint(tmp_path).skipped == 3


def test_any_mixer_trains_and_repeats_itself(tmp_path: Path) -> None:
    config = replace(CONFIG, mixer="mlgru + attention", weights="float", norm="post")
    recipe = TrainRecipe.of("float", warmup_steps=0)
    assert recipe.lr < TrainRecipe.of("ternary").lr
    result, again, other = (run(tmp_path / str(number), 12, config=config, recipe=recipe, seed=seed)
                            for number, seed in enumerate((1, 1, 2)))
    fresh = heldout_bpb(LanguageModel(config), CORPUS.heldout, window=recipe.window)
    assert result.heldout_bpb is not None
    assert result.heldout_bpb < fresh - 0.1
    assert_same_weights(result.model, again.model)
    assert not torch.equal(result.model.head.weight, other.model.head.weight)
    assert load_checkpoint(result.checkpoint).config == config


def test_text_is_drawn_from_a_checkpoint_of_any_mixers_ones_own_too(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, mixer=f"{__file__}:LastToken + attention")
    model = LanguageModel(config, seed=1)
    prompt = np.frombuffer(b"The sw", dtype=np.uint8)
    first, again = (list(sample_tokens(
        model, prompt, tokens=9, sampler=Sampler(seed=3, temperature=1))) for _ in range(2))
    assert first == again
    assert len(first) == 9
    with torch.no_grad():
        row = torch.tensor([[*prompt, *first[:-1]]])
        greedy = model(row)[0][0, -1].argmax().item()
    (last,) = list(sample_tokens(model, row[0].numpy(), tokens=1, sampler=Sampler()))
    assert last == greedy
    path = run(tmp_path, 1, config=config).checkpoint
    _, out, _ = run_sterna(capsys, "generate", path, "--prompt", "The ", "--tokens", 5, "--json")
    found = json.loads(out)
    assert (found["prompt"], len(found["tokens"])) == ("The ", 5)
    assert "--form goes with a quantised model" in refusal(
        capsys, "generate", path, "--form", "fast")


def test_a_text_ends_where_a_mixer_of_fixed_length_does(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, mixer="mlgru + gmlp(length=40)")
    path = run(tmp_path, 1, config=config).checkpoint
    _, out, _ = run_sterna(capsys, "generate", path, "--prompt", "a" * 37, "--tokens", 9, "--json")
    assert len(json.loads(out)["tokens"]) == 4      # of the last one nothing is read
    message = refusal(
        capsys, "generate", path, "--prompt", "The ", "--prompt", "a" * 41, "--quiet")
    assert "GMLP mixes sequences of at most 40 tokens, got 41" in message
