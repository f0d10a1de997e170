# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The embedding in gateware against its table, in Amaranth's simulator."""

from __future__ import annotations

import numpy as np
import pytest

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.embedding import Embedding, EmbeddingParams
from sterna.model.profile import C12, S16, NumericProfile

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]


def random_table(vocab: int, channels: int, bits: int, seed: int = 0) -> np.ndarray:
    limit = 1 << (bits - 1)
    table = np.random.default_rng(seed).integers(-limit, limit, (vocab, channels))
    table.reshape(-1)[:2] = (-limit, limit - 1)[:table.size]
    return table


def embedding(
    profile: NumericProfile, table: np.ndarray, rows: int, sequences: int = 1,
) -> Embedding:
    widest = EmbeddingParams(profile, rows, *table.shape, profile.x.bits, sequences)
    return Embedding(widest.for_table(table), table)


def payloads_of(dut: Embedding, tokens: list[int], sequences: list[int]) -> list[int]:
    return [
        dut.params.request_layout.const(
            {"token": token} | ({"sequence": sequence} if dut.params.sequences > 1 else {})
        ).as_value().value for token, sequence in zip(tokens, sequences, strict=True)]


def check_results(dut, results, table, tokens, sequences) -> None:
    params = dut.params
    padded = np.zeros((len(table), params.words * params.rows), dtype=np.int64)
    padded[:, :params.channels] = table
    for index, payload in enumerate(results):
        request, word = divmod(index, params.words)
        got = params.word_layout.from_bits(payload)
        expected = padded[tokens[request]].reshape(params.words, params.rows)[word]
        assert list(got.x) == expected.tolist(), (request, word)
        assert got.last == (word == params.words - 1)
        if params.sequences > 1:
            assert got.sequence == sequences[request]


def check(dut: Embedding, table: np.ndarray, tokens: list[int], pauses=STEADY) -> StreamRun:
    sequences = [(3 * index + token) % 2 for index, token in enumerate(tokens)]
    count = len(tokens) * dut.params.words
    run = run_stream(
        dut, dut.requests, dut.words, payloads_of(dut, tokens, sequences), count,
        pauses=pauses, max_cycles=20 * count + 40 * len(tokens) + 100)
    check_results(dut, run.results, table, tokens, sequences)
    return run


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
@pytest.mark.parametrize("pauses", PAUSES, ids=str)
@pytest.mark.parametrize(("vocab", "channels", "rows", "sequences"), [
    (65, 12, 8, 2), (5, 16, 4, 1), (3, 7, 1, 2), (2, 3, 8, 1), (9, 33, 3, 1),
])
def test_every_token_gives_its_vector(profile, pauses, vocab, channels, rows, sequences):
    table = random_table(vocab, channels, profile.x.bits)
    dut = embedding(profile, table, rows, sequences)
    tokens = list(np.random.default_rng(pauses.seed).permutation(vocab)[:12].tolist())
    check(dut, table, [0, vocab - 1, vocab - 1, *tokens], pauses)


def test_a_thousand_tokens():
    table = random_table(1000, 11, 8)
    dut = embedding(S16, table, 4)
    assert dut.params.element_bits == 8
    check(dut, table, list(range(1000)))


@pytest.mark.parametrize(("vocab", "channels", "rows"), [
    (10, 24, 8), (10, 20, 8), (4, 5, 8), (6, 3, 1), (1, 1, 1)])
def test_words_follow_one_per_cycle_after_the_stated_latency(vocab, channels, rows):
    table = random_table(vocab, channels, 12)
    dut = embedding(C12, table, rows)
    params = dut.params
    run = check(dut, table, [i % vocab for i in range(7)])
    assert (params.latency, params.request_spacing) == (3, params.words + 3)
    assert run.sent_at == [params.request_spacing * i for i in range(7)]
    assert run.taken_at == [
        sent + params.latency + word for sent in run.sent_at for word in range(params.words)]


@pytest.mark.parametrize("words", [1, 2, 5])
def test_reset_forgets_the_request_in_progress(words):
    table = random_table(20, 4 * words, 12)
    dut = embedding(C12, table, 4, 2)
    first, second = [7, 3, 11], [19, 0, 4, 4]
    ones, zeros = [1] * 3, [0] * 4
    complete = payloads_of(dut, second, zeros)
    phases = [(payloads_of(dut, first, ones), words + words // 2),
              (complete, len(complete) * words),
              (payloads_of(dut, first, ones)[:1], 0), (complete, len(complete) * words)]
    runs = run_streams(dut, dut.requests, dut.words, phases, pauses=Pauses(0.2, 0.3, 4),
                       max_cycles=1000)
    check_results(dut, runs[0].results, table, first, ones)
    for run in (runs[1], runs[3]):
        check_results(dut, run.results, table, second, zeros)


@pytest.mark.parametrize(("values", "bits"), [
    ([[0, 0]], 1), ([[-1, 0]], 1), ([[1, 0]], 2), ([[127, -128]], 8), ([[128, 0]], 9),
    ([[-129, 0]], 9), ([[2047, -2048]], 12),
])
def test_the_memory_is_as_wide_as_its_values_need(values, bits):
    dut = embedding(C12, np.array(values), 2)
    assert dut.params.element_bits == bits
    assert dut.params.word_bits == 2 * bits
    check(dut, np.array(values), [0, 0])


@pytest.mark.parametrize(("table", "message"), [
    ([[2048]], "embedding values of 12 bits must be from -2048 to 2047, got 2048 to 2048"),
    ([1], r"must be integers of shape \(1, 1\), got int64 of shape \(1,\)"),
    ([[1, 2]], r"must be integers of shape \(1, 1\), got int64 of shape \(1, 2\)"),
    ([[]], r"must be integers of shape \(1, 1\), got float64 of shape \(1, 0\)"),
    ([[0.5]], r"must be integers of shape \(1, 1\), got float64"),
])
def test_a_table_that_does_not_fit_is_refused(table, message):
    params = EmbeddingParams(C12, 1, vocab=1, channels=1, element_bits=12)
    with pytest.raises(ValueError, match=message):
        params.for_table(table)
    with pytest.raises(ValueError, match=message):
        Embedding(params, table)


def test_a_table_wider_than_the_memory_is_refused():
    params = EmbeddingParams(C12, 1, vocab=1, channels=1, element_bits=3)
    with pytest.raises(ValueError, match="values of 3 bits must be from -4 to 3, got 4 to 4"):
        Embedding(params, [[4]])
    assert params.for_table([[4]]).element_bits == 4


@pytest.mark.parametrize(("options", "message"), [
    ({"rows": 0}, "rows must be a whole number from 1 to 4096, got 0"),
    ({"sequences": 3}, "sequences must be a whole number from 1 to 2, got 3"),
    ({"vocab": 0}, "vocab must be a whole number from 1 to 1048576, got 0"),
    ({"channels": 0}, "channels must be a whole number from 1 to 1048576, got 0"),
])
def test_bad_sizes_are_refused(options, message):
    sizes = {"rows": 1, "vocab": 1, "channels": 1, "element_bits": 1}
    with pytest.raises(ValueError, match=message):
        EmbeddingParams(C12, **(sizes | options))


def test_elements_wider_than_the_format_are_refused():
    with pytest.raises(ValueError, match="element_bits must be a whole number from 1 to 12"):
        EmbeddingParams(C12, 8, vocab=2, channels=2, element_bits=13)
