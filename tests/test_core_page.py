"""The tables of cycles in docs/core.md are those of the cycle model."""

from __future__ import annotations

import re
from pathlib import Path

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycles import CoreTimings, CycleModel
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, PROFILES, S16

ROOT = Path(__file__).parents[1]
TINY = ModelConfig.named("tiny")


def table(heading: str) -> list[list[str]]:
    """The first table below a heading of the page, without its two rows of titles."""
    text = (ROOT / "docs" / "core.md").read_text(encoding="utf-8")
    below = text[text.index(f"\n## {heading}\n"):]
    lines = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", below, re.M)
    assert lines, f"no table below {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in lines[1].splitlines()]


def test_cycles_per_token() -> None:
    rows = table("Cycles per token")
    assert len(rows) == 4
    for number, row in enumerate(rows):
        name = re.match(r"`(\w+)`: d (\d+), (\d+) layers, dff (\d+)", row[0] or rows[number - 1][0])
        assert name
        shape = ModelConfig.named(name[1])
        assert (shape.d, shape.layers, shape.dff) == tuple(map(int, name.groups()[1:]))
        for sequences, cycles, busy in ((1, *row[3:5]), (2, *row[5:7])):
            models = [CycleModel(CoreParams(shape, PROFILES[row[1]], sequences=sequences,
                                            quant_lanes=lanes)) for lanes in (16, 32, 64)]
            found = [model.cycles_per_token() for model in models]
            assert [float(cell.replace(",", "")) for cell in cycles.split(";")] == found, row
            assert busy == f"{models[1].utilisation():.1%}".replace("%", " %")
            assert int(row[2].replace(",", "")) == models[0].params.mac_cycles
            for model, greedy in zip(models, found, strict=True):    # as the text says
                assert model.cycles_per_token(sampled=True) == greedy + 84 / sequences


def test_what_the_text_says_beside_the_tables() -> None:
    page = " ".join((ROOT / "docs" / "core.md").read_text(encoding="utf-8").split())
    for profile in (S16, C12):
        timings = CoreTimings.of(CoreParams(TINY, profile))
        assert (timings.greedy, timings.sampled) == (5, 89)
    routed = CycleModel(CoreParams(TINY, S16, routing_registers=True)).cycles_per_token()
    assert f"`tiny` takes {int(routed):,} cycles instead of 1,599" in page
