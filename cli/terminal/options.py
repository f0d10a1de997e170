"""Arguments and options shared by several commands, and checks with common messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sterna.hw.board.boards import BOARD_NAMES
from sterna.model.files import check_unpublished, check_writable
from sterna.model.quantized.bundled import BUNDLED

__all__ = ["MODEL_HELP", "JsonOption", "ModelArgument", "QuietOption", "WavesOption", "check_file",
           "check_folder", "choose", "complete_model", "complete_target", "complete_unit",
           "how_to_resume", "is_checkpoint", "refuse"]

MODEL_HELP = f"A quantised file or a bundled model ({', '.join(BUNDLED)})"


def complete_model(begun: str) -> list[str]:
    """Bundled models; if none matches, the shell offers files."""
    return [name for name in BUNDLED if name.startswith(begun)]


ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"{MODEL_HELP}.", autocompletion=complete_model)]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
WavesOption = Annotated[Path | None, typer.Option(
    "--waves", metavar="FILE.fst|vcd",
    help="Write the waves of the simulation here, with views for GTKWave and Surfer.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def how_to_resume(output: Path, *, overwrite: bool = False, auto_resume: bool = False) -> str:
    """How to continue an interrupted run that was started with these options.

    >>> how_to_resume(Path("runs/a"), overwrite=True)
    'go on with the same command and --resume -o runs/a in place of --overwrite'
    """
    if auto_resume:
        return "go on with the same command"
    return (f"go on with the same command and --resume -o {output}"
            f"{' in place of --overwrite' * overwrite}")


def check_file(path: Path | None, *, suffix: str = "", option: str = "--output") -> None:
    """Refuse a file that cannot be written, before any work is done; None for no file."""
    if path is None:
        return
    if suffix and path.suffix != suffix:
        raise ValueError(f"{option} must end in {suffix}, got {path}")
    if path.is_dir():
        raise ValueError(f"{option} must name a file, and {path} is a folder")
    _check_place(path, path.parents, f"{option} must lie in a folder")


def check_folder(folder: Path | None, option: str = "--output") -> None:
    """Refuse a folder that cannot be written, before any work is done; None for no folder."""
    if folder is not None:
        _check_place(folder, (folder, *folder.parents), f"{option} must name a folder")


def _check_place(path: Path, folders: Iterable[Path], rule: str) -> None:
    for place in folders:
        if place.exists() and not place.is_dir():
            raise ValueError(f"{rule}, and {place} is a file")
    check_writable(path)


def refuse(why: str, **given: object) -> None:
    """Refuse the first option given that does not apply; ``quant_lanes`` is ``--quant-lanes``."""
    for name, value in given.items():
        if value:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def is_checkpoint(model: str) -> bool:
    """Whether this is a checkpoint or the folder of a run; bundled names precede folders."""
    if model in BUNDLED:
        return False
    check_unpublished(model)
    return model.endswith(".pt") or Path(model).is_dir()


def choose(option: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of the choices of an option; else refuse it and list them.

    >>> choose("--form", "fats", ("exact", "fast"))
    Traceback (most recent call last):
        ...
    ValueError: --form must be one of exact, fast, got 'fats'
    """
    known = [str(choice) for choice in choices]
    if value in known:
        return value
    near = [choice for choice in known if value and choice.startswith(value)]
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"{option} must be one of {', '.join(known)}, got {value!r}{hint}")


def complete_unit(begun: str) -> list[str]:
    """Units of the catalog."""
    from sterna.hw.catalog import UNITS
    return [name for name in UNITS if name.startswith(begun)]


def complete_board(begun: str) -> list[str]:
    """Boards of ``sterna build``."""
    return [name for name in BOARD_NAMES if name.startswith(begun)]


def complete_target(begun: str) -> list[str]:
    """FPGAs of ``sterna synth``."""
    from sterna.hw.fpga.families import TARGETS
    return [name for name in TARGETS if name.startswith(begun)]
