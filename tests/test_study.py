"""A comparison of mixers: its budgets, its cells and what is made of them."""

from __future__ import annotations

import json
import signal
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from study_parts import OWN, RECALL, cell, own_mixer

from sterna.cli.study.tables import study_tables
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study import fit as fit_module
from sterna.model.study import workers
from sterna.model.study.cells import TrainingCell
from sterna.model.study.costs import Costs, count, measure_costs
from sterna.model.study.fit import StoppedError, fit
from sterna.model.study.plan import Study
from sterna.model.study.recipes import recipe_for, swept_rates
from sterna.model.study.summary import summarize
from sterna.model.study.tasks.recall import RecallTask
from sterna.model.study.tasks.row import code_hash, find_row
from sterna.model.study.tasks.text import TextTask
from sterna.model.study.workers import make_cells

# Budgets.

def test_a_budget_of_tokens_ends_with_them_and_one_of_seconds_with_the_processor_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = find_row("mlgru")
    task = replace(RECALL, tokens=5 * 28, seconds=3.5)
    ticks = iter(range(1000))
    monkeypatch.setattr(fit_module.time, "process_time", lambda: float(next(ticks)))
    by_tokens, by_seconds = (
        fit(task.model(row, 0), task, budget, recipe_for("ternary", task), seed=0)
        for budget in ("tokens", "seconds"))
    assert (by_tokens.steps, by_tokens.tokens) == (5, 140)
    assert (by_seconds.steps, by_seconds.seconds) == (4, 4.0)   # a second a step, as it seems
    assert by_seconds.curve[-1][:2] == (4 * 28, 4.0)


def test_training_is_the_same_each_time_and_can_be_stopped_between_steps() -> None:
    row, recipe = find_row("mlgru"), recipe_for("ternary", RECALL)
    first, again = (fit(RECALL.model(row, 3), RECALL, "tokens", recipe, seed=3) for _ in range(2))
    assert [point[2] for point in first.curve] == [point[2] for point in again.curve]
    with pytest.raises(StoppedError):
        fit(RECALL.model(row, 0), RECALL, "tokens", recipe, seed=0, stopped=lambda: True)


def test_float_models_have_a_recipe_of_their_own() -> None:
    ternary, float_ = (recipe_for(weights, RECALL) for weights in ("ternary", "float"))
    assert (ternary.weight_decay, float_.weight_decay) == (0.5, 0.1)
    assert swept_rates("float", RECALL) == (0.5 * float_.lr, float_.lr, 2 * float_.lr)
    assert recipe_for("float", RECALL, 0.25).lr == 0.25


# Cells.

def test_a_result_belongs_to_its_settings_and_to_nothing_else(tmp_path: Path) -> None:
    row = find_row("mlgru")
    base = cell(row).path(tmp_path)
    others = [cell(row, "seconds"), cell(row, seed=1), cell(row, lr=1e-3),
              cell(find_row("mlgru(heads=2)")), cell(find_row("mlgru", weights="float")),
              cell(row, task=replace(RECALL, pairs=3))]
    assert len({base, *(each.path(tmp_path) for each in others)}) == 7
    # The budget that does not count may change.
    longer = replace(RECALL, seconds=99.0)
    assert cell(row, task=longer).path(tmp_path) == base
    assert cell(row, "seconds", longer).path(tmp_path) != cell(row, "seconds").path(tmp_path)


def test_a_mixer_that_computes_something_else_is_measured_again(tmp_path: Path) -> None:
    row = find_row(own_mixer(tmp_path))
    before = code_hash(row)
    (tmp_path / "mine.py").write_text(OWN.replace("Passes", "Just passes") + "# a comment\n")
    assert code_hash(row) == before
    (tmp_path / "mine.py").write_text(OWN.replace("* self.factor", "+ self.factor"))
    assert code_hash(row) != before


def test_a_mixer_of_a_module_is_known_by_its_source_whatever_the_module_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_mixers.py").write_text(OWN)
    row = find_row("torch_mixers:Mine")
    before = code_hash(row)
    (tmp_path / "torch_mixers.py").write_text(OWN.replace("* self.factor", "+ self.factor"))
    assert code_hash(row) != before


def test_what_is_made_is_not_made_again_and_a_mixer_that_fails_stops_no_other(
    tmp_path: Path,
) -> None:
    broken = own_mixer(tmp_path, OWN.replace("return self", "raise KeyError('gone')\n        self"))
    cells = [cell(find_row("mlgru")), cell(find_row(broken)), cell(find_row("window"))]
    told: list[tuple[str, str]] = []

    def note(each: TrainingCell, result: object, error: str) -> None:
        told.append((each.row.mixer, error))

    make_cells(cells, tmp_path, 1, note)
    assert told == [("mlgru", ""), (broken, "KeyError: 'gone'"), ("window", "")]
    told.clear()
    make_cells(cells, tmp_path, 1, note)
    assert told == [(broken, "KeyError: 'gone'")]


def test_a_loss_that_is_not_finite_is_a_result(tmp_path: Path) -> None:
    row = find_row(own_mixer(tmp_path, OWN.replace("* self.factor", "* float('nan')")))
    made = cell(row)
    assert made.run(tmp_path, lambda: False)["diverged"] == "the loss is not finite at step 1"
    assert "not finite" in made.summary(made.result(tmp_path) or {})
    study = Study(((row, (RECALL,)),), seeds=1, costs=Costs(16, 1, (4,)))
    table = study_tables(summarize(study, tmp_path))["quality"]
    assert "diverged" in table.rows[0]


def test_figures_that_are_not_finite_are_told_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RecallTask, "measure", lambda *_: {"accuracy": float("nan")})
    made = cell(find_row("mlgru")).run(tmp_path, lambda: False)
    assert "figures" not in made
    assert "the figures are not finite after step" in made["diverged"]


def test_a_long_pattern_has_files_too(tmp_path: Path) -> None:
    pattern = "+".join(["window(size=64)", "mlgru"] * 20)
    first, second = (cell(find_row(pattern + end)) for end in ("", "+gru"))
    assert first.result(tmp_path) is None
    assert len(first.path(tmp_path).name) < 230
    assert first.path(tmp_path) != second.path(tmp_path)


def test_the_counts_of_a_model_are_those_of_its_layers() -> None:
    row = find_row("3*mlgru + window(size=8)")
    model = LanguageModel(row.config(d=16, layers=4, vocab=256, length=32))
    found = count(model, 32)
    state = model.initial_state(1)
    for token in range(32):
        state = model.step(torch.tensor([token]), state)[1]
    assert found["state_words"] == sum(each.numel() for layer in state for each in layer)
    assert found["macs"] == 4 * (4 * 16 * 16 + 3 * 16 * 48)
    assert found["multiplies"] == 3 * 3 * 16 + model.blocks()[3].mixer.products(32) + 4 * 48
    assert found["parameters"] == sum(each.numel() for each in model.parameters())


def test_costs_are_measured_at_each_length_that_a_mixer_is_made_for() -> None:
    costs = Costs(16, 1, (4, 12))
    assert set(measure_costs(find_row("gmlp"), costs)) == {"4", "12"}
    assert set(measure_costs(find_row("gmlp(length=8)"), costs)) == {"4"}
    grown = measure_costs(find_row("attention"), costs)
    assert [grown[each]["state_words"] for each in ("4", "12")] == [2 * 16 * 4, 2 * 16 * 12]
    assert all(each["decode_us"] > 0 for each in grown.values())
    assert measure_costs(find_row("fnet"), costs)["4"]["decode_us"] is None


# Summary and tables.

def written(path: Path, figures: dict[str, float], seconds: float = 2.0) -> None:
    path.write_text(json.dumps({"result": {
        "parameters": 5, "figures": figures, "tokens": 100, "seconds": seconds}}))


def test_means_and_deviations_are_those_over_the_seeds(tmp_path: Path) -> None:
    row = find_row("mlgru")
    study = Study(((row, (RECALL,)),), seeds=3, costs=Costs(16, 1, (4,)))
    values = [0.25, 0.5, 0.375]
    for seed, value in enumerate(values):
        written(cell(row, seed=seed).path(tmp_path), {"accuracy": value})
    written(cell(row, "seconds").path(tmp_path), {"accuracy": 0.125})
    found = summarize(study, tmp_path)
    tokens, seconds = (found["rows"][0]["tasks"]["recall"][name] for name in ("tokens", "seconds"))
    assert tokens["accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert tokens["accuracy"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert (seconds["seeds"], seconds["accuracy"]["deviation"]) == (1, None)
    assert found["missing"] == 3        # two of seconds, and the cost
    assert study_tables(found)["quality"].rows == [
        ("mlgru", "", "", "", "37.5±12.5", "12.5")]


def test_a_row_that_is_swept_has_the_rate_that_was_best(tmp_path: Path) -> None:
    row = find_row("mlgru")
    study = Study(((row, (RECALL,)),), seeds=2, swept=("mlgru",), costs=Costs(16, 1, (4,)))
    rates = swept_rates("ternary", RECALL)
    assert [each.recipe.lr for each in study.sweep_cells(tmp_path)
            ] == list(rates)
    for lr, value in zip(rates, (0.25, 0.5, 0.125), strict=True):
        written(cell(row, lr=lr).path(tmp_path), {"accuracy": value})
    trained = [each for each in study.cells(tmp_path) if isinstance(each, TrainingCell)]
    assert {each.recipe.lr for each in trained} == {rates[1]}
    assert len(trained) == 4
    found = summarize(study, tmp_path)
    assert found["sweep"][0]["by_lr"] == {f"{lr:g}": value for lr, value in zip(
        rates, (0.25, 0.5, 0.125), strict=True)}
    # For bits per byte less is better.
    text = TextTask(d=16)
    for lr, value in zip(swept_rates("ternary", text), (2.5, 2.25, 2.75), strict=True):
        written(TrainingCell(row, text, "tokens", 0, recipe_for("ternary", text, lr)).path(
            tmp_path), {"bpb": value})
    assert study.chosen_lr(row, text, tmp_path) == swept_rates("ternary", text)[1]


# Processes.

def test_processes_are_started_deaf_to_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or one that still imports prints where it was."""
    heard = []

    class Pool:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def submit(self, *_: object) -> Future[tuple[None, str]]:
            heard.append(signal.getsignal(signal.SIGINT))
            done: Future[tuple[None, str]] = Future()
            done.set_result((None, "not made"))
            return done

        def shutdown(self, **_: object) -> None:
            pass

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    make_cells([cell(find_row("mlgru"), seed=seed) for seed in (0, 1)], tmp_path, 2,
               lambda each, result, error: None)
    assert heard == [signal.SIG_IGN] * 2
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.slow
def test_two_processes_make_the_same_cells_as_one(tmp_path: Path) -> None:
    cells = [cell(find_row(name), seed=seed) for name in ("mlgru", "window") for seed in (0, 1)]
    errors: list[str] = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        make_cells(cells, folder, jobs, lambda each, result, error: errors.append(error))
    assert errors == [""] * 8
    for each in cells:
        one, two = (each.result(tmp_path / jobs) or {} for jobs in ("1", "2"))
        assert one["figures"] == two["figures"]
        assert [point[2] for point in one["curve"]] == [point[2] for point in two["curve"]]
