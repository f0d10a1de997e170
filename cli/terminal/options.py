"""Arguments and options that several commands have, and checks with one wording for all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sterna.model.files import check_writable
from sterna.model.quantized.bundled import BUNDLED

__all__ = ["MODEL_HELP", "JsonOption", "ModelArgument", "QuietOption", "WavesOption", "check_file",
           "check_folder", "choose", "complete_model", "complete_target", "complete_unit",
           "how_to_resume", "is_checkpoint"]

MODEL_HELP = f"A quantised file or a bundled model ({', '.join(BUNDLED)})"


def complete_model(begun: str) -> list[str]:
    """Bundled models; without one that begins so, the shell offers files."""
    return [name for name in BUNDLED if name.startswith(begun)]


ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"{MODEL_HELP}.", autocompletion=complete_model)]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
WavesOption = Annotated[Path | None, typer.Option(
    "--waves", metavar="FILE.fst|vcd",
    help="Write waves of a simulation to this file, with views for GTKWave and Surfer beside it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def how_to_resume(output: Path, *, overwrite: bool = False, auto_resume: bool = False) -> str:
    """What to say when a run was interrupted that was started with these options.

    >>> how_to_resume(Path("runs/a"), overwrite=True)
    'go on with the same command and --resume -o runs/a in place of --overwrite'
    """
    if auto_resume:
        return "go on with the same command"
    return (f"go on with the same command and --resume -o {output}"
            f"{' in place of --overwrite' * overwrite}")


def check_file(path: Path, option: str = "--output") -> None:
    """Refuse a name for a file that a folder has, or that lies in a file, before any work is
    done for it.

    Raises ValueError, naming the option and what is there; OSError if nothing can be written there.
    """
    if path.is_dir():
        raise ValueError(f"{option} must name a file, and {path} is a folder")
    for place in path.parents:
        if place.exists() and not place.is_dir():
            raise ValueError(f"{option} must lie in a folder, and {place} is a file")
    check_writable(path)


def check_folder(folder: Path, option: str = "--output") -> None:
    """Refuse a name for a folder that a file has, before any work is done for it.

    Raises ValueError, naming the option and the file; OSError if nothing can be written there.
    """
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(f"{option} must name a folder, and {place} is a file")
    check_writable(folder)


def is_checkpoint(model: str) -> bool:
    """Whether this names a float model: a checkpoint, by its ending, or the folder of a run.

    A bundled model is meant by its name, also where there is such a folder.
    """
    return model.endswith(".pt") or (model not in BUNDLED and Path(model).is_dir())


def choose(option: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of the choices of an option.

    Raises ValueError, with all choices, and those that begin as ``value`` does.

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


def complete_target(begun: str) -> list[str]:
    """FPGAs that ``sterna synth`` knows."""
    from sterna.hw.flow.target import TARGETS
    return [name for name in TARGETS if name.startswith(begun)]
