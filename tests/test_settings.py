"""Settings of a training run by name: from a recipe file, and one by one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from command_line import refusal, run

from sterna.model.config import ModelConfig
from sterna.model.training.checkpoint import load_checkpoint
from sterna.model.training.recipe import SETTINGS, Execution, Recording, TrainRecipe


@pytest.mark.parametrize(("given", "message"), [
    (("carry_state=true", "order=epoch"), "order epoch is for windows that start from the"),
    (("accumulate=9",), "accumulate must be at most batch (8)"),
    (("order=alphabetical",), "order must be random or epoch, got 'alphabetical'"),
    (("eval_window=0",), "eval_window must be a whole number from 1"),
    (("heldout_bytes=1",), "heldout_bytes must be a whole number from 2"),
    (("warmup_steps=-1",), "warmup_steps must be a whole number from 0"),
    (("layers=2.5",), "layers must be a whole number, got 2.5"),
    (("compile=1",), "compile must be true or false, got 1"),
    (("mixer=3",), "mixer must be text, got 3"),
    (("lr=fast",), "lr must be a number, got 'fast'"),
    (("warmup=3",), "there is no setting 'warmup': did you mean warmup_steps? known are "
                    "accumulate, batch, beta1, "),
    (("lr",), "--set takes NAME=VALUE, such as lr=0.005, got 'lr'"),
    (("lr=1", "lr=2"), "lr is given twice: leave out one --set lr=..."),
    (("threads=2",), "threads is given twice"),
])
def test_settings_that_make_no_sense_are_refused(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], message: str,
) -> None:
    options = sum((("--set", each) for each in given), ())
    assert message in refusal(capsys, "train", "--config", "micro", "--steps", 1, "--threads", 1,
                              *options, "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_file_gives_settings_and_the_command_line_others_in_their_place(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text('d = 16\nlayers = 1\ndff = 16\nlr = 0.5\norder = "epoch"\nmixer = "hgrn2"\n'
                    "threads = 3\nheldout_bytes = 300\n")
    code, _, _ = run(
        capsys, "train", "--recipe", file, "--set", "lr=0.25", "--mixer", "lru", "--threads", 1,
        "--steps", 0, "--quiet", "-o", tmp_path / "run")
    assert code == 0
    found = load_checkpoint(tmp_path / "run")
    assert (found.config.d, found.config.mixer) == (16, "lru")
    assert (found.recipe["lr"], found.recipe["order"]) == (0.25, "epoch")
    for content, message in (
        ("lr = ", "small.toml: Invalid value"), ("rate = 1", "small.toml: there is no setting"),
        (None, "small.toml: cannot read"),
    ):
        file.unlink() if content is None else file.write_text(content)
        assert message in refusal(capsys, "train", "--recipe", file, "--steps", 1)


def test_every_field_is_a_setting() -> None:
    """But for those that the tokenizer and the command line give."""
    names = [each.name for kind in (ModelConfig, TrainRecipe, Execution, Recording)
             for each in fields(kind)]
    assert len(set(names)) == len(names)
    assert {*SETTINGS} == {*names, "lr_width"} - {"vocab", "command"}

