"""Windows of the train text: what a step reads depends on seed, step and share of the budget."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.corpus import Corpus
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.torch.training.recipe import TrainRecipe
from sterna.model.torch.training.windows import WindowSampler, shuffled


def sampler_of(text: bytes, recipe: TrainRecipe, seed: int) -> WindowSampler:
    """Windows of a text in bytes."""
    return WindowSampler(MemoryText(Corpus("x", text, b""), ByteTokenizer()), recipe, seed)


def with_general(share: float, batch: int = 400) -> WindowSampler:
    """Windows of a text of zeros, and of a general text of ones."""
    corpus = Corpus("x", bytes(300), b"", general=bytes([1]) * 200)
    return WindowSampler(MemoryText(corpus, ByteTokenizer()), TrainRecipe(
        batch=batch, window=20, general_share=share), seed=3)


RECIPES = st.sampled_from([
    TrainRecipe(batch=3, window=20), TrainRecipe(batch=3, window=20, carry_state=True),
    TrainRecipe(batch=3, window=20, order="epoch")])


@given(step=st.integers(0, 10**6), seed=st.integers(0, 2**32), recipe=RECIPES)
def test_windows_are_a_function_of_seed_and_step(
        step: int, seed: int, recipe: TrainRecipe) -> None:
    text = bytes(range(256)) * 3
    windows = sampler_of(text, recipe, seed).windows(step)
    assert windows.shape == (21, 3)
    assert windows.dtype == np.int64
    assert np.array_equal(windows, sampler_of(text, recipe, seed).windows(step))
    assert not np.array_equal(
        [sampler_of(text, recipe, seed).windows(step + each) for each in range(4)],
        [sampler_of(text, recipe, seed + 1).windows(step + each) for each in range(4)])
    # The text counts upwards, so a window of it does, too.
    assert np.array_equal(np.diff(windows, axis=0) % 256, np.ones((20, 3)))


@given(step=st.integers(0, 10**6), recipe=RECIPES, ends=st.tuples(st.integers(0, 3),
                                                                  st.integers(0, 3)))
def test_columns_are_those_of_the_whole_batch(
        step: int, recipe: TrainRecipe, ends: tuple[int, int]) -> None:
    sampler = sampler_of(bytes(range(256)) * 3, recipe, 5)
    columns = slice(*sorted(ends))
    assert np.array_equal(sampler.windows(step, columns), sampler.windows(step)[:, columns])


@given(length=st.integers(21, 400), batch=st.integers(1, 7), seed=st.integers(0, 1000),
       epoch=st.integers(0, 5))
def test_an_epoch_reads_every_window_once(length: int, batch: int, seed: int, epoch: int) -> None:
    """Batches go over the end of an epoch, so its windows are those with these numbers."""
    text = np.arange(length) % 251
    sampler = sampler_of(text.astype(np.uint8).tobytes(),
                         TrainRecipe(batch=batch, window=20, order="epoch"), seed)
    count = (length - 1) // 20
    numbers = range(epoch * count, (epoch + 1) * count)
    columns = [sampler.windows(n // batch)[:, n % batch] for n in numbers]
    assert sampler.starts_afresh(epoch)
    starts = []
    for column in columns:
        places = np.flatnonzero(text == column[0])
        starts += [at for at in places if np.array_equal(text[at:at + 21], column)][:1]
    assert len(starts) == count
    if length <= 251:       # a window is known by its first byte
        shift = min(starts)
        assert sorted(starts) == [shift + 20 * each for each in range(count)]


@given(size=st.integers(1, 3000), key=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 9)))
def test_a_shuffle_has_every_number_once(size: int, key: tuple[int, int]) -> None:
    found = shuffled(np.arange(size), size, key)
    assert np.array_equal(np.sort(found), np.arange(size))
    assert np.array_equal(shuffled(np.arange(size)[::-1], size, key), found[::-1])


def test_a_shuffle_leaves_no_order() -> None:
    """Neighbours and the first places are where chance would have them; a billion costs no more."""
    found = shuffled(np.arange(10_000), 10_000, (3, 0))
    assert abs(np.corrcoef(found, np.arange(10_000))[0, 1]) < 0.05
    assert np.count_nonzero(np.diff(found) == 1) < 8
    assert not np.array_equal(found, shuffled(np.arange(10_000), 10_000, (3, 1)))
    few = shuffled(np.arange(1000), 10**12, (0,))
    assert len(set(few.tolist())) == 1000
    assert 0.4 < few.mean() / 10**12 < 0.6
    with pytest.raises(ValueError, match="places must be from 0 to 4, got 0 to 5"):
        shuffled(np.arange(6), 5, (0,))


def test_carried_windows_follow_each_other_and_read_the_text_once_an_epoch() -> None:
    text = bytes(range(200))
    recipe = TrainRecipe(batch=2, window=10, carry_state=True)
    sampler = sampler_of(text, recipe, 1)
    epoch = [sampler.windows(step) for step in range(10, 20)]
    assert [sampler.starts_afresh(step) for step in range(10, 20)] == [True] + [False] * 9
    for window, following in itertools.pairwise(epoch):
        assert np.array_equal(window[-1], following[0])
    read = np.concatenate([window[:-1].reshape(-1) for window in epoch])
    assert sorted(read.tolist()) == list(range(200))


def test_windows_reach_both_ends_of_the_text() -> None:
    sampler = sampler_of(bytes(range(12)), TrainRecipe(batch=64, window=10), 0)
    assert set(sampler.windows(0).reshape(-1).tolist()) == set(range(12))
    assert sampler.starts_afresh(5)


@given(share=st.floats(0.0, 1.0), fraction=st.floats(0.0, 1.0), step=st.integers(0, 10**6))
def test_the_share_of_general_text_falls_to_none(share: float, fraction: float, step: int) -> None:
    sampler = with_general(share)
    windows = sampler.windows(step, fraction=fraction)
    assert np.array_equal(windows.min(axis=0), windows.max(axis=0))     # of one text, each
    expected = share * (1.0 - fraction)
    # Six standard deviations of a mean of 400.
    assert abs(windows[0].mean() - expected) <= 6 * (expected * (1 - expected) / 400) ** 0.5 + 1e-9
    assert np.array_equal(windows, with_general(share).windows(step, fraction=fraction))
    assert np.array_equal(windows[:, 7:30], sampler.windows(step, slice(7, 30), fraction))


def test_general_text_is_read_from_end_to_end_and_only_where_windows_lie_anywhere() -> None:
    text = MemoryText(
        Corpus("x", bytes(30), b"", general=bytes(range(100, 112))), ByteTokenizer())
    recipe = TrainRecipe(batch=64, window=10, general_share=1.0)
    sampler = WindowSampler(text, recipe, 0)
    assert set(sampler.windows(0, fraction=0.0).reshape(-1).tolist()) == set(range(100, 112))
    assert not sampler.windows(0).any()
    no_order = "does not go with carry_state or another order"
    for change, message in (
            ({"carry_state": True}, no_order), ({"order": "epoch"}, no_order),
            ({"window": 12}, "a general text of at least 13 tokens, got 12"),
            ({"window": 30}, "needs a train text of at least 31 bytes, got 30")):
        with pytest.raises(ValueError, match=message):
            WindowSampler(text, replace(recipe, **change), 0)
