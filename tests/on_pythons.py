"""Run the fast tests on every Python that the package's metadata names, each in its own venv.

    python tests/on_pythons.py                  # all that are found
    python tests/on_pythons.py 3.13 ../python   # these: versions, or interpreters

A version is looked for as ``pythonX.Y`` on the PATH and among pyenv's. Each runs ``make test-fast``
in a venv in build/pythons/X.Y. Exits with 1 if one failed, and with 2 if none was found; a version
that is not on this machine is named, and is no failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_CLASSIFIER = "Programming Language :: Python :: "


def claimed_versions() -> list[str]:
    """The versions that the metadata names, ``["3.11", ...]``, oldest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [line.removeprefix(_CLASSIFIER) for line in project["classifiers"]]
    return [name for name in found if re.fullmatch(r"3\.\d+", name)]


def find_python(wanted: str) -> Path | None:
    """The interpreter of a version, or the one at a path, if it starts; None otherwise."""
    candidates = [Path(wanted)]
    if re.fullmatch(r"3\.\d+", wanted):
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = sorted(pyenv.glob(f"{wanted}.*/bin/python3"), reverse=True)
        candidates += map(Path, filter(None, [shutil.which(f"python{wanted}")]))
    # A shim of pyenv is on the PATH for versions that it does not run.
    return next((path for path in candidates if version_of(path)), None)


def version_of(python: Path) -> str:
    """The full version of an interpreter that can make a venv, or nothing."""
    try:
        done = subprocess.run(
            [python, "-c", "import ensurepip, venv, platform; print(platform.python_version())"],
            capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run_tests(python: Path) -> int:
    """Install everything for one interpreter and run the tests; return the exit code."""
    # Absolute, or make would take another interpreter of the same name; not resolved, so that
    # a virtual environment stays one.
    venv = f"build/pythons/{'.'.join(version_of(python).split('.')[:2])}"
    return subprocess.run(["make", "-C", str(ROOT), f"PYTHON={python.absolute()}", f"VENV={venv}",
                           "test-fast"], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests on the Pythons that are named, or else on all claimed ones."""
    lines: list[str] = []
    codes: list[int] = []
    for name in arguments or claimed_versions():
        python = find_python(name)
        if python is None:
            lines.append(f"{name}: not found on this machine")
            continue
        started = time.monotonic()
        codes.append(run_tests(python))
        lines.append(f"{name}: {version_of(python)} at {python}, "
                     f"{'passed' if codes[-1] == 0 else f'FAILED ({codes[-1]})'} "
                     f"in {time.monotonic() - started:.0f} s")
    print("\n".join(["", *lines]))
    return 2 if not codes else int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
