"""The scripts of examples/ as notebooks; `make notebooks` writes them to build/notebooks.

A paragraph of a script becomes a cell, its docstring the text above. A module that a simulator
imports, a cocotb test, is copied as it is.
"""

import ast
import sys
from pathlib import Path

import jupytext

from sterna.model.files import write_atomically

EXAMPLES = Path(__file__).parents[2] / "examples"
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(script: str) -> str:
    """Return a script as the text of a notebook: the same bytes for the same script."""
    title, _, more = (ast.get_docstring(ast.parse(script)) or "").partition("\n")
    found = jupytext.reads(script, "py:light")
    found.metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}}
    text = found.cells[0]
    text.cell_type, text.source = "markdown", f"# {title.rstrip('.')}\n{more}".strip()
    for name in ("execution_count", "outputs"):
        del text[name]
    for number, cell in enumerate(found.cells):
        cell.id, cell.metadata = f"cell{number}", {}
    return jupytext.writes(found, "ipynb") + "\n"


def write(folder: Path) -> list[Path]:
    """Write every example to a folder; return the notebooks, sorted."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(EXAMPLES.glob("*.py")):
        script = path.read_text(encoding="utf-8")
        if "@cocotb.test" in script:
            write_atomically(folder / path.name, script)
        else:
            written.append(write_atomically(folder / f"{path.stem}.ipynb", notebook(script)))
    return written


if __name__ == "__main__":
    for each in write(Path(sys.argv[1])):
        print(each)
