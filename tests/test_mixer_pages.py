"""The page of all mixers is what their docstrings say, with a picture of each."""

import runpy
from pathlib import Path

import matplotlib.image
import numpy as np

from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.torch.study.rows import list_mixers

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_written_from_the_docstrings():
    made = runpy.run_path(str(DOCS / "site" / "mixer_pages.py"))["page"]()
    assert (DOCS / "mixer-formulas.md").read_text(encoding="utf-8") == made, (
        "write it again: python docs/site/mixer_pages.py")
    own = [name for registry in (TOKEN_MIXERS, CHANNEL_MIXERS) for name in registry.names()
           if registry.find(name).__module__.startswith("sterna.")]
    assert [name for name in own if f"### {name}\n" not in made] == []
    pictures = {path.stem for path in (DOCS / "mixers").glob("*.png")}
    assert [name for name in TOKEN_MIXERS.names() if f"/{name}.png)" in made] == [
        name for name in TOKEN_MIXERS.names() if name in pictures]


def drawn(name: str) -> np.ndarray:
    """Which outputs depend on which inputs in the picture of a mixer: what is not white."""
    return (matplotlib.image.imread(DOCS / "mixers" / f"{name}.png")[::6, ::6, :3] < 1).any(-1)


def test_a_picture_is_the_measured_dependence():
    measured = runpy.run_path(str(DOCS / "site" / "mixer_patterns.py"))["sensitivity"]
    measured.__globals__["INPUTS"] = 1      # enough to see what is zero
    window = measured("window")
    rows, columns = np.indices(window.shape)
    seen = (columns <= rows) & (columns > rows - 8)
    assert ((window > 0) == seen).all()
    assert (drawn("window") == seen).all()


def test_pictures_are_white_above_the_diagonal_if_the_mixer_is_causal():
    pictures = {each["name"]: (each["causal"], drawn(each["name"])) for each in list_mixers()
                if each["kind"] == "token" and (DOCS / "mixers" / f"{each['name']}.png").exists()}
    assert len(pictures) >= 27
    assert [name for name, (causal, seen) in pictures.items()
            if np.triu(seen, 1).any() == causal] == []
