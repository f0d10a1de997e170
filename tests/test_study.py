"""A comparison of mixers: tasks, budgets, cells, rates, figures, and what makes it fair."""

from __future__ import annotations

import itertools
import json
import math
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from study_parts import OWN, own_mixer

from sterna.cli.study import mixers
from sterna.cli.study.run import settings_text
from sterna.cli.study.tables import findings, study_tables
from sterna.model.config import ModelConfig
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.stack.language_model import Classifier, LanguageModel
from sterna.model.torch.study.cells import (
    Costs,
    StoppedError,
    TrainingCell,
    count,
    fit,
    make_cells,
    measure_costs,
    one_thread,
)
from sterna.model.torch.study.plan import (
    MOST_RATES,
    QUICK,
    SWEPT_ROWS,
    Study,
    default_entries,
    summarize,
)
from sterna.model.torch.study.rows import Row, _sources, code_hash, find_row
from sterna.model.torch.study.tasks import (
    DigitsTask,
    RecallTask,
    TextTask,
    _split,
    recipe_for,
    swept_rates,
)

RECALL = RecallTask(d=16, layers=1, batch=2, window=14, pairs=4, queries=6, vocab=16, tokens=56,
                    judged=4)
TEXT = TextTask(d=16, layers=1, batch=2, window=16, tokens=3 * 32, seconds=0.01)
MLGRU, TRANSFORMER = find_row("mlgru"), find_row("transformer")


def cell(row: Row, budget: str = "tokens", task: RecallTask | TextTask = RECALL, seed: int = 0,
         lr: float | None = None) -> TrainingCell:
    return TrainingCell(row, task, budget, seed, recipe_for(row.weights, task, lr))


# Budgets.

def test_a_budget_of_tokens_ends_with_them_and_one_of_seconds_with_the_processor_time(monkeypatch):
    task = replace(RECALL, tokens=5 * 28, seconds=3.5)
    ticks = iter(range(1000))
    monkeypatch.setattr("sterna.model.torch.study.cells.time.process_time",
                        lambda: float(next(ticks)))
    by_tokens, by_seconds = (
        fit(task.model(MLGRU, 0), task, budget, recipe_for("ternary", task), seed=0)
        for budget in ("tokens", "seconds"))
    assert (by_tokens.steps, by_tokens.tokens) == (5, 140)
    assert (by_seconds.steps, by_seconds.seconds) == (4, 4.0)   # a second a step, as it seems
    assert by_seconds.curve[-1][:2] == (4 * 28, 4.0)


def test_training_is_the_same_each_time_and_can_be_stopped_between_steps():
    recipe = recipe_for("ternary", RECALL)
    first, again = (fit(RECALL.model(MLGRU, 3), RECALL, "tokens", recipe, seed=3) for _ in range(2))
    assert [point[2] for point in first.curve] == [point[2] for point in again.curve]
    with pytest.raises(StoppedError):
        fit(RECALL.model(MLGRU, 0), RECALL, "tokens", recipe, seed=0, stopped=lambda: True)


def test_float_models_have_a_recipe_of_their_own():
    ternary, float_ = (recipe_for(weights, RECALL) for weights in ("ternary", "float"))
    assert (ternary.weight_decay, float_.weight_decay) == (0.5, 0.1)
    assert swept_rates("float", RECALL) == (0.5 * float_.lr, float_.lr, 2 * float_.lr)
    assert recipe_for("float", RECALL, 0.25).lr == 0.25


# Cells.

def test_a_result_belongs_to_its_settings_and_to_nothing_else(tmp_path):
    base = cell(MLGRU).path(tmp_path)
    others = [cell(MLGRU, "seconds"), cell(MLGRU, seed=1), cell(MLGRU, lr=1e-3),
              cell(find_row("mlgru(heads=2)")), cell(find_row("mlgru", weights="float")),
              cell(MLGRU, task=replace(RECALL, pairs=3))]
    assert len({base, *(each.path(tmp_path) for each in others)}) == 7
    # The budget that does not count may change.
    longer = replace(RECALL, seconds=99.0)
    assert cell(MLGRU, task=longer).path(tmp_path) == base
    assert cell(MLGRU, "seconds", longer).path(tmp_path) != cell(MLGRU, "seconds").path(tmp_path)
    # A long pattern has files, too.
    pattern = "+".join(["window(size=64)", "mlgru"] * 20)
    first, second = (cell(find_row(pattern + end)) for end in ("", "+gru"))
    assert first.result(tmp_path) is None
    assert len(first.path(tmp_path).name) < 230
    assert first.path(tmp_path) != second.path(tmp_path)


@pytest.mark.parametrize("name", ["mine.py:Mine", "torch_mixers:Mine"])
def test_a_mixer_that_computes_something_else_is_measured_again(name, tmp_path, monkeypatch):
    """Of a file or a module, whatever it is called; and what it imports belongs to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_mixers", raising=False)
    monkeypatch.delitem(sys.modules, "helper_of_mine", raising=False)
    (tmp_path / "helper_of_mine.py").write_text("def scaled(x, by):\n    return x * by\n")
    source = "from helper_of_mine import scaled\n" + OWN
    file = tmp_path / f"{name.partition(':')[0].removesuffix('.py')}.py"
    file.write_text(source)
    row = find_row(name)
    hashes = [code_hash(row)]
    file.write_text(source.replace("Passes", "Just passes") + "# a comment\n")
    assert code_hash(row) == hashes[0]
    file.write_text(source.replace("* self.factor", "+ self.factor"))
    hashes.append(code_hash(row))
    (tmp_path / "helper_of_mine.py").write_text("def scaled(x, by):\n    return x + by\n")
    hashes.append(code_hash(row))
    assert len(set(hashes)) == 3


def test_helpers_of_sternas_own_mixers_belong_to_them_and_libraries_do_not():
    files = {path.name for path in _sources((TOKEN_MIXERS.find("mlgru"),))}
    assert {"recurrent.py", "gates.py", "recurrence.py", "bitlinear.py"} <= files
    assert not files & {"abc.py", "module.py", "functional.py", "text.py"}


def test_what_is_made_is_not_made_again_and_a_mixer_that_fails_stops_no_other(tmp_path):
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
    for damaged in ("", "{", "[]", "{}", '{"result": 3}'):
        cells[0].path(tmp_path).write_text(damaged)
        assert cells[0].result(tmp_path) is None
    make_cells(cells[:1], tmp_path, 1, note)
    assert cells[0].result(tmp_path)["tokens"] == RECALL.tokens


def test_a_loss_or_figure_that_is_not_finite_is_a_result(tmp_path, monkeypatch):
    row = find_row(own_mixer(tmp_path, OWN.replace("* self.factor", "* float('nan')")))
    made = cell(row)
    assert made.run(tmp_path, lambda: False)["diverged"] == "the loss is not finite at step 1"
    assert "not finite" in made.summary(made.result(tmp_path) or {})
    study = Study(((row, (RECALL,)),), seeds=1, costs=Costs(16, 1, (4,)))
    table = study_tables(summarize(study, tmp_path))["quality"]
    assert "diverged" in table.rows[0]
    monkeypatch.setattr(RecallTask, "measure", lambda *_: {"accuracy": float("nan")})
    found = cell(MLGRU).run(tmp_path, lambda: False)
    assert "figures" not in found
    assert "the figures are not finite after step" in found["diverged"]


def test_the_counts_of_a_model_are_those_of_its_layers():
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


def test_costs_are_measured_at_each_length_that_a_mixer_is_made_for():
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


def test_means_and_deviations_are_those_over_the_seeds(tmp_path):
    study = Study(((MLGRU, (RECALL,)),), seeds=3, costs=Costs(16, 1, (4,)))
    values = [0.25, 0.5, 0.375]
    for seed, value in enumerate(values):
        written(cell(MLGRU, seed=seed).path(tmp_path), {"accuracy": value})
    written(cell(MLGRU, "seconds").path(tmp_path), {"accuracy": 0.125})
    found = summarize(study, tmp_path)
    tokens, seconds = (found["rows"][0]["tasks"]["recall"][name] for name in ("tokens", "seconds"))
    assert tokens["accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert tokens["accuracy"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert (seconds["seeds"], seconds["accuracy"]["deviation"]) == (1, None)
    assert found["missing"] == 3        # two of seconds, and the cost
    assert study_tables(found)["quality"].rows == [
        ("mlgru", "", "", "", "37.5±12.5", "12.5")]


@pytest.mark.parametrize(("ours", "said"), [
    ([2.0, 2.1, 2.2], "mlgru is 0.200 ahead of it (twice the standard error: 0.163)"),
    ([2.1, 2.2, 2.3], "the difference is within twice its standard error, 0.163"),
    ([2.4, 2.5, 2.6], "mlgru is 0.200 behind it"),
    ([1.0], "one seed says nothing about which is ahead"),
])
def test_nothing_is_ahead_within_twice_the_standard_error(tmp_path, ours, said):
    study = Study(((MLGRU, (TEXT,)), (TRANSFORMER, (TEXT,))), seeds=len(ours))
    for row, values in ((MLGRU, ours), (TRANSFORMER, [2.2, 2.3, 2.4])):
        for seed, value in enumerate(values[:len(ours)]):
            written(cell(row, task=TEXT, seed=seed).path(tmp_path), {"bpb": value})
    (line, *_) = findings(summarize(study, tmp_path))
    assert line.startswith(f"At equal tokens mlgru has {np.mean(ours):.3f} and transformer")
    assert said in line


# Learning rates.

def _pretend(
    study: Study, folder: Path, figure: Callable[[float], float], row: Row = MLGRU,
) -> list[float]:
    """Answer the cells of a sweep with ``figure(lr)``, until it asks for none; the rates."""
    (_, (task,)), = study.entries
    for _ in range(10):
        left = [each for each in study.sweep_cells(folder) if each.result(folder) is None]
        if not left:
            return sorted(study.sweep(row, task, folder))
        for each in left:
            value = figure(each.recipe.lr)
            result = ({"diverged": "at step 1"} if math.isnan(value) else
                      {"figures": {task.figure: value}, "parameters": 1,
                       "tokens": 1, "seconds": 1.0})
            each.path(folder).write_text(json.dumps({"result": result}))
    raise AssertionError("the sweep never ends")


def _peak(best: float) -> Callable[[float], float]:
    return lambda lr: -abs(math.log(lr / best))


@pytest.mark.parametrize("best", [1.25e-3, 5e-3, 4e-2])
def test_sweep_goes_on_until_its_best_lies_between_others(tmp_path, best):
    study = Study(((MLGRU, (RECALL,)),), swept=("mlgru",))
    rates = _pretend(study, tmp_path, _peak(best))
    assert study.chosen_lr(MLGRU, RECALL, tmp_path) == pytest.approx(best)
    assert min(rates) < best < max(rates)
    (found,) = summarize(study, tmp_path)["sweep"]
    assert found["inside"]
    assert list(found["by_lr"]) == [f"{lr:g}" for lr in rates]
    trained = [each for each in study.cells(tmp_path) if isinstance(each, TrainingCell)]
    assert {each.recipe.lr for each in trained} == {study.chosen_lr(MLGRU, RECALL, tmp_path)}


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


def test_unswept_rates_are_said_to_be_so(tmp_path):
    study = Study(((MLGRU, (TEXT,)), (find_row("window"), (TEXT,))), swept=("mlgru",))
    said = " ".join(settings_text(summarize(study, tmp_path)))
    assert "of mlgru is swept for each task; the others have 0.01 unswept" in said


# Fairness.

def test_every_mixer_has_tasks_and_rows_to_compare_with_are_swept_in_all():
    tasks = (TextTask(), RecallTask(), DigitsTask())
    entries = {row.name: [task.name for task in mine] for row, mine in default_entries(tasks)}
    for name in TOKEN_MIXERS.names():
        if name != "ring" and not name.startswith("shift"):
            causal = find_row(name).is_causal(16)
            assert entries[name][:2] == (["text", "recall"] if causal else ["digits"])
    assert entries["mlgru"] == ["text", "recall", "digits"]
    assert entries["hybrid"] == entries["transformer"] == ["text", "recall"]
    assert [row.name for row, _ in default_entries(tasks, quick=True)] == list(QUICK)
    swept = {(find_row(name).weights, task) for name in SWEPT_ROWS for task in entries[name]}
    assert swept == {(weights, task.name) for weights in ("ternary", "float") for task in tasks}


def test_without_scikit_learn_the_digits_are_left_out(monkeypatch, capsys):
    asked = {"budget": 1.0, "d": 64, "window": None, "text": None}
    assert [task.name for task in mixers._tasks(None, **asked)] == ["text", "recall", "digits"]
    monkeypatch.setattr(mixers, "find_spec", lambda name: None)
    assert [task.name for task in mixers._tasks(None, **asked)] == ["text", "recall"]
    assert "without digits" in capsys.readouterr().err
    assert [task.name for task in mixers._tasks(["digits"], **asked)] == ["digits"]


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
    monkeypatch.setattr("sterna.model.torch.study.cells.time.process_time", lambda: now)
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


# Processes.

def test_processes_are_started_deaf_to_ctrl_c(tmp_path, monkeypatch):
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
    monkeypatch.setattr("sterna.model.torch.study.cells.ProcessPoolExecutor", Pool)
    make_cells([cell(find_row("mlgru"), seed=seed) for seed in (0, 1)], tmp_path, 2,
               lambda each, result, error: None)
    assert heard == [signal.SIG_IGN] * 2
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.slow
def test_two_processes_make_the_same_cells_as_one(tmp_path):
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


# Tasks.

def test_an_answer_is_the_value_that_stood_after_the_key():
    task = RecallTask(window=64, pairs=5, queries=16, vocab=24, batch=2)
    seen = set()
    for step in range(24):
        inputs, targets = (each.t().tolist() for each in task.sample(step, 0))
        for line, answers in zip(inputs, targets, strict=True):
            count = next(i for i in range(0, 12, 2) if line[i] == 24 or answers[i] >= 0) // 2
            given = dict(zip(line[:2 * count:2], line[1:2 * count:2], strict=True))
            assert len(given) == count <= 5
            assert max(given) < 12 <= min(given.values())
            assert answers == [-100] * (2 * count) + [
                given[key] if key != 24 else -100 for key in line[2 * count:]]
            assert sum(answer >= 0 for answer in answers) * 4 == len(line)
            seen.add((count, len(line), len(inputs)))
    assert {(count, length * batch) for count, length, batch in seen} == {
        (1, 128), (2, 128), (5, 128)}           # all pairs, a half, a quarter
    assert {length for _, length, _ in seen} == {64, 32, 16, 8}


def test_sequences_belong_to_seed_and_step_and_are_held_out_from_both():
    first, again, other, later = (
        RECALL.sample(step, seed)[0] for step, seed in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, later)
    asked = {}

    class Probe(LanguageModel):
        def forward_time_major(self, tokens, state):
            asked["tokens"] = tokens
            return super().forward_time_major(tokens, state)

    with torch.no_grad():
        RECALL.measure(Probe(ModelConfig(16, 1, 16, 16)), 0)
    assert asked["tokens"].shape == (RECALL.length, 4)
    assert not torch.equal(asked["tokens"][:len(first), :first.shape[1]], first)


def test_recall_counts_right_answers_by_the_distance_at_which_they_stood():
    task = RecallTask(window=80, pairs=4, queries=60, vocab=16, judged=8)

    class Oracle(LanguageModel):
        """Knows what stood at most ``reach`` tokens ago."""

        reach = 80

        def forward_time_major(self, tokens, state):
            logits = torch.zeros(*tokens.shape, 17)
            for time, place in itertools.product(range(8, 80), range(1, 8, 2)):
                if time - place <= self.reach:
                    same = tokens[place - 1] == tokens[time]
                    logits[time, same, tokens[place, same]] = 1.0
            return logits, state

    oracle = Oracle(ModelConfig(16, 1, 16, 17))
    assert task.measure(oracle, 0) == {
        "accuracy": 1.0, "accuracy_16": 1.0, "accuracy_64": 1.0, "accuracy_128": 1.0}
    oracle.reach = 16
    found = task.measure(oracle, 0)
    assert 0.1 < found.pop("accuracy") < 0.5
    assert found == {"accuracy_16": 1.0, "accuracy_64": 0.0, "accuracy_128": 0.0}


def test_the_digits_are_split_by_the_seed_and_no_image_is_in_both_parts():
    from sklearn.datasets import load_digits
    parts = [_split(seed) for seed in (0, 1)]
    for train, _, test, digits in parts:
        assert (len(train), len(test)) == (1437, 360)
        both = sorted(map(tuple, torch.cat([train, test]).tolist()))
        assert both == sorted(map(tuple, load_digits().data.astype(int).tolist()))
        assert set(digits.tolist()) == set(range(10))
    assert not torch.equal(parts[0][2], parts[1][2])


def test_the_unigram_entropy_is_that_of_the_held_out_bytes():
    task = TextTask()
    counts = np.bincount(np.frombuffer(task.corpus().heldout, dtype=np.uint8))
    assert task.facts()["unigram"] == pytest.approx(entropy(counts[counts > 0], base=2))


def test_a_classifier_without_positions_does_not_see_the_order_of_its_tokens():
    config = ModelConfig(16, 2, 32, 17, mixer="attention(causal=false, rope=false)")
    model = Classifier(config, 10, 12).double()
    tokens = torch.randint(17, (3, 12), generator=torch.Generator().manual_seed(0))
    shuffled = tokens[:, torch.randperm(12, generator=torch.Generator().manual_seed(1))]
    assert not torch.allclose(model(tokens), model(shuffled))
    with torch.no_grad():
        model.positions.weight.zero_()
    torch.testing.assert_close(model(tokens), model(shuffled))
    with pytest.raises(ValueError, match="sequences must have 12 tokens, got 11"):
        model(tokens[:, :11])
    with pytest.raises(ValueError, match="at most 8 tokens, got 12"):
        Classifier(ModelConfig(16, 1, 32, 17, mixer="gmlp(length=8)"), 10, 12)


def test_fixed_mixers_are_made_for_the_length_of_a_task_unless_the_row_says_another():
    row = Row("r", "2*gmlp + mlgru + synthesizer_random(length=99, heads=2)")
    assert row.config(d=16, layers=4, vocab=8, length=24).mixer == (
        "2*gmlp(length=24) + mlgru + synthesizer_random(length=99, heads=2)")
    assert not find_row("mlgru + fnet").is_causal(16)
    assert find_row("transformer") == Row("transformer", "attention", weights="float")
    assert find_row("mlgru", "relu2", "float") == Row(
        "mlgru channel=relu2 weights=float", "mlgru", "relu2", "float")
