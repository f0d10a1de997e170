"""The bandwidth law beside published systems.

    python benchmarks/published_systems.py

A token of one sequence takes as long as the slower of two: reading its weights from memory, and
the cycles of the array; plus the host's time between tokens. Figures are those of the authors, on
their boards. Unpublished ones are fitted to the published rate and named in the last column: such a
row shows a possible explanation and predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.cli.terminal.tables import Table


@dataclass(frozen=True, slots=True)
class System:
    """A published system: rates in tokens per second, all sequences together.

    ``stream`` are bytes of a token over bytes per second, ``compute`` the cycles of a token of
    one sequence over the clock in Hz, ``host`` seconds of a token; each sequence has an array.
    """

    name: str
    source: str
    published: float
    sequences: int = 1
    stream: tuple[float, float] = (0.0, 1.0)
    compute: tuple[float, float] = (0.0, 1.0)
    host: float = 0.0
    fitted: str = ""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a token by part."""
        return {"memory": self.stream[0] / self.stream[1],
                "array": self.compute[0] / self.compute[1], "host": self.host}

    @property
    def predicted(self) -> float:
        """Tokens per second by the law."""
        parts = self.parts
        return self.sequences / (max(parts["memory"], parts["array"]) + parts["host"])


def ternip(layers: int, d: int, products: int) -> float:
    """Cycles of a token of Ternip: 13 tiles of d x d per layer, each row with one idle cycle, and
    the vectors not hidden by products, four elements per cycle."""
    return layers * 13 * (d * (d / products + 1) + 14) + layers * _TERNIP_VECTORS * d / 4


_TERNIP_VECTORS = 140
"""Unhidden passes over a vector in a layer: fitted once, for all rows of Ternip."""
_TERNIP, _PASSES = "sifferman/ternip, U250", f"{_TERNIP_VECTORS} passes over vectors a layer"

SYSTEMS = (
    *(System(f"Ternip 370M, {lanes} lanes", _TERNIP, rate, lanes,
             compute=(ternip(24, 1024, 128), 300e6), stream=(81.8e6, 76.8e9), fitted=_PASSES)
      for lanes, rate in ((24, 1943), (33, 2641), (48, 3712))),
    *(System(f"Ternip 1.3B, {lanes} lanes", _TERNIP, rate, lanes,
             compute=(ternip(24, 2048, 128), 300e6), fitted=f"{_PASSES}, products a cycle")
      for lanes, rate in ((35, 836), (41, 970))),
    System("Ternip 2.7B, 29 lanes", _TERNIP, 411, 29,
           compute=(ternip(32, 2560, 160), 300e6), fitted=f"{_PASSES}, products a cycle"),
    System("bitnet-kv260 2B", "MerlijnW70/bitnet-kv260", 16.78, stream=(417.5e6, 12.73e9),
           compute=(2.42e9, 320 * 250e6), host=26.8e-3, fitted="host"),
    System("matmulfree_KRIA 370M", "aebarthyi/matmulfree_KRIA, KV260", 30.6,
           stream=(92e6, 16e9), compute=(0.341e9, 256 * 250e6), host=26.9e-3, fitted="host"),
    System("TerEffic 2.7B, HBM", "arXiv 2502.16473, U280", 727,
           # d 2,560, 32 layers, dff 6,912 and a head of 32,000: five weights in a byte.
           stream=(2.62e9 / 5, 0.83 * 460e9), fitted="0.83 of the bandwidth"),
)
"""Systems with sufficient published data. TerEffic on chip (16,300 tokens/s of 370M on several
boards), TeLLMe (25 of 0.73B on a KV260) and ztachip (about 6 of 135M on an Arty) give neither
products per cycle nor bytes of a token."""


def main() -> None:
    rows = []
    for each in SYSTEMS:
        parts = each.parts
        binds = max(parts, key=parts.__getitem__)
        rows.append((each.name, each.source, f"{each.published:,g}", f"{each.predicted:,.4g}",
                     f"{each.predicted / each.published - 1:+.1%}", binds, each.fitted))
    Table("the bandwidth law beside published systems", (
        "system", "of", "tokens/s", "by the law", "off by", "binds", "fitted"), rows).print()


if __name__ == "__main__":
    main()
