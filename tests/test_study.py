"""The comparison of mixers: its tasks, budgets, cells and tables, in models of a moment."""

from __future__ import annotations

import json
import re
import signal
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import refusal, run
from page_checks import check_page, drawings
from scipy.stats import entropy

from sterna.cli.study import run as study_run
from sterna.cli.study.core import core_costs
from sterna.cli.study.page import study_markdown
from sterna.cli.study.tables import study_tables
from sterna.model.config import ModelConfig
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.stack.classifier import Classifier
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study import fit as fit_module
from sterna.model.study import workers
from sterna.model.study.cells import TrainingCell
from sterna.model.study.costs import Costs, count, measure_costs
from sterna.model.study.entries import default_entries
from sterna.model.study.fit import StoppedError, fit
from sterna.model.study.plan import Study
from sterna.model.study.recipes import recipe_for, swept_rates
from sterna.model.study.summary import summarize
from sterna.model.study.tasks.digits import DigitsTask
from sterna.model.study.tasks.recall import RecallTask
from sterna.model.study.tasks.row import Row, code_hash, find_row
from sterna.model.study.tasks.text import TextTask
from sterna.model.study.workers import make_cells

ARGUMENTS = ("mixers", "--d", "16", "--budget", "1e-6", "--seeds", "1", "--jobs", "1")
RECALL = RecallTask(d=16, layers=1, batch=2, pairs=4, queries=6, vocab=16, tokens=56, judged=4)
OWN = """
from sterna.model.network.mixer import TokenMixer

class Mine(TokenMixer):
    \"\"\"Passes its input on.\"\"\"

    def __init__(self, init, *, factor: float = 1.0):
        super().__init__()
        self.linear, self.factor = init.linear(init.d, init.d), factor

    def forward(self, x, state):
        return self.linear(x) * self.factor, ()
"""


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i} says {i * i % 97} and ends\n" for i in range(200)))
    return path


def own_mixer(folder: Path, source: str = OWN) -> str:
    (folder / "mine.py").write_text(source)
    return f"{folder / 'mine.py'}:Mine"


def cell(row: Row, budget: str = "tokens", task: RecallTask = RECALL, seed: int = 0,
         lr: float | None = None) -> TrainingCell:
    return TrainingCell(row, task, budget, seed, recipe_for(row.weights, task, lr))


# Tasks.

def test_an_answer_is_the_value_that_stood_after_the_key() -> None:
    task = RecallTask(pairs=5, queries=9, vocab=24)
    seen = set()
    for step in range(12):
        inputs, targets = (each.t().tolist() for each in task.sample(step, 0))
        for line, answers in zip(inputs, targets, strict=True):
            count = next(i for i, each in enumerate(answers) if each >= 0) // 2
            given = dict(zip(line[:2 * count:2], line[1:2 * count:2], strict=True))
            assert len(given) == count <= 5
            assert max(given) < 12 <= min(given.values())
            assert answers[:2 * count] == [-100] * (2 * count)
            assert [given[key] for key in line[2 * count:]] == answers[2 * count:]
        seen.add(count)
    assert seen == {1, 2, 5}        # all pairs, a half, a quarter


def test_sequences_belong_to_seed_and_step_and_are_held_out_from_both() -> None:
    first, again, other, later = (
        RECALL.sample(step, seed)[0] for step, seed in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, later)
    asked = {}

    class Probe(LanguageModel):
        def forward_time_major(self, tokens, state):  # type: ignore[no-untyped-def]
            asked["tokens"] = tokens
            return super().forward_time_major(tokens, state)

    with torch.no_grad():
        RECALL.measure(Probe(ModelConfig(16, 1, 16, 16)), 0)
    assert asked["tokens"].shape == (RECALL.length, 4)
    assert not torch.equal(asked["tokens"][:, :2], first)


def test_a_model_that_knows_the_answers_has_all_of_them_right() -> None:
    task = RecallTask(pairs=4, queries=6, vocab=16, judged=8)

    class Oracle(LanguageModel):
        def forward_time_major(self, tokens, state):  # type: ignore[no-untyped-def]
            given = tokens[:8].t()
            values = torch.stack([
                line[1::2][(line[0::2].unsqueeze(0) == keys.unsqueeze(1)).int().argmax(1)]
                for line, keys in zip(given, tokens.t(), strict=True)], 1)
            return torch.nn.functional.one_hot(values, 16).float(), state

    assert task.measure(Oracle(ModelConfig(16, 1, 16, 16)), 0) == {"accuracy": 1.0}


def test_the_digits_are_split_by_the_seed_and_no_image_is_in_both_parts() -> None:
    from sklearn.datasets import load_digits

    from sterna.model.study.tasks.digits import _split
    parts = [_split(seed) for seed in (0, 1)]
    for train, _, test, digits in parts:
        assert (len(train), len(test)) == (1437, 360)
        both = sorted(map(tuple, torch.cat([train, test]).tolist()))
        assert both == sorted(map(tuple, load_digits().data.astype(int).tolist()))
        assert set(digits.tolist()) == set(range(10))
    assert not torch.equal(parts[0][2], parts[1][2])


def test_the_unigram_entropy_is_that_of_the_held_out_bytes(text_file: Path) -> None:
    task = TextTask(text=str(text_file))
    counts = np.bincount(np.frombuffer(task.corpus().heldout, dtype=np.uint8))
    assert task.facts()["unigram"] == pytest.approx(entropy(counts[counts > 0], base=2))


def test_a_classifier_without_positions_does_not_see_the_order_of_its_tokens() -> None:
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


def test_fixed_mixers_are_made_for_the_length_of_a_task_unless_the_row_says_another() -> None:
    row = Row("r", "2*gmlp + mlgru + synthesizer_random(length=99, heads=2)")
    assert row.config(d=16, layers=4, vocab=8, length=24).mixer == (
        "2*gmlp(length=24) + mlgru + synthesizer_random(length=99, heads=2)")
    assert not find_row("mlgru + fnet").is_causal(16)
    assert find_row("transformer") == Row("transformer", "attention", weights="float")
    assert find_row("mlgru", "relu2", "float") == Row(
        "mlgru channel=relu2 weights=float", "mlgru", "relu2", "float")


def test_every_mixer_has_a_task_and_those_that_predict_have_two() -> None:
    tasks = (TextTask(d=16), RecallTask(d=16), DigitsTask(d=16))
    entries = {row.name: [task.name for task in mine] for row, mine in default_entries(tasks)}
    for name in TOKEN_MIXERS.names():
        if name != "ring" and not name.startswith("shift"):
            causal = find_row(name).is_causal(16)
            assert entries[name][:2] == (["text", "recall"] if causal else ["digits"])
    assert entries["mlgru"] == ["text", "recall", "digits"]
    assert entries["hybrid"] == entries["transformer"] == ["text", "recall"]
    assert len(default_entries(tasks, quick=True)) < len(entries) / 2


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

    make_cells(cells, tmp_path, 1, note)        # type: ignore[arg-type]
    assert told == [("mlgru", ""), (broken, "KeyError: 'gone'"), ("window", "")]
    told.clear()
    make_cells(cells, tmp_path, 1, note)        # type: ignore[arg-type]
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
    assert [each.recipe.lr for each in study.sweep_cells(tmp_path)   # type: ignore[attr-defined]
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


# The command.

def test_the_command_writes_figures_tables_a_page_and_drawings(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, *ARGUMENTS, "--text", text_file, "--window", 16, "-o", tmp_path,
                         "--sweep", "--mixer", "mlgru", "--mixer", "transformer", "--mixer", "fnet")
    assert code == 0
    assert "3/15, " in err
    for title in ("bits per byte and recall", "digits read", "model of text", "in gateware",
                  "microseconds of a step", "learning rates tried"):
        assert title in out
    assert "At equal tokens mlgru has " in out
    assert "Not below the unigram entropy of the text" in out       # after one step
    assert max(map(len, out.partition("microseconds")[2].partition("in gate")[0].splitlines())
               ) <= 80
    found = json.loads((tmp_path / "mixers.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["mlgru", "transformer", "fnet"]
    assert [row["integer_form"] for row in rows.values()] == [True, False, False]
    assert found["core"]["mlgru"]["state_bits"] == 4 * 16 * 16      # as many words of 16 bits
    assert rows["mlgru"]["costs"]["6000"]["state_bytes"] == 4 * 4 * 16
    page = (tmp_path / "mixers.html").read_text()
    check_page(page)
    assert len(drawings(page)) == 2
    assert "tokens in the same CPU seconds" in page
    for name in ("state.svg", "seconds.svg"):
        svg = (tmp_path / name).read_text()
        assert svg.startswith("<svg xmlns=")
        assert "prefers-color-scheme:dark" in svg       # ink that can be read there
    tables = (tmp_path / "mixers.md").read_text()
    assert tables.count("\n| mixer |") == 7
    assert f"torch {found['machine']['torch']}" in tables


def test_the_core_of_a_row_is_the_one_that_sterna_report_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "report", "--config", "nano", "--json", "--quiet")
    told, core = json.loads(out), core_costs(ModelConfig.named("nano"))
    assert core == {
        "array": f"{told['rows']} x {told['cols']}",
        "cycles_per_token": told["cycles_per_token"]["greedy"],
        "state_bits": told["memory_bits"]["working"]["MLGRU state"],
        "memory_bits": told["memory_bits"]["total"]}


def test_the_page_of_mixers_has_the_tables_of_its_data() -> None:
    docs = Path(__file__).parents[1] / "docs"
    found = json.loads((docs / "mixers" / "mixers.json").read_text())
    assert (found["missing"], found["seeds"]) == (0, 3)
    assert study_markdown(found) in (docs / "mixers.md").read_text()


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (*ARGUMENTS, "--task", "recall", "-o", tmp_path, "--mixer", "mlgru", "--json",
                 "--no-sweep")
    monkeypatch.setattr(study_run, "write_study", lambda folder, found: [])
    real, calls = TrainingCell.make, []

    def interrupted(self: TrainingCell, stopped: object) -> dict[str, object]:
        calls.append(self.title)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, stopped)          # type: ignore[arg-type]

    monkeypatch.setattr(TrainingCell, "make", interrupted)
    code, out, err = run(capsys, *arguments)
    assert code == 130
    assert json.loads(out)["missing"] == 2
    assert f"what is done stays in {tmp_path}: the same command goes on, 2 cells are left" in err
    code, out, _ = run(capsys, *arguments)
    assert (code, json.loads(out)["missing"]) == (0, 0)
    assert (len(calls), len(set(calls))) == (3, 2)      # one was cut short


def test_a_mixer_that_fails_is_reported_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(study_run, "write_study", lambda folder, found: [])
    broken = own_mixer(tmp_path, OWN.replace("return self", "raise KeyError('gone')\n        self"))
    code, _, err = run(capsys, *ARGUMENTS, "--task", "recall", "-o", tmp_path, "--mixer", broken)
    assert code == 1
    assert f"{broken}, recall, equal tokens, seed 0, lr 0.005: KeyError: 'gone'" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--mixer", "mlgur"), "no token mixer is called 'mlgur'; did you mean mlgru?"),
    (("--mixer", "mlgru(size=3)"), "the token mixer mlgru has no option 'size'; it has heads"),
    (("--mixer", "gmlp(length=8)"), "at most 8 tokens, got 16: give it the option length=16"),
    (("--mixer", "fnet", "--task", "text"), "fnet is not causal, so it cannot predict"),
    (("--mixer", "mlgru", "--channel", "glue"), "no channel mixer is called 'glue'; did you mean"),
    (("--mixer", "mlgru", "--weights", "binary"), "--weights must be one of ternary, float"),
    (("--weights", "float"), "--weights is for rows of your own: give --mixer as well"),
    (("--task", "texts"), "--task must be one of text, recall, digits, got 'texts'"),
    (("--jobs", "0"), "--jobs must be a whole number from 1, got 0"),
    (("--mixer", "hybird"), "no row is called 'hybird'; did you mean hybrid?"),
    (("--budget", "0"), "--budget must be above 0, up to a million, got 0.0"),
    (("--budget", "nan"), "--budget must be above 0, up to a million, got nan"),
    (("--budget", "1e305"), "--budget must be above 0, up to a million, got 1e+305"),
    (("--seeds", "1001"), "--seeds must be a whole number from 1 to 1000, got 1001"),
    (("--d", "99999"), "--d must be a whole number from 1 to 21845, got 99999"),
    (("--lr", "nan"), "--lr must be a positive number, got nan"),
    (("--channel", "mlp"), "--channel is for rows of your own: give --mixer as well"),
    (("--sweep", "--lr", "0.01"), "--sweep finds learning rates, and --lr gives one"),
    (("--mixer", "missing.py:Mine"), "cannot read missing.py"),
    (("--task", "recall", "--text", "x"), "--text is for the task text"),
    (("--task", "recall"), "--window is for the task text: leave it out, or ask for that task"),
])
def test_bad_input_gets_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, text_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = () if "recall" in arguments else ("--text", text_file)
    folder = tmp_path / "out"
    line = refusal(capsys, "mixers", "--quiet", "-o", folder, "--window", 16, *text, *arguments)
    assert message in line
    assert not folder.exists()


def test_the_list_has_every_mixer_with_its_options_and_whether_it_is_causal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "mixers", "--list", "--json")
    found = {(each["kind"], each["name"]): each for each in json.loads(out)}
    assert code == 0
    assert {name for kind, name in found if kind == "token"} == set(TOKEN_MIXERS.names())
    assert {name for kind, name in found if kind == "channel"} == set(CHANNEL_MIXERS.names())
    window = found["token", "window"]
    assert (window["causal"], window["options"]["size"]) == (True, 64)
    assert found["token", "fnet"]["causal"] is False
    assert found["token", "mlgru"]["papers"] == ["2406.02528"]
    _, out, _ = run(capsys, "mixers", "--list")
    assert max(map(len, out.splitlines())) <= 80
    assert all(re.search(rf"^{name} ", out, re.M) for name in TOKEN_MIXERS.names())


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
