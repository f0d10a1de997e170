"""A mixer of one's own, for the tests of the comparison of mixers."""

from __future__ import annotations

from pathlib import Path

OWN = """
from sterna.model.torch.network.mixer import TokenMixer

class Mine(TokenMixer):
    \"\"\"Passes its input on.\"\"\"

    def __init__(self, init, *, factor: float = 1.0):
        super().__init__()
        self.linear, self.factor = init.linear(init.d, init.d), factor

    def forward(self, x, state):
        return self.linear(x) * self.factor, ()
"""


def own_mixer(folder: Path, source: str = OWN) -> str:
    (folder / "mine.py").write_text(source)
    return f"{folder / 'mine.py'}:Mine"
