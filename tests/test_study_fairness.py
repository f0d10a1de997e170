"""What makes a comparison of mixers fair, and what it survives."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from sterna.cli.study.page import settings_text
from sterna.cli.study.tables import findings
from sterna.model.study import fit as fitting
from sterna.model.study.cells import TrainingCell
from sterna.model.study.costs import Costs, count, measure_costs
from sterna.model.study.entries import SWEPT_ROWS, default_entries
from sterna.model.study.fit import fit, one_thread
from sterna.model.study.plan import MOST_RATES, Study
from sterna.model.study.recipes import recipe_for, swept_rates
from sterna.model.study.summary import summarize
from sterna.model.study.tasks.digits import DigitsTask
from sterna.model.study.tasks.recall import RecallTask
from sterna.model.study.tasks.row import find_row
from sterna.model.study.tasks.text import TextTask
from sterna.model.study.workers import make_cells

TEXT = TextTask(d=16, layers=1, batch=2, window=16, tokens=3 * 32, seconds=0.01)
RECALL = RecallTask(d=16, layers=1, batch=2, tokens=3 * 2 * 24, seconds=0.01, judged=4)
MLGRU, TRANSFORMER = find_row("mlgru"), find_row("transformer")


def _cell(row=MLGRU, task=RECALL, budget="tokens", seed=0, lr=None):
    return TrainingCell(row, task, budget, seed, recipe_for(row.weights, task, lr))


def _pretend(study: Study, folder: Path, figure, row=MLGRU) -> list[float]:
    """Answer the cells of a sweep with ``figure(lr)``, until it asks for none; the rates."""
    (_, (task,)), = study.entries
    for _ in range(10):
        left = [each for each in study.sweep_cells(folder) if each.result(folder) is None]
        if not left:
            return sorted(study.sweep(row, task, folder))
        for cell in left:
            value = figure(cell.recipe.lr)
            result = ({"diverged": "at step 1"} if math.isnan(value) else
                      {"figures": {task.figure: value}, "parameters": 1,
                       "tokens": 1, "seconds": 1.0})
            cell.path(folder).write_text(json.dumps({"result": result}))
    raise AssertionError("the sweep never ends")


def _peak(best: float):
    return lambda lr: -abs(math.log(lr / best))


@pytest.mark.parametrize("best", [1.25e-3, 5e-3, 4e-2])
def test_sweep_goes_on_until_its_best_lies_between_others(tmp_path, best):
    study = Study(((MLGRU, (RECALL,)),), swept=("mlgru",))
    rates = _pretend(study, tmp_path, _peak(best))
    assert study.chosen_lr(MLGRU, RECALL, tmp_path) == pytest.approx(best)
    assert min(rates) < best < max(rates)
    assert summarize(study, tmp_path)["sweep"][0]["inside"]


def test_sweep_without_an_end_is_given_up_and_said(tmp_path):
    study = Study(((MLGRU, (RECALL,)),), swept=("mlgru",))
    assert len(_pretend(study, tmp_path, lambda lr: lr)) == MOST_RATES
    found = summarize(study, tmp_path)
    assert not found["sweep"][0]["inside"]
    assert any("mlgru on recall" in line for line in findings(found))


def test_of_equal_rates_the_recipes_is_taken(tmp_path):
    study = Study(((MLGRU, (RECALL,)),), swept=("mlgru",))
    assert _pretend(study, tmp_path, lambda lr: 1.0) == list(swept_rates("ternary", RECALL))
    assert study.chosen_lr(MLGRU, RECALL, tmp_path) == recipe_for("ternary", RECALL).lr


def test_sweep_flees_rates_that_diverge(tmp_path):
    study = Study(((TRANSFORMER, (TEXT,)),), swept=("transformer",))
    rates = _pretend(study, tmp_path, lambda lr: math.nan if lr > 1e-3 else 3 + lr, TRANSFORMER)
    assert min(rates) < 1e-3
    assert study.chosen_lr(TRANSFORMER, TEXT, tmp_path) < 1e-3


def test_rows_to_compare_with_are_swept_in_every_task():
    tasks = (TextTask(), RecallTask(), DigitsTask())
    of = {row.name: [task.name for task in mine] for row, mine in default_entries(tasks)}
    swept = {(of_weights, task) for name in SWEPT_ROWS for task in of[name]
             for of_weights in [find_row(name).weights]}
    assert swept == {(weights, task.name) for weights in ("ternary", "float") for task in tasks}


def test_all_rows_train_on_the_same_tokens_in_the_same_arithmetic():
    seen = {}
    for row in (MLGRU, TRANSFORMER, find_row("window")):
        steps, precisions = [], set()

        def note(task, model, inputs, targets, steps=steps, precisions=precisions):
            steps.append((inputs.clone(), targets.clone()))
            precisions.add((torch.get_float32_matmul_precision(), torch.get_num_threads()))
            return TextTask.loss(task, model, inputs, targets)

        class Noted(TextTask):
            loss = note

        task = Noted(**{name: getattr(TEXT, name) for name in (
            "d", "layers", "batch", "window", "tokens", "seconds")})
        with one_thread():
            done = fit(task.model(row, 3), task, "tokens", recipe_for(row.weights, task), seed=3)
        assert (done.steps, done.tokens) == (3, TEXT.tokens)
        assert precisions == {("highest", 1)}
        seen[row.name] = steps
    for steps in seen.values():
        assert all(map(torch.equal, sum(steps, ()), sum(seen["mlgru"], ())))


def test_seconds_are_those_of_training_alone(monkeypatch):
    """Not those of reading the text, which the first sample does."""
    now = 0.0

    class Slow(TextTask):
        def sample(self, step, seed):
            nonlocal now
            now += 1.0 if read else 100.0
            read.append(step)
            return TextTask.sample(self, step, seed)

    read = []
    monkeypatch.setattr(fitting.time, "process_time", lambda: now)
    task = Slow(d=16, layers=1, batch=2, window=16, seconds=4.0)
    done = fit(task.model(MLGRU, 0), task, "seconds", recipe_for("ternary", task), seed=0)
    assert (done.steps, done.seconds) == (4, 4.0)


def test_transformer_has_as_many_parameters():
    sizes = [count(TextTask().model(row, 0), 1)["parameters"] for row in (MLGRU, TRANSFORMER)]
    assert abs(sizes[1] / sizes[0] - 1) < 0.01


def test_transformer_begins_as_the_identity_and_learns_by_fused_attention(monkeypatch):
    model = TEXT.model(TRANSFORMER, 0)
    x = torch.randn(16, 2, 16)
    for block in model.blocks():
        assert torch.equal(block(x, block.mixer.initial_state(x))[0], x)
    called = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                        lambda *args, **given: called.append(given) or fused(*args, **given))
    TEXT.loss(model, *TEXT.sample(0, 0)).backward()
    assert called
    assert all(each["is_causal"] and each["attn_mask"] is None for each in called)


def test_float_embeddings_start_small_beside_what_blocks_add():
    for weights, deviation in (("ternary", 1.0), ("float", 1 / 8)):
        model = TextTask().model(find_row("mlgru", weights=weights), 0)
        assert float(model.embedding.weight.detach().std()) == pytest.approx(deviation, rel=0.02)


def test_costs_are_those_counted_by_hand():
    found = measure_costs(TRANSFORMER, Costs(d=16, layers=2, lengths=(8,)))["8"]
    weights = 4 * 16 * 16 + 3 * 16 * 48
    attention = 2 * 8 * 16 + 2 * 2 * 16             # scores and sum, rotations
    assert found["macs"] == 0
    assert found["state_words"] == 2 * 2 * 8 * 16
    assert found["multiplies"] == 2 * (weights + attention + 48)
    assert measure_costs(MLGRU, Costs(d=16, layers=2, lengths=(8,)))["8"]["macs"] == 2 * weights


def test_damaged_cell_is_made_again(tmp_path):
    cell = _cell()
    for text in ("", "{", "[]", "{}", '{"result": 3}'):
        cell.path(tmp_path).write_text(text)
        assert cell.result(tmp_path) is None
    make_cells([cell], tmp_path, 1, lambda *noted: None)
    assert cell.result(tmp_path)["tokens"] == RECALL.tokens


def test_unswept_rates_are_said_to_be_so(tmp_path):
    study = Study(((MLGRU, (TEXT,)), (find_row("window"), (TEXT,))), swept=("mlgru",))
    said = " ".join(settings_text(summarize(study, tmp_path)))
    assert "of mlgru is swept for each task; the others have 0.01 unswept" in said
