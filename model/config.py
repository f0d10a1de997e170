"""The shape of a MatMul-free language model."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.model.checks import check_whole

__all__ = ["NAMED_CONFIGS", "ModelConfig"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a MatMul-free language model (arXiv 2406.02528, section 3).

    Parameters
    ----------
    d
        Width of the residual stream, and of the recurrent state, in channels.
    layers
        Number of blocks; each is an MLGRU token mixer and a GLU channel mixer.
    dff
        Width of the hidden vector of the GLU, in channels.
    vocab
        Number of tokens; with 256 a token is a byte, with 128 an ASCII character.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> ModelConfig.named("tiny")
    ModelConfig(d=128, layers=4, dff=384, vocab=256)
    >>> ModelConfig.named("tiny").ternary_weights
    884736
    """

    d: int
    layers: int
    dff: int
    vocab: int = 256

    def __post_init__(self) -> None:
        for name, low, high in (
            ("d", 1, 65536), ("layers", 1, 1024), ("dff", 1, 65536), ("vocab", 2, 1 << 20),
        ):
            check_whole(name, getattr(self, name), low, high)

    @classmethod
    def named(cls, name: str) -> ModelConfig:
        """Return the configuration called ``name``: ``micro``, ``nano``, ``tiny`` or ``small``."""
        if name not in NAMED_CONFIGS:
            known = ", ".join(NAMED_CONFIGS)
            raise ValueError(f"no configuration is called {name!r}; known are {known}")
        return NAMED_CONFIGS[name]

    def projections(self) -> dict[str, tuple[int, int]]:
        """Return ``{name: (rows, columns)}`` of every ternary matrix, in the order of use.

        Rows are outputs, columns inputs. The names are the ones used in the quantised
        file, in taps, in ONNX value names and in error messages.
        """
        d, dff = self.d, self.dff
        shapes: dict[str, tuple[int, int]] = {}
        for layer in range(self.layers):
            for part, shape in (
                ("mlgru.f", (d, d)), ("mlgru.c", (d, d)), ("mlgru.g", (d, d)),
                ("mlgru.out", (d, d)),
                ("glu.gate", (dff, d)), ("glu.up", (dff, d)), ("glu.down", (d, dff)),
            ):
                shapes[f"layer{layer}.{part}"] = shape
        shapes["head"] = (self.vocab, d)
        return shapes

    @staticmethod
    def norm_of(projection: str) -> str:
        """Return the name of the norm whose quantised vector a projection reads.

        f, c and g share one, and so do gate and up.

        >>> [ModelConfig.norm_of(f"layer0.{part}") for part in ("mlgru.f", "glu.down")]
        ['layer0.mlgru.norm', 'layer0.glu.down_norm']
        >>> ModelConfig.norm_of("head")
        'head.norm'
        """
        at, _, part = projection.rpartition(".")
        if not at:
            return f"{part}.norm"
        return f"{at}.{part}_norm" if part in ("out", "down") else f"{at}.norm"

    @property
    def ternary_weights(self) -> int:
        """Number of ternary weights, the head included."""
        return sum(rows * columns for rows, columns in self.projections().values())


NAMED_CONFIGS = {
    "micro": ModelConfig(d=32, layers=1, dff=64, vocab=128),
    "nano": ModelConfig(d=64, layers=2, dff=192),
    "tiny": ModelConfig(d=128, layers=4, dff=384),
    "small": ModelConfig(d=256, layers=4, dff=768),
}
"""Shapes by name: what ``sterna train --config`` takes."""
