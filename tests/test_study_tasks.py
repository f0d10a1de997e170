"""The tasks by which mixers are compared: text, recall and digits."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from study_parts import RECALL, write_text

from sterna.model.config import ModelConfig
from sterna.model.network.registry import TOKEN_MIXERS
from sterna.model.stack.language_model import Classifier, LanguageModel
from sterna.model.study.plan import default_entries
from sterna.model.study.rows import Row, find_row
from sterna.model.study.tasks import DigitsTask, RecallTask, TextTask


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


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

    from sterna.model.study.tasks import _split
    parts = [_split(seed) for seed in (0, 1)]
    for train, _, test, digits in parts:
        assert (len(train), len(test)) == (1437, 360)
        both = sorted(map(tuple, torch.cat([train, test]).tolist()))
        assert both == sorted(map(tuple, load_digits().data.astype(int).tolist()))
        assert set(digits.tolist()) == set(range(10))
    assert not torch.equal(parts[0][2], parts[1][2])


def test_the_unigram_entropy_is_that_of_the_held_out_bytes(text_file):
    task = TextTask(text=str(text_file))
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


def test_every_mixer_has_a_task_and_those_that_predict_have_two():
    tasks = (TextTask(d=16), RecallTask(d=16), DigitsTask(d=16))
    entries = {row.name: [task.name for task in mine] for row, mine in default_entries(tasks)}
    for name in TOKEN_MIXERS.names():
        if name != "ring" and not name.startswith("shift"):
            causal = find_row(name).is_causal(16)
            assert entries[name][:2] == (["text", "recall"] if causal else ["digits"])
    assert entries["mlgru"] == ["text", "recall", "digits"]
    assert entries["hybrid"] == entries["transformer"] == ["text", "recall"]
    assert len(default_entries(tasks, quick=True)) < len(entries) / 2
