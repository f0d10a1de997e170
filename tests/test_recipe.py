"""The recipe's schedules, float start and average do what they say, and are refused elsewhere;
settings by name, from a recipe file and one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from command_line import refusal, settings
from command_line import run as run_sterna
from hypothesis import given
from hypothesis import strategies as st
from training_parts import CONFIG, CORPUS, RECIPE, Recorder, assert_same_weights, run

from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.torch.network.bitlinear import bit_linear, float_linear
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import load_checkpoint
from sterna.model.torch.training.distributed import Processes
from sterna.model.torch.training.optimizer import WeightAverage
from sterna.model.torch.training.quantize import quantize_checkpoint
from sterna.model.torch.training.recipe import SETTINGS, Execution, Recording, TrainRecipe
from sterna.model.torch.training.record import CodeWatch, overall

TWO = TrainRecipe(schedule="two-stage", warmup_steps=0)


@given(st.floats(0, 1))
def test_the_second_stage_begins_lower_and_does_not_decay(fraction: float) -> None:
    rate = TWO.learning_rate(5, fraction) / TWO.lr
    if fraction < 0.5:
        assert 8 / 15 - 1e-9 <= rate <= 1.0
        assert TWO.decay(fraction) == TWO.weight_decay
    else:
        assert TWO.final_lr_fraction - 1e-9 <= rate <= 1 / 3 + 1e-9
        assert TWO.decay(fraction) == 0.0
    assert TrainRecipe().decay(fraction) == TrainRecipe().weight_decay


def test_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    recipe = TrainRecipe(lr=0.5, warmup_steps=4, final_lr_fraction=0.1)
    for step, fraction, rate in ((0, 0.0, 0.125), (3, 0.0, 0.5), (99, 0.5, 0.275), (99, 1.0, 0.05),
                                 (99, 1.5, 0.05)):
        assert recipe.learning_rate(step, fraction) == pytest.approx(rate)
    assert TrainRecipe(warmup_steps=0).learning_rate(0, 0.0) == TrainRecipe().lr


@pytest.mark.parametrize(("kind", "wrong", "said"), [
    (TrainRecipe, {"schedule": "linear"}, "schedule must be cosine or two-stage, got 'linear'"),
    (TrainRecipe, {"ema": 1.0}, "ema must be from 0 to below 1, got 1.0"),
    (TrainRecipe, {"float_start": -0.1}, "float_start must be from 0 to below 1, got -0.1"),
    (TrainRecipe, {"lr": 0.0}, "lr must be a positive number, got 0"),
    (TrainRecipe, {"lr": math.nan}, "lr must be a positive number, got nan"),
    (TrainRecipe, {"lr": "1"}, "lr must be a number, got '1'"),
    (TrainRecipe, {"batch": 0}, "batch must be a whole number from 1 to 2147483647, got 0"),
    (TrainRecipe, {"batch": 2.5}, r"batch must be a whole number from 1 to 2147483647, got 2\.5"),
    (TrainRecipe, {"batch": 10 ** 18}, "batch must be a whole number from 1 to 2147483647"),
    (TrainRecipe, {"beta2": 1.0}, "beta2 must be from 0 to below 1"),
    (TrainRecipe, {"weight_decay": -1.0}, "weight_decay must be at least 0, got -1"),
    (TrainRecipe, {"gain_lr_factor": math.nan}, "gain_lr_factor must be at least 0, got nan"),
    (Execution, {"threads": 1.5}, "threads must be a whole number from"),
    (Execution, {"threads": 10 ** 12}, "threads must be a whole number from"),
    (Recording, {"checkpoint_seconds": -1.0}, "checkpoint_seconds must be at least 0, got -1"),
    (Recording, {"checkpoint_seconds": math.nan}, "checkpoint_seconds must be at least 0, got nan"),
    (Recording, {"checkpoint_seconds": "60"}, "checkpoint_seconds must be a number"),
])
def test_what_makes_no_sense_is_refused(
        kind: Callable[..., object], wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**wrong)


def test_what_is_for_ternary_weights_is_refused_with_floats(tmp_path: Path) -> None:
    floats = replace(CONFIG, weights="float")
    with pytest.raises(ValueError, match="float_start is for ternary weights"):
        run(tmp_path, config=floats, recipe=replace(RECIPE, float_start=0.5))
    with pytest.raises(ValueError, match="profile C12 is for ternary weights"):
        run(tmp_path, config=floats, profile=C12)


def test_a_float_start_has_gradients_of_full_precision() -> None:
    x, weight = torch.randn(5, 12), torch.randn(7, 12, requires_grad=True)
    bias = torch.randn(7)
    with bit_linear.by(float_linear):
        found = bit_linear(x, [weight], [bias], 2.0)
    expected = (x / x.square().mean(-1, keepdim=True).sqrt() @ weight.t() + bias).clamp(-2.0, 2.0)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(bit_linear(x, [weight], [bias], 2.0), expected, atol=1e-2)
    gain = torch.tensor([1.5], requires_grad=True)
    with bit_linear.by(float_linear):
        gained = bit_linear(x, [weight], None, gains=[gain])
    plain = float_linear(x, [weight], None)
    assert torch.allclose(gained, 1.5 * plain, atol=1e-5)
    gradient, = torch.autograd.grad(gained.sum(), gain)
    assert torch.allclose(gradient, plain.sum(), atol=1e-4)


def test_the_average_follows_its_recurrence() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    average = WeightAverage(model, 0.5)
    expected = model.weight.detach().clone()
    for step in range(9):
        with torch.no_grad():
            model.weight += step
        average.follow(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    assert torch.allclose(average.weights["weight"], expected)
    last = model.weight.detach().clone()
    with average.in_use():
        assert torch.allclose(model.weight, expected)
    assert torch.equal(model.weight, last)


def test_all_of_it_is_resumed_exactly_and_the_average_is_what_is_kept(tmp_path: Path) -> None:
    recipe = replace(RECIPE, ema=0.9, float_start=0.3, schedule="two-stage", window=16)
    options = {"recipe": recipe, "profile": C12,
               "recording": Recording(heldout_bytes=300, checkpoint_steps=5)}
    whole = run(tmp_path / "whole", 12, **options)

    class Halfway(Recorder):
        def update(self, progress: object) -> None:
            if progress.step == 7:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        run(tmp_path / "parts", 12, **options, reporter=Halfway())
    parts = run(tmp_path / "parts", 12, **options, resume=True)
    assert parts.heldout_bpb == whole.heldout_bpb
    assert_same_weights(whole.model, parts.model)

    kept = load_checkpoint(tmp_path / "whole")
    assert heldout_bpb(kept.model(), CORPUS.heldout[:300]) == whole.heldout_bpb
    last = kept.model(averaged=False)
    assert not torch.equal(last.head.weight, whole.model.head.weight)
    assert kept.average is not None
    assert kept.average.keys() == dict(last.named_parameters()).keys()
    # The checkpoint says what it was trained for.
    assert quantize_checkpoint(tmp_path / "whole", heldout=CORPUS.heldout[:300]).profile == C12


def test_flips_and_zeros_are_counted_by_projection() -> None:
    model = LanguageModel(CONFIG, seed=1)
    watch = CodeWatch(model, Processes(torch.device("cpu")))
    watch.begin()
    with torch.no_grad():
        weight = model.head.weight
        weight[0] = -weight[0]      # the same scale, and every code that is not zero the other
    found = watch.end()
    assert set(found) == {name for name, each in model.named_modules()
                          if type(each).__name__ == "BitLinear"}
    scale = weight.abs().mean()
    assert found["head"].flipped == int((weight[0].abs() > scale / 2).sum())
    assert found["head"].zeros == int((weight.abs() <= scale / 2).sum())
    assert sum(each.flipped for each in found.values()) == found["head"].flipped
    shares = overall(found)
    assert shares is not None
    assert 0.2 < shares.zeros < 0.3      # a quarter of uniform weights


def test_a_learning_rate_is_carried_over_to_a_width(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("train", *settings(d=32, layers=1, dff=32), "--steps", 0, "--quiet", "--no-report")
    assert run_sterna(capsys, *command, *settings(lr=0.01, lr_width=128), "-o", tmp_path)[0] == 0
    assert load_checkpoint(tmp_path).recipe["lr"] == pytest.approx(0.04)
    assert run_sterna(capsys, *command, *settings(lr_width=0), "-o", tmp_path / "no")[0] == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("given", "message"), [
    (("carry_state=true", "order=epoch"), "order epoch is for windows that start from the"),
    (("accumulate=9",), "accumulate must be at most batch (8)"),
    (("order=alphabetical",), "order must be random or epoch, got 'alphabetical'"),
    (("eval_window=0",), "eval_window must be a whole number from 1"),
    (("heldout_bytes=1",), "heldout_bytes must be a whole number from 2"),
    (("warmup_steps=-1",), "warmup_steps must be a whole number from 0"),
    (("layers=2.5",), "layers must be a whole number, got 2.5"),
    (("compile=1",), "compile must be true or false, got 1"),
    (("mixer=3",), "mixer must be text, got 3"),
    (("lr=fast",), "lr must be a number, got 'fast'"),
    (("warmup=3",), "there is no setting 'warmup': did you mean warmup_steps? known are "
                    "accumulate, batch, beta1, "),
    (("lr",), "--set takes NAME=VALUE, such as lr=0.005, got 'lr'"),
    (("lr=1", "lr=2"), "lr is given twice: leave out one --set lr=..."),
    (("threads=2",), "threads is given twice"),
])
def test_settings_that_make_no_sense_are_refused(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], message: str,
) -> None:
    options = sum((("--set", each) for each in given), ())
    assert message in refusal(capsys, "train", "--config", "micro", "--steps", 1, "--threads", 1,
                              *options, "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_file_gives_settings_and_the_command_line_others_in_their_place(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    # With a byte-order mark, as tools on Windows write it.
    file.write_text('\ufeffd = 16\nlayers = 1\ndff = 16\nlr = 0.5\norder = "epoch"\n'
                    'mixer = "hgrn2"\nthreads = 3\nheldout_bytes = 300\n')
    code, _, _ = run_sterna(
        capsys, "train", "--recipe", file, "--set", "lr=0.25", "--set", "beta1=0", "--mixer", "lru",
        "--threads", 1, "--steps", 0, "--quiet", "-o", tmp_path / "run")
    assert code == 0
    found = load_checkpoint(tmp_path / "run")
    assert (found.config.d, found.config.mixer) == (16, "lru")
    assert (found.recipe["lr"], found.recipe["order"]) == (0.25, "epoch")
    assert repr(found.recipe["beta1"]) == "0.0"
    for content, message in (
        ("lr = ", "small.toml: Invalid value"), ("rate = 1", "small.toml: there is no setting"),
        (None, "small.toml: cannot read"),
    ):
        file.unlink() if content is None else file.write_text(content)
        assert message in refusal(capsys, "train", "--recipe", file, "--steps", 1)


def test_every_field_is_a_setting() -> None:
    """But for those that the tokenizer and the command line give."""
    names = [each.name for kind in (ModelConfig, TrainRecipe, Execution, Recording)
             for each in fields(kind)]
    assert len(set(names)) == len(names)
    assert {*SETTINGS} == {*names, "lr_width"} - {"vocab", "command"}
