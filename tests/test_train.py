"""Training: it learns, it leaves whole files."""

import json
import math
import signal
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

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.quantized.sampling import Sampler
from sterna.model.stack.classifier import Classifier
from sterna.model.stack.evaluate import heldout_bpb, sample_tokens
from sterna.model.stack.language_model import LanguageModel
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.training.checkpoint import load_checkpoint
from sterna.model.training.distributed import Processes
from sterna.model.training.metrics import read_metrics
from sterna.model.training.optimizer import adamw
from sterna.model.training.progress import TrainProgress
from sterna.model.training.recipe import Execution, Recording
from sterna.model.training.state import RunSettings, TrainState, add_gradient
from sterna.model.training.train import TrainRecipe, TrainResult, train
from sterna.model.training.windows import WindowSampler

CONFIG = ModelConfig(d=16, layers=2, dff=24)
RECIPE = TrainRecipe(batch=4, window=40, warmup_steps=5, float_start=0.0)
SENTENCES = "".join(f"The swallow number {i} flies {i * i} miles to the south. "
                    for i in range(400)).encode()
CORPUS = Corpus("swallows", SENTENCES[:-2000], SENTENCES[-2000:])


def run(folder: Path, steps: int, *, resume: bool = False, auto_resume: bool = False,
        overwrite: bool = False, seed: int = 0, recipe: TrainRecipe = RECIPE,
        config: ModelConfig = CONFIG, corpus: Corpus = CORPUS) -> TrainResult:
    """A short quiet run on one thread."""
    return train(config, corpus, run_dir=folder, steps=steps, seed=seed, recipe=recipe,
                 resume=resume, auto_resume=auto_resume, overwrite=overwrite, quiet=True,
                 execution=Execution(threads=1))


def assert_same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


class Recorder:
    """Keeps what a run reports, and presses Ctrl-C after ``stop_at`` steps."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.updates: list[TrainProgress] = []
        self.measures: list[tuple[int, int]] = []
        self.messages: list[str] = []
        self.closed = 0

    def update(self, progress: TrainProgress) -> None:
        self.updates.append(progress)
        if progress.step == self.stop_at:
            signal.raise_signal(signal.SIGINT)

    def measured(self, done: int, total: int) -> None:
        self.measures.append((done, total))

    def message(self, text: str) -> None:
        self.messages.append(text)

    def close(self) -> None:
        self.closed += 1


def test_training_learns_and_leaves_its_files(tmp_path: Path) -> None:
    recorder = Recorder()
    result = train(CONFIG, CORPUS, run_dir=tmp_path / "new" / "run", steps=120, recipe=RECIPE,
                   reporter=recorder, execution=Execution(threads=1),
                   recording=Recording(heldout_evaluations=4))
    assert not result.interrupted
    assert (result.step, result.tokens) == (120, 120 * 160)
    assert result.heldout_bpb is not None
    assert result.heldout_bpb < 4.0  # 8 bits to begin with
    assert result.train_bpb < 4.0
    folder = tmp_path / "new" / "run"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint.pt", "codes.csv", "loss.png", "metrics.csv", "run.json"]
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


def test_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    first, second, other = (
        run(tmp_path / str(i), 6, seed=seed).model.state_dict()
        for i, seed in enumerate((1, 1, 2)))
    assert_same_weights(first, second)
    assert not torch.equal(first["head.weight"], other["head.weight"])


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
    result = train(CONFIG, CORPUS, run_dir=tmp_path, minutes=0.05, recipe=RECIPE, quiet=True,
                   execution=Execution(threads=1))
    assert result.seconds > 0.0     # how near to 3 is for tests/test_budget.py, with no real clock
    rates = read_metrics(tmp_path / "metrics.csv")["lr"]
    assert rates[-1] < 0.5 * max(rates)
    again = train(CONFIG, CORPUS, run_dir=tmp_path, minutes=0.05, recipe=RECIPE, quiet=True,
                  resume=True, execution=Execution(threads=1))
    assert again.step == result.step
    assert again.seconds == result.seconds


def test_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    recipe = TrainRecipe(lr=0.5, warmup_steps=4, final_lr_fraction=0.1)
    assert recipe.learning_rate(0, 0.0) == pytest.approx(0.125)
    assert recipe.learning_rate(3, 0.0) == pytest.approx(0.5)
    assert recipe.learning_rate(99, 0.5) == pytest.approx(0.5 * 0.55)
    assert recipe.learning_rate(99, 1.0) == pytest.approx(0.05)
    assert recipe.learning_rate(99, 1.5) == pytest.approx(0.05)
    assert TrainRecipe(warmup_steps=0).learning_rate(0, 0.0) == TrainRecipe().lr


def test_windows_of_a_heldout_text_follow_each_other_without_a_gap() -> None:
    """Each begins at the byte that the one before predicted last; what is left over is not read."""
    model, text = LanguageModel(CONFIG, seed=1), SENTENCES[:4 * 10 + 8]
    nats = 0.0
    for start in (0, 10, 20, 30):
        row = torch.tensor([*text[start:start + 11]])
        with torch.no_grad():
            logits, _ = model(row[None, :-1])
        nats += torch.nn.functional.cross_entropy(logits[0], row[1:], reduction="sum").item()
    found = heldout_bpb(model, text, sequences=3, chunk_tokens=4, window=10)
    assert found == pytest.approx(nats / math.log(2) / 40, rel=1e-5)


@pytest.mark.parametrize("weights", ["ternary", "float"])
def test_embedding_learns_faster_and_only_matrices_decay(weights: str) -> None:
    model = LanguageModel(replace(CONFIG, weights=weights))
    optimizer = adamw(model, RECIPE)
    embedding, matrices, biases = optimizer.param_groups
    assert embedding["params"] == [model.embedding.weight]
    assert [group["lr_factor"] for group in optimizer.param_groups] == [3.0, 1.0, 1.0]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [
        0.0, RECIPE.weight_decay, 0.0]
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in biases["params"]} == {1}
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert held == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("change", "message"), [
    ({"lr": 0.0}, "lr must be a positive number, got 0"),
    ({"lr": math.nan}, "lr must be a positive number, got nan"),
    ({"lr": "1"}, "lr must be a number, got '1'"),
    ({"batch": 0}, "batch must be a whole number from 1 to 2147483647, got 0"),
    ({"batch": 2.5}, r"batch must be a whole number from 1 to 2147483647, got 2\.5"),
    ({"batch": 10 ** 18}, r"batch must be a whole number from 1 to 2147483647, got 10{18}"),
    ({"beta2": 1.0}, "beta2 must be from 0 to below 1"),
    ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1"),
])
def test_bad_recipes_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TrainRecipe(), **change)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="either in steps or in minutes"):
        train(CONFIG, CORPUS, run_dir=tmp_path)
    with pytest.raises(ValueError, match="either in steps or in minutes"):
        train(CONFIG, CORPUS, run_dir=tmp_path, steps=1, minutes=1.0)
    for threads in (1.5, 10 ** 12):
        with pytest.raises(ValueError, match="threads must be a whole number from"):
            Execution(threads=threads)
    for name, value in (("steps", -1), ("steps", 2.5), ("steps", "2"), ("seed", 1.5),
                        ("seed", 1 << 63)):
        with pytest.raises(ValueError, match=f"{name} must be a whole number from"):
            train(CONFIG, CORPUS, run_dir=tmp_path, **({"steps": 1} | {name: value}))
    with pytest.raises(ValueError, match="minutes must be above 0, got -1"):
        train(CONFIG, CORPUS, run_dir=tmp_path, minutes=-1.0)
    for device in ("toaster", "meta"):
        with pytest.raises(ValueError, match=f"cannot train on device '{device}'"):
            train(CONFIG, CORPUS, run_dir=tmp_path, steps=1, execution=Execution(device=device))
    for seconds in (-1.0, math.nan, "60"):
        with pytest.raises(ValueError, match="checkpoint_seconds must be"):
            Recording(checkpoint_seconds=seconds)
    with pytest.raises(ValueError, match=r"so vocab must be at least .*, got 100"):
        train(replace(CONFIG, vocab=100), CORPUS, run_dir=tmp_path, steps=1)
    with pytest.raises(ValueError, match="window of 40 bytes needs a train text"):
        train(CONFIG, Corpus("x", b"short", b"short"), run_dir=tmp_path, steps=1, recipe=RECIPE)
    with pytest.raises(ValueError, match="too little text that a vocabulary of 256 can spell"):
        train(CONFIG, Corpus("x", b"", b""), run_dir=tmp_path, steps=1)
    assert list(tmp_path.iterdir()) == []


def test_a_reporter_is_closed_also_if_the_metrics_are_damaged(tmp_path: Path) -> None:
    run(tmp_path, 2)
    (tmp_path / "metrics.csv").write_text("nonsense\n")
    reporter = Recorder()
    with pytest.raises(ValueError, match="the columns must be"):
        train(CONFIG, CORPUS, run_dir=tmp_path, steps=4, seed=0, recipe=RECIPE, resume=True,
              reporter=reporter)
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

    monkeypatch.setattr("sterna.model.training.state.add_gradient", spoiled)
    recorder, recipe = Recorder(), replace(RECIPE, carry_state=True, ema=0.9)
    result = train(CONFIG, CORPUS, run_dir=tmp_path, steps=10, recipe=recipe, reporter=recorder,
                   execution=Execution(threads=1), recording=Recording(heldout_steps=4))
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
    train(CONFIG, CORPUS, run_dir=tmp_path, steps=12, recipe=recipe, resume=True, quiet=True,
          execution=Execution(threads=1))
    assert load_checkpoint(tmp_path).skipped == 3


def test_settings_of_torch_are_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pytest.raises(FloatingPointError, match="10 steps in a row, up to step 11; lower"):
        run(tmp_path, 500, recipe=replace(RECIPE, lr=1e38))
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_any_mixer_trains_and_what_it_cannot_do_is_said_before_a_file_is_touched(
        tmp_path: Path) -> None:
    config = replace(CONFIG, mixer="mlgru + attention", weights="float", norm="post")
    recipe = TrainRecipe.of("float", warmup_steps=0)
    assert recipe.lr < TrainRecipe.of("ternary").lr
    result = train(config, CORPUS, run_dir=tmp_path / "a", steps=12, recipe=recipe, quiet=True)
    fresh = heldout_bpb(LanguageModel(config), CORPUS.heldout, window=recipe.window)
    assert result.heldout_bpb is not None
    assert result.heldout_bpb < fresh - 0.1
    again = train(config, CORPUS, run_dir=tmp_path / "b", steps=12, recipe=recipe, quiet=True)
    assert all(torch.equal(value, again.model.state_dict()[name])
               for name, value in result.model.state_dict().items())
    assert load_checkpoint(result.checkpoint).config == config
    recipe = replace(recipe, carry_state=True)
    with pytest.raises(ValueError, match="carry_state needs mixers whose state does not grow"):
        train(config, CORPUS, run_dir=tmp_path / "c", steps=1, recipe=recipe, quiet=True)
    with pytest.raises(ValueError, match="no token mixer is called 'atention'; did you mean"):
        train(replace(CONFIG, mixer="atention"), CORPUS, run_dir=tmp_path / "c", steps=1)
    assert not (tmp_path / "c").exists()


def test_text_is_drawn_from_a_checkpoint_of_any_mixers_ones_own_too(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, mixer=f"{__file__}:LastToken + attention")
    model = LanguageModel(config, seed=1)
    prompt = np.frombuffer(b"The sw", dtype=np.uint8)
    first = list(sample_tokens(model, prompt, tokens=9, sampler=Sampler(seed=3, temperature=1)))
    again = list(sample_tokens(model, prompt, tokens=9, sampler=Sampler(seed=3, temperature=1)))
    assert first == again
    assert len(first) == 9
    with torch.no_grad():
        row = torch.tensor([[*prompt, *first[:-1]]])
        greedy = model(row)[0][0, -1].argmax().item()
    (last,) = list(sample_tokens(model, row[0].numpy(), tokens=1, sampler=Sampler()))
    assert last == greedy
    result = train(config, CORPUS, run_dir=tmp_path, steps=1, quiet=True)
    path = str(result.checkpoint)
    _, out, _ = run_sterna(capsys, "generate", path, "--prompt", "The ", "--tokens", 5, "--json")
    found = json.loads(out)
    assert (found["prompt"], len(found["tokens"])) == ("The ", 5)
    assert "--form goes with a quantised model" in refusal(
        capsys, "generate", path, "--form", "fast")


def test_a_text_ends_where_a_mixer_of_fixed_length_does(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, mixer="mlgru + gmlp(length=40)")
    path = train(config, CORPUS, run_dir=tmp_path, steps=1, recipe=RECIPE, quiet=True).checkpoint
    _, out, _ = run_sterna(
        capsys, "generate", path, "--prompt", "a" * 37, "--tokens", 9, "--json")
    assert len(json.loads(out)["tokens"]) == 4      # of the last one nothing is read
    message = refusal(
        capsys, "generate", path, "--prompt", "The ", "--prompt", "a" * 41, "--quiet")
    assert "GMLP mixes sequences of at most 40 tokens, got 41" in message
