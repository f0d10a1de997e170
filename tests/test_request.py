"""What is asked of a core, and what an oracle answers, by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from sterna.hw.core.compute.request import Request
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.reference import answer, compare_logits, compare_tokens

SMALL = ModelConfig(d=12, layers=2, dff=21, vocab=20)
MODEL = random_model(SMALL, S16, seed=11)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"prompt": ()}, "a prompt must have at least one token"),
    ({"tokens": 1 << 16}, "tokens must be a whole number from 0 to 65535, got 65536"),
    ({"temperature": 0.001}, "temperature must be"),
    ({"seed": 1 << 32}, "seed must be a whole number from 1"),
    ({"predict": (True,)}, "got 1 for 2"),
    ({"predict": True}, "predict must have one boolean per token of the prompt, got True"),
    ({"predict": (True, 2)}, "predict must have one boolean per token of the prompt, got 2"),
    ({"prompt": (1, 2.5)}, r"a token of the prompt must be a whole number from 0, got 2\.5"),
    ({"prompt": (1, -1)}, "a token of the prompt must be a whole number from 0, got -1"),
    ({"prompt": "abc"}, "a token of the prompt must be a whole number from 0, got 'a'"),
    ({"prompt": 5}, "a prompt must be a row of tokens, got 5"),
    ({"stop_token": -1}, "stop_token must be a whole number from 0, got -1"),
])
def test_a_request_checks_its_numbers(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"prompt": (1, 2), **wrong})


def test_a_request_takes_any_row_of_tokens_and_numpys_numbers() -> None:
    tokens = np.array([1, 2, 3])
    assert Request(
        tokens, tokens[1], predict=tokens > 1, stop_token=tokens[0]) == Request(
        (1, 2, 3), 2, predict=(False, True, True), stop_token=1)
    assert hash(Request([1, 2])) == hash(Request((1, 2)))
    assert Request((1, 2, 3)).predictions == (False, False, True)
    assert Request((1, 2), predict=(True, False)).predictions == (True, False)


def test_generations_within_a_prompt_are_those_of_its_pieces() -> None:
    whole = Request((3, 7, 5, 2, 9), 3, 1.5, 6, predict=(False, True, False, True, False))
    pieces = [Request((3, 7), 3, 1.5, 6), Request((5, 2), 3, 1.5, start=False),
              Request((9,), predict=(False,), start=False)]
    (found,), parts = (answer(IntegerModel(MODEL), each) for each in ([whole], pieces))
    assert found.generated == [token for part in parts for token in part.generated]
    assert [len(each.tokens) for each in found.generations] == [3, 3]
    assert found.run == [token for part in parts for token in part.run]
    np.testing.assert_array_equal(
        found.logits, [logits for part in parts for logits in part.logits])
    np.testing.assert_array_equal(found.state, parts[-1].state)
    assert [(ran.prompt, ran.tokens, ran.start) for ran in found.as_ran()] == [
        ((3, 7), 3, True), ((5, 2), 3, False), ((9,), 0, False)]
    assert [ran.predictions for ran in found.as_ran()] == [
        (False, True), (False, True), (False,)]


def test_a_request_as_it_ran_has_as_many_tokens_as_came_before_the_stop_token() -> None:
    free, = answer(IntegerModel(MODEL), [Request((3, 0, 19), 30, 2.0, 5)])
    stop = next(token for token in free.generated[3:] if token not in free.generated[:3])
    stopped, = answer(
        IntegerModel(MODEL), [Request((3, 0, 19), 30, 2.0, 5, stop_token=stop)])
    count = free.generated.index(stop) + 1
    assert stopped.generated == free.generated[:count]
    assert stopped.as_ran() == [
        Request((3, 0, 19), count, 2.0, 5, predict=(False, False, True))]


def test_tokens_and_logits_that_differ_are_named_by_their_place() -> None:
    found, = answer(
        IntegerModel(MODEL), [Request((3, 7, 5, 2), 3, predict=(False, True, False, True))])
    tokens, logits = found.generated, np.array(found.logits)
    assert compare_tokens(found, tokens).passed
    assert compare_logits(found, logits).passed
    # Position 2 is the first token after the prediction at 1; two of three are run.
    for place, position in ((0, 2), (2, 4), (3, 6), (5, 8)):
        wrong = [token ^ (index == place) for index, token in enumerate(tokens)]
        first = compare_tokens(found, wrong).first
        assert first is not None
        assert first.token == position
    short = compare_tokens(found, tokens[:-1])
    assert short.mismatches == 1
    logits[0, 3] += 1
    assert str(compare_logits(found, logits).first).startswith("token 1, logits[3]")
    assert compare_logits(found, logits[1:]).mismatches == 1
    silent, = answer(IntegerModel(MODEL), [Request((3, 7), 5, predict=(False, False))])
    assert (silent.generated, silent.logits, silent.run) == ([], [], [3, 7])
    assert compare_logits(silent, np.zeros((0, 20), dtype=np.int64)).values == 0
    assert compare_logits(silent, np.zeros((1, 20), dtype=np.int64)).mismatches == 1
    assert compare_tokens(silent, []).values == 0
