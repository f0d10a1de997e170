"""How to install the optional parts of Sterna."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

__all__ = ["install_command"]

_FOLDER = Path(__file__).resolve().parents[1]


def install_command(extra: str, folder: Path = _FOLDER) -> str:
    """The command line that installs an extra (or, if empty, plain Sterna) for the running Sterna:
    from the checkout ``folder``, or from the wheel it was installed from if that still exists."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    extra = extra and f"[{extra}]"
    if (folder / "pyproject.toml").is_file():
        return f"{pip} -e {shlex.quote(f'{folder}{extra}')}"
    source = _wheel() or "sterna"
    return f"{pip} {shlex.quote(f'{source}{extra}')}"


def _wheel() -> Path | None:
    """The file that pip installed Sterna from."""
    try:
        origin = json.loads(distribution("sterna").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    address = urlparse(origin.get("url", ""))
    path = Path(unquote(address.path))
    return path if address.scheme == "file" and path.is_file() else None
