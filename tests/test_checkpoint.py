"""Files of a training run: checkpoints survive damage, kills and full disks."""

import contextlib
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sterna.model.config import ModelConfig
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)

CONFIG = ModelConfig(d=16, layers=2, dff=24)


def some_checkpoint() -> Checkpoint:
    model = LanguageModel(CONFIG)
    return Checkpoint(CONFIG, {"lr": 0.1}, "text", "ab", 1, 2, 3.0, model.state_dict(), {},
                      model.initial_state(4))


def test_checkpoint_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    written = some_checkpoint()
    save_checkpoint(written, path)
    read = load_checkpoint(path)
    weights = read.model().state_dict()
    assert weights.keys() == written.weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in written.weights.items())
    assert (read.config, read.recipe["lr"], read.step) == (CONFIG, 0.1, 2)
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
