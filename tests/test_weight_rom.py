# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The weight memory, in Amaranth's simulator."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.weight_rom import WeightRom, WeightRomParams

PAUSES = [Pauses(), Pauses(0.7, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]


def contents(words: int, word_bits: int) -> list[int]:
    dice = random.Random(words)
    values = [dice.getrandbits(word_bits) for _ in range(words)]
    values[0], values[-1] = (1 << word_bits) - 1, 1
    return values


def rom(words: list[int], word_bits: int) -> WeightRom:
    return WeightRom(WeightRomParams(len(words), word_bits), words)


def payloads_of(dut: WeightRom, requests: list[tuple[int, int]]) -> list[int]:
    return [dut.params.request_layout.const({"first": first, "count": count}).as_value().value
            for first, count in requests]


def expected(words: list[int], requests: list[tuple[int, int]]) -> list[int]:
    return [word for first, count in requests for word in words[first:first + count]]


def check(dut, words, requests, pauses=PAUSES[0]) -> StreamRun:
    wanted = expected(words, requests)
    run = run_stream(dut, dut.requests, dut.beats, payloads_of(dut, requests), len(wanted),
                     pauses=pauses, max_cycles=30 * len(wanted) + 30 * len(requests) + 50)
    assert run.results == wanted
    return run


@pytest.mark.parametrize("pauses", PAUSES, ids=str)
@pytest.mark.parametrize(("count", "word_bits"), [(1, 1), (2, 5), (7, 1), (64, 40), (100, 300)])
def test_runs_come_in_order_while_both_ends_pause(pauses, count, word_bits):
    words = contents(count, word_bits)
    dice = random.Random(pauses.seed)
    requests = [(0, count), (count - 1, 1), (0, 1), (0, 1)]
    for _ in range(12):
        first = dice.randrange(count)
        requests.append((first, dice.randint(1, min(count - first, 9))))
    check(rom(words, word_bits), words, requests, pauses)


@pytest.mark.parametrize("counts", [(5, 1, 3), (1, 1, 1, 1, 1), (1, 2, 1, 2), (16, 16)])
def test_waiting_requests_follow_without_a_gap(counts):
    words = contents(16, 8)
    dut = rom(words, 8)
    run = check(dut, words, [(16 - count, count) for count in counts])
    latency = dut.params.latency
    assert latency == 2
    assert run.sent_at[:2] == [0, 1]        # one in progress and one that waits
    assert run.taken_at == list(range(latency, latency + sum(counts)))


def test_a_request_is_held_while_one_is_in_progress_and_one_waits():
    words = contents(16, 8)
    dut = rom(words, 8)
    run = check(dut, words, [(0, 4), (4, 6), (3, 1), (8, 2)])
    # Words are read in cycles 1 to 4, 5 to 10, 11 and 12 to 13; the place of the request
    # that waits is free again in the cycle after the last read of the one before it.
    assert run.sent_at == [0, 1, 5, 11]


def test_an_idle_memory_answers_after_the_stated_latency():
    words = contents(9, 8)
    dut = rom(words, 8)
    run = check(dut, words, [(i, 1) for i in range(9)], Pauses(driver=0.9, seed=5))
    gaps = [b - a for a, b in pairwise(run.sent_at)]
    assert max(gaps) > 3
    assert run.taken_at == [sent + dut.params.latency for sent in run.sent_at]


def test_reset_forgets_what_is_under_way():
    words = contents(20, 16)
    dut = rom(words, 16)
    first, second = [(0, 9), (3, 8), (1, 1)], [(11, 9), (0, 2)]
    complete = payloads_of(dut, second)
    phases = [(payloads_of(dut, first), 4), (complete, 11), (payloads_of(dut, first), 0),
              (complete, 11), (payloads_of(dut, first), 12), (complete, 11)]
    runs = run_streams(dut, dut.requests, dut.beats, phases, pauses=Pauses(0.1, 0.3, 6),
                       max_cycles=300)
    for index, run in enumerate(runs):
        wanted = expected(words, second if index % 2 else first)
        assert run.results == wanted[:len(run.results)]
    assert [len(run.results) for run in runs] == [4, 11, 0, 11, 12, 11]


@pytest.mark.parametrize(("words", "word_bits", "message"), [
    ([], 8, "words must be a whole number from 1 to 268435456, got 0"),
    ([1], 0, "word_bits must be a whole number from 1 to 1048576, got 0"),
    ([0, 256], 8, "every word must fit 8 unsigned bits, word 1 is 256"),
    ([-1], 8, "every word must fit 8 unsigned bits, word 0 is -1"),
])
def test_bad_contents_are_refused(words, word_bits, message):
    with pytest.raises(ValueError, match=message):
        rom(words, word_bits)


def test_more_words_than_stated_are_refused():
    with pytest.raises(ValueError, match="the memory holds 3 words, got 2"):
        WeightRom(WeightRomParams(3, 8), [1, 2])
