"""What the tests of the comparison of mixers share: a small task, a mixer of one's own, a text."""

from __future__ import annotations

from pathlib import Path

from sterna.model.study.cells import TrainingCell
from sterna.model.study.rows import Row
from sterna.model.study.tasks import RecallTask, recipe_for

RECALL = RecallTask(d=16, layers=1, batch=2, window=14, pairs=4, queries=6, vocab=16, tokens=56,
                    judged=4)
OWN = """
from sterna.model.network.mixer import TokenMixer

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


def cell(row: Row, budget: str = "tokens", task: RecallTask = RECALL, seed: int = 0,
         lr: float | None = None) -> TrainingCell:
    return TrainingCell(row, task, budget, seed, recipe_for(row.weights, task, lr))


def write_text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("".join(f"line {i} says {i * i % 97} and ends\n" for i in range(200)))
    return path
