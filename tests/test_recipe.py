"""The recipe's schedules, float start and average do what they say, and are refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_train import CONFIG, CORPUS, RECIPE, run

from sterna.cli.main import main
from sterna.model.network.bitlinear import bit_linear, float_linear
from sterna.model.profile import C12
from sterna.model.stack.evaluate import heldout_bpb
from sterna.model.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from sterna.model.training.distributed import Processes
from sterna.model.training.optimizer import WeightAverage
from sterna.model.training.quantize import quantize_checkpoint
from sterna.model.training.recipe import Execution, Recording, TrainRecipe
from sterna.model.training.record import CodeWatch, overall
from sterna.model.training.train import train

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


@pytest.mark.parametrize(("wrong", "said"), [
    ({"schedule": "linear"}, "schedule must be cosine or two-stage, got 'linear'"),
    ({"ema": 1.0}, "ema must be from 0 to below 1, got 1.0"),
    ({"float_start": -0.1}, "float_start must be from 0 to below 1, got -0.1"),
])
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainRecipe(**wrong)


def test_what_is_for_ternary_weights_is_refused_with_floats(tmp_path: Path) -> None:
    floats = replace(CONFIG, weights="float")
    with pytest.raises(ValueError, match="float_start is for ternary weights"):
        run(tmp_path, 2, config=floats, recipe=replace(RECIPE, float_start=0.5))
    with pytest.raises(ValueError, match="profile C12 is for ternary weights"):
        train(floats, CORPUS, run_dir=tmp_path, steps=2, profile=C12, quiet=True)


def test_a_float_start_has_gradients_of_full_precision() -> None:
    x, weight = torch.randn(5, 12), torch.randn(7, 12, requires_grad=True)
    bias = torch.randn(7)
    with bit_linear.by(float_linear):
        found = bit_linear(x, [weight], [bias], 2.0)
    expected = (x / x.square().mean(-1, keepdim=True).sqrt() @ weight.t() + bias).clamp(-2.0, 2.0)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(bit_linear(x, [weight], [bias], 2.0), expected, atol=1e-2)


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
    whole = train(CONFIG, CORPUS, run_dir=tmp_path / "whole", steps=12, recipe=recipe, profile=C12,
                  quiet=True, execution=Execution(threads=1),
                  recording=Recording(heldout_bytes=300))

    class Stops(RuntimeError):
        pass

    class Halfway:
        def update(self, progress: object) -> None:
            if progress.step == 7:
                raise Stops

        def measured(self, done: int, total: int) -> None: ...

        def message(self, text: str) -> None: ...

        def close(self) -> None: ...

    arguments = dict(run_dir=tmp_path / "parts", steps=12, recipe=recipe, profile=C12,
                     execution=Execution(threads=1),
                     recording=Recording(heldout_bytes=300, checkpoint_steps=5))
    with pytest.raises(Stops):
        train(CONFIG, CORPUS, **arguments, reporter=Halfway())
    parts = train(CONFIG, CORPUS, **arguments, resume=True, quiet=True)
    assert parts.heldout_bpb == whole.heldout_bpb
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(one, other)

    kept = load_checkpoint(tmp_path / "whole")
    assert heldout_bpb(kept.model(), CORPUS.heldout[:300]) == whole.heldout_bpb
    last = kept.model(averaged=False)
    assert not torch.equal(last.head.weight, whole.model.head.weight)
    assert kept.average is not None
    assert kept.average.keys() == dict(last.named_parameters()).keys()
    save_checkpoint(replace(kept, average=None), tmp_path / "whole" / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="does not hold the average of the weights"):
        train(CONFIG, CORPUS, **{**arguments, "run_dir": tmp_path / "whole"}, resume=True)
    save_checkpoint(kept, tmp_path / "whole" / "checkpoint.pt")
    del kept.average["head.weight"]
    with pytest.raises(CheckpointError, match="the average is not one of all parameters"):
        kept.model()
    # The checkpoint says what it was trained for.
    assert quantize_checkpoint(tmp_path / "whole", heldout=CORPUS.heldout[:300]).profile == C12


def test_flips_and_zeros_are_counted_by_projection() -> None:
    from sterna.model.stack.language_model import LanguageModel

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


def test_a_learning_rate_is_carried_over_to_a_width(tmp_path: Path) -> None:
    given = ["--set", "d=32", "--set", "layers=1", "--set", "dff=32", "--steps", "0", "--quiet",
             "--no-report"]
    rate = ["--set", "lr=0.01", "--set", "lr_width=128"]
    assert main(["train", *given, *rate, "-o", str(tmp_path)]) == 0
    assert load_checkpoint(tmp_path).recipe["lr"] == pytest.approx(0.04)
    assert main(["train", *given, "--set", "lr_width=0", "-o", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()
