"""``sterna mixers``: what it writes and prints, survives and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import refusal, run
from page_checks import check_page, drawings
from study_parts import OWN, own_mixer

from sterna.cli.study import run as study_run
from sterna.cli.study.run import core_costs, study_markdown
from sterna.model.config import ModelConfig
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.torch.study.cells import TrainingCell

ARGUMENTS = ("mixers", "--d", "16", "--budget", "1e-6", "--seeds", "1", "--jobs", "1")


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i} says {i * i % 97} and ends\n" for i in range(200)))
    return path


def test_the_command_writes_figures_tables_a_page_and_drawings(tmp_path, text_file, capsys):
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
    assert len(drawings(page)) == 3
    assert "tokens in the same CPU seconds" in page
    for name in ("state.svg", "seconds.svg", "distance.svg"):
        svg = (tmp_path / name).read_text()
        assert svg.startswith("<svg xmlns=")
        assert "prefers-color-scheme:dark" in svg       # ink that can be read there
    tables = (tmp_path / "mixers.md").read_text()
    assert tables.count("\n| mixer |") == 8
    assert f"torch {found['machine']['torch']}" in tables


def test_the_core_of_a_row_is_the_one_that_sterna_report_counts(capsys):
    _, out, _ = run(capsys, "report", "--config", "nano", "--json", "--quiet")
    told, core = json.loads(out), core_costs(ModelConfig.named("nano"))
    assert core == {
        "array": f"{told['rows']} x {told['cols']}",
        "cycles_per_token": told["cycles_per_token"]["greedy"],
        "state_bits": told["memory_bits"]["states"],
        "memory_bits": told["memory_bits"]["total"]}


def tables_in(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, the row of titles first."""
    found = re.findall(r"^((?:\|.*\n)+)", text, re.M)
    return [[[cell.strip() for cell in line.strip("|").split("|")]
             for line in table.splitlines() if not re.match(r"\|[ :|-]+$", line)]
            for table in found]


def test_the_page_of_mixers_has_the_figures_of_its_data():
    docs = Path(__file__).parents[1] / "docs"

    def data(name: str, seeds: int = 3) -> dict[str, dict[str, dict[str, str]]]:
        """The tables of a comparison by title, their rows by name."""
        found = json.loads((docs / "mixers" / f"{name}.json").read_text())
        assert (found["missing"], found["seeds"]) == (0, seeds)
        text = study_markdown(found)
        titles = re.findall(r"^(.*):\n\n\|", text, re.M)
        return {title.partition(",")[0]: {
            row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
            for title, table in zip(titles, tables_in(text), strict=True)}

    once, four, recall = data("mixers"), data("four"), data("recall")
    quality, models, steps, states, digits = (
        next(table for title, table in once.items() if title.startswith(start))
        for start in ("Bits per byte", "Model of text", "Microseconds", "Bytes of state", "Digits"))
    page = (docs / "mixers.md").read_text()
    budgets, by_weights, by_distance = tables_in(page.partition("## The comparison")[2])[:3]
    longer = next(iter(four.values()))
    assert budgets[1:] == [
        [name, quality[name]["bpb, tokens"], quality[name]["bpb, seconds"],
         *(each[column] for column in ("bpb, tokens", "bpb, seconds", "carried"))]
        for name, each in longer.items()]
    alone = {name: next(iter(next(iter(data(name, seeds).values())).values()))
             for kind, seeds in (
                 ("float", 3), ("ternary", 3), ("ternary-attention", 2), ("wide", 2))
             for name in (kind, f"{kind}-four")}
    assert by_weights[1:] == [
        [weights, title, *(row["bpb, tokens"] for row in rows)]
        for weights, title, *rows in (
            ("float", "mlgru", alone["float"], alone["float-four"]),
            ("float", "transformer", quality["transformer"], longer["transformer"]),
            ("ternary", "mlgru", alone["ternary"], alone["ternary-four"]),
            ("ternary", "attention", alone["ternary-attention"], alone["ternary-attention-four"]),
            ("ternary", "mlgru, d 128", alone["wide"], alone["wide-four"]))]
    recalled = recall["Recall in percent by tokens since the answer"]
    assert by_distance[1:] == [list(row.values()) for row in recalled.values()]
    text, shown = tables_in(f"{page.partition('## The full table')[2]}\n")
    assert text[1:] == [
        [name, each["bpb, tokens"], each["bpb, seconds"], models[name]["parameters"],
         models[name]["multiplies"], steps[name]["at 1,024"], states[name]["at 1,024"]]
        for name, each in quality.items()]
    assert shown[1:] == [list(row.values())[:4] for row in digits.values()]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    arguments = (*ARGUMENTS, "--task", "recall", "-o", tmp_path, "--mixer", "mlgru", "--json",
                 "--no-sweep")
    monkeypatch.setattr(study_run, "write_study", lambda folder, found: [])
    real, calls = TrainingCell.make, []

    def interrupted(self: TrainingCell, stopped: object) -> dict[str, object]:
        calls.append(self.title)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, stopped)

    monkeypatch.setattr(TrainingCell, "make", interrupted)
    code, out, err = run(capsys, *arguments)
    assert code == 130
    assert json.loads(out)["missing"] == 2
    assert (f"the results so far stay in {tmp_path}: the same command continues, 2 cells are left"
            in err)
    code, out, _ = run(capsys, *arguments)
    assert (code, json.loads(out)["missing"]) == (0, 0)
    assert (len(calls), len(set(calls))) == (3, 2)      # one was cut short


def test_a_mixer_that_fails_is_reported_with_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study_run, "write_study", lambda folder, found: [])
    broken = own_mixer(tmp_path, OWN.replace("return self", "raise KeyError('gone')\n        self"))
    code, _, err = run(capsys, *ARGUMENTS, "--task", "recall", "-o", tmp_path, "--mixer", broken)
    assert code == 1
    assert f"{broken}, recall, equal tokens, seed 0, lr 0.005: KeyError: 'gone'" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--mixer", "mlgur"), "no token mixer is called 'mlgur'; did you mean mlgru?"),
    (("--list", "--mixer", "mlrgu"), "no token mixer is called 'mlrgu'; did you mean mlgru?"),
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
def test_bad_input_gets_one_line(arguments, message, tmp_path, text_file, capsys):
    text = () if "recall" in arguments else ("--text", text_file)
    folder = tmp_path / "out"
    line = refusal(capsys, "mixers", "--quiet", "-o", folder, "--window", 16, *text, *arguments)
    assert message in line
    assert not folder.exists()


def test_the_list_has_every_mixer_with_its_options_and_whether_it_is_causal(capsys):
    code, out, _ = run(capsys, "mixers", "--list", "--json")
    found = {(each["kind"], each["name"]): each for each in json.loads(out)}
    assert code == 0
    assert {name for kind, name in found if kind == "token"} == set(TOKEN_MIXERS.names())
    assert {name for kind, name in found if kind == "channel"} == set(CHANNEL_MIXERS.names())
    window = found["token", "window"]
    assert (window["causal"], window["options"]["size"]) == (True, 64)
    assert found["token", "fnet"]["causal"] is False
    assert found["token", "mlgru"]["papers"] == ["2406.02528"]
    _, out, _ = run(capsys, "mixers", "--list", "--json", "--mixer", "hybrid", "--mixer", "gqa")
    assert [each["name"] for each in json.loads(out)] == ["mlgru", "window", "gqa", "glu", "hybrid"]
    _, out, _ = run(capsys, "mixers", "--list")
    assert max(map(len, out.splitlines())) <= 80
    assert all(re.search(rf"^{name} ", out, re.M) for name in TOKEN_MIXERS.names())


PEEKING = OWN.replace("return self.linear(x)", "return self.linear(x.roll(-1, 0))")
GROWING = OWN.replace("class Mine", "class Base").replace("* self.factor, ()", ", (x[-1],)") + """
    def initial_state(self, x):
        return (x.new_zeros(x.shape[1:]),)


class Mine(Base):
    pass
"""


@pytest.mark.parametrize(("source", "message"), [
    (PEEKING, "it is said to be causal, and its first 1 outputs depend on later tokens"),
    (OWN.replace("self.linear(x) *", "self.linear(x - x[:1]) *"), "read in two pieces, cut after"),
    (OWN + "\n    def step(self, x, state):\n        return self.linear(x) + 1, ()\n",
     "read token by token, at token 1: outputs differ by up to 1"),
    (GROWING, "state_words(0) says 0 numbers, and the state after 0 tokens has 16"),
])
def test_a_mixer_that_breaks_the_contract_is_refused_before_it_is_trained(
    source, message, tmp_path, capsys,
):
    assert source != OWN
    mine = own_mixer(tmp_path, source)
    line = refusal(capsys, *ARGUMENTS, "--task", "recall", "--quiet", "-o", tmp_path / "out",
                   "--mixer", mine)
    assert f"the mixer {mine} breaks the contract of mixers: {message}" in line
    assert not (tmp_path / "out").exists()
