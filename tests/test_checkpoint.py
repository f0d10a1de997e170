"""Checkpoints survive damage, kills and full disks; a wrong field is refused or changes nothing."""

from __future__ import annotations

import contextlib
import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from sterna.model.training.recipe import Execution, Recording
from sterna.model.training.train import TrainRecipe, train

SHAPE = ModelConfig(d=16, layers=2, dff=24)


def some_checkpoint() -> Checkpoint:
    model = LanguageModel(SHAPE)
    return Checkpoint(SHAPE, {"lr": 0.1}, "text", "ab", 1, 2, 3.0, model.state_dict(), {},
                      model.initial_state(4))


def test_checkpoint_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    written = some_checkpoint()
    save_checkpoint(written, path)
    read = load_checkpoint(path)
    weights = read.model().state_dict()
    assert weights.keys() == written.weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in written.weights.items())
    assert (read.config, read.recipe["lr"], read.step) == (SHAPE, 0.1, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*c\.pt \(No such file"):
        load_checkpoint(path)
    save_checkpoint(some_checkpoint(), path)
    whole = path.read_bytes()
    pickled = whole.index(b"\x80\x02}")
    for data in (b"", b"nonsense", whole[: len(whole) // 2],
                 whole[:pickled + 2] + b"." + whole[pickled + 3:]):    # ends with nothing read
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"c\.pt is no checkpoint, or is damaged"):
            load_checkpoint(path)
    path.write_bytes(whole[:pickled + 1] + b"\x72" + whole[pickled + 2:])
    with warnings.catch_warnings(), contextlib.suppress(CheckpointError):
        warnings.simplefilter("error")      # torch would warn of the version of pickle
        load_checkpoint(path)
    torch.save({"something": "else"}, path)
    with pytest.raises(CheckpointError, match="is not a checkpoint of format"):
        load_checkpoint(path)
    torch.save({"format": "sterna-checkpoint-3", "config": {"d": 1}}, path)
    with pytest.raises(CheckpointError, match="unexpected contents"):
        load_checkpoint(path)
    headless = some_checkpoint()
    del headless.weights["head.weight"]
    save_checkpoint(headless, path)
    with pytest.raises(CheckpointError, match=r"weights of its own shape .*head\.weight"):
        load_checkpoint(path).model()


def test_failed_write_keeps_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint(some_checkpoint(), path)
    whole = path.read_bytes()

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(replace(some_checkpoint(), step=99), path)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


CONFIG = ModelConfig(d=8, layers=2, dff=8, vocab=128)
RECIPE = TrainRecipe(batch=2, window=16, warmup_steps=2, carry_state=True, float_start=0.0)
TEXT = "".join(f"{i} swallows fly {i * i} miles. " for i in range(300)).encode()
CORPUS = Corpus("swallows", TEXT[:-1500], TEXT[-1500:])
Content = dict[str, Any]
Saved = tuple[Content, dict[str, Tensor]]


def run(folder: Path, steps: int, resume: bool = False) -> dict[str, Tensor]:
    return train(CONFIG, CORPUS, run_dir=folder, steps=steps, recipe=RECIPE, resume=resume,
                 quiet=True, execution=Execution(threads=1),
                 recording=Recording(heldout_evaluations=1)).model.state_dict()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """What the checkpoint of two steps holds, and the weights after four."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, 2)
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert set(content) == {*Checkpoint.__slots__, "format"}
    return content, run(folder, 4, resume=True)


def others(value: Any) -> list[Any]:
    """Values of the same kind and of other kinds."""
    if isinstance(value, Tensor):
        bad = value.clone().float()
        bad.view(-1)[0] = torch.nan
        return [bad, value.double(), value.long(), value.to(torch.complex64), value.unsqueeze(0),
                value.reshape(-1)[:-1], torch.zeros(0), value.to_sparse(), None, -value - 1]
    if isinstance(value, bool):
        return [int(value), None, "no"]
    if isinstance(value, (int, float)):
        return [value + 1, -1, 1 << 70, float("nan"), float("inf"), 2.5, "3", None, [value]]
    if isinstance(value, str):
        return ["", value + "x", 3, None, ["x"]]
    if isinstance(value, dict):
        return [{}, None, [], {**value, "more": 1}, {**value, 7: 1},
                *({name: each for name, each in value.items() if name != left}
                  for left in list(value)[:2])]
    if isinstance(value, (tuple, list)):
        return [(), None, value[:-1], (*value, *value), list(value), 3]
    return [0, "x", (), {}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside of a value, itself included."""
    found = [path] if path else []
    if isinstance(value, dict):
        inner = list(value.items())
    else:
        inner = list(enumerate(value)) if isinstance(value, (tuple, list)) else []
    return found + [each for key, part in inner for each in places(part, (*path, key))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy with another value at a place."""
    if not path:
        return change(value)
    if isinstance(value, dict):
        return {key: changed(part, path[1:], change) if key == path[0] else part
                for key, part in value.items()}
    return type(value)(changed(part, path[1:], change) if at == path[0] else part
                       for at, part in enumerate(value))


@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_a_changed_field_is_refused_or_changes_nothing(
        saved: Saved, tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject) -> None:
    """Other numbers of the same shape, in weights and moments, cannot be told from right ones;
    every other change can."""
    content, weights = saved
    field = draw.draw(st.sampled_from(sorted(content)))
    path = (field, *draw.draw(st.sampled_from([(), *places(content[field])])))
    value = draw.draw(st.integers(0, 20).map(
        lambda at: lambda before: others(before)[at % len(others(before))]))
    folder = tmp_path_factory.mktemp("changed")
    torch.save(changed(copy.deepcopy(content), path, value), folder / "checkpoint.pt")
    try:
        found = run(folder, 4, resume=True)
    except CheckpointError:
        return
    numbers = path[0] == "weights" or "exp_avg" in path or "exp_avg_sq" in path or (
        path[0] == "carried")
    assert numbers or all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("path", "value", "message"), [
    (("seed",), -1, "seed must be a whole number from 0"),
    (("step",), 3, "a parameter's moments are not of step 3"),
    (("seconds",), float("inf"), "seconds must be at least 0, got inf"),
    (("config", "d"), 16, "embedding.weight is (128, 8), not (128, 16)"),
    (("config", "layers"), 3, "there are 2 layers, not 3"),
    (("config", "dff"), 9, "it was trained with dff 9, not 8"),
    (("recipe", "lr"), float("nan"), "recipe: lr must be a positive number"),
    (("recipe", "speed"), 1, "recipe: "),
    (("carried", 0, 0), torch.zeros(2, 9), "the state of layer 0 is not finite, or of another"),
    (("weights", "head.weight"), torch.zeros(128, 8, dtype=torch.float64), "head.weight is torch."),
    (("optimizer", "state", 0, "exp_avg"), torch.zeros(3), "exp_avg of a parameter is not finite"),
    (("tokenizer",), {"kind": "words"}, "unexpected contents"),
    (("profile",), "S17", "profile must be one of S16, C12, got 'S17'"),
    (("budget",), {"steps": -4}, "steps of the budget must be a whole number from 0"),
    (("corpus_sha256",), "xyz", "corpus_sha256 must be a hash in hexadecimal"),
])
def test_what_is_wrong_is_named(
        saved: Saved, tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    content = copy.deepcopy(saved[0])
    place = content
    for key in path[:-1]:
        if isinstance(place[key], tuple):
            place[key] = list(place[key])
        place = place[key]
    place[path[-1]] = value
    content["carried"] = tuple(tuple(layer) for layer in content["carried"])
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, 4, resume=True)
    assert message in str(caught.value)


def test_a_state_that_grows_to_a_window_is_gone_on_with(tmp_path: Path) -> None:
    """Its keys begin as none."""
    config = replace(CONFIG, mixer="window(size=24)")

    def weights(folder: str, steps: int, resume: bool = False) -> dict[str, Tensor]:
        return train(config, CORPUS, run_dir=tmp_path / folder, steps=steps, recipe=RECIPE,
                     resume=resume, quiet=True, execution=Execution(threads=1)).model.state_dict()

    weights("cut", 1)
    assert load_checkpoint(tmp_path / "cut").carried[0][0].shape[0] == RECIPE.batch
    whole, resumed = weights("whole", 3), weights("cut", 3, resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
