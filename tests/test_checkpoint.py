"""Checkpoints survive damage, kills and full disks, and go on exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_parts import RECIPE, assert_same_weights, run

from sterna.model.config import ModelConfig
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training import checkpoint as checkpoints
from sterna.model.torch.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)

SHAPE = ModelConfig(d=16, layers=2, dff=24)
MODEL = LanguageModel(SHAPE)
WRITTEN = Checkpoint(SHAPE, {"lr": 0.1}, "text", "ab", 1, 2, 3.0, MODEL.state_dict(), {},
                     MODEL.initial_state(4))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "c.pt"
    save_checkpoint(WRITTEN, path)
    return path


def test_checkpoint_survives_the_file(path: Path) -> None:
    read = load_checkpoint(path)
    assert_same_weights(read.model(), WRITTEN.weights)
    assert (read.config, read.recipe["lr"], read.step) == (SHAPE, 0.1, 2)
    assert [p.name for p in path.parent.iterdir()] == ["c.pt"]
    assert torch.load(path, weights_only=True)["step"] == 2     # by torch alone, too


@given(st.data())
def test_any_damage_is_noticed(path: Path, draw: st.DataObject) -> None:
    """A byte that is changed, and a file that is cut."""
    whole = path.read_bytes()
    at = draw.draw(st.integers(0, len(whole) - 1))
    cut = draw.draw(st.booleans())
    changed = whole[:at] if cut else (
        whole[:at] + bytes([whole[at] ^ draw.draw(st.integers(1, 255))]) + whole[at + 1:])
    damaged = path.parent / "damaged.pt"
    damaged.write_bytes(changed)
    with pytest.raises(CheckpointError, match=r"damaged\.pt is (no checkpoint|a safetensors file)"):
        load_checkpoint(damaged)
    damaged.unlink()


def test_what_is_no_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.pt"
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*c\.pt \(No such file"):
        load_checkpoint(path)
    torch.save({"something": "else"}, path)
    with pytest.raises(CheckpointError, match="is no checkpoint of this version, or is damaged"):
        load_checkpoint(path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_FORMAT", "of tomorrow")
        save_checkpoint(WRITTEN, path)
    with pytest.raises(CheckpointError, match=r"not a checkpoint of format .*, but 'of tomorrow'"):
        load_checkpoint(path)


def test_a_state_that_grows_to_a_window_is_gone_on_with(tmp_path: Path) -> None:
    """Its keys begin as none."""
    options = {"config": replace(SHAPE, mixer="window(size=60)"),
               "recipe": replace(RECIPE, carry_state=True)}
    run(tmp_path / "cut", 1, **options)
    assert load_checkpoint(tmp_path / "cut").carried[0][0].shape[0] == RECIPE.batch
    assert_same_weights(run(tmp_path / "whole", 3, **options).model,
                        run(tmp_path / "cut", 3, **options, resume=True).model)
