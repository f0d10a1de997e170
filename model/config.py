"""The shape of a language model: its sizes, and the mixers of its layers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from sterna.model.checks import check_whole
from sterna.model.pattern import Choice, parse_pattern, shortest

__all__ = ["NAMED_CONFIGS", "NORMS", "RESIDUALS", "SIZES", "WEIGHTS", "ModelConfig"]

SIZES = ("d", "layers", "dff", "vocab")
"""The numeric fields of a shape: all that a model of the default mixers needs."""
NORMS = ("pre", "post")
"""Position of the norm in a block: before a mixer, or after its residual."""
WEIGHTS = ("ternary", "float")
"""Arithmetic of the projections: ternary weights and 8-bit activations, or floats for both."""
_HGRN_BIT = ("mlgru(bias=false, bounds=true, gains=true, swish=true)",
             "glu(bias=false, gains=true, joint=true)")
"""The mixers of the published checkpoints, for which mixer "hgrn_bit" is an alias."""
RESIDUALS = ("plain", "reversible")
"""How blocks are joined: one stream, or two of which training keeps those of the last block."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a language model; by default a MatMul-free one (arXiv 2406.02528, section 3).

    A layer is a token mixer and then a channel mixer (MetaFormer, arXiv 2111.11418), each chosen by
    name. Only the default mixers have an integer form, and so gateware. Raises ValueError if a
    number is out of range or a choice is unknown.

    Parameters
    ----------
    d
        Width of the residual stream, and of the recurrent state, in channels.
    layers
        Number of blocks; each is a token mixer and a channel mixer.
    dff
        Width of the hidden vector of the channel mixer, in channels.
    vocab
        Vocabulary size; with 256 a token is a byte, with 128 an ASCII character.
    mixer, channel
        Pattern (:func:`sterna.model.pattern.parse_pattern`) of the token and channel mixers of
        the layers, for at most ``layers`` layers, stored in its shortest spelling;
        docs/mixer-formulas.md lists the names. The mixer ``hgrn_bit`` stands for both mixers of the
        published checkpoints; their head has gains, too, and nothing saturates.
    norm
        One of :data:`NORMS`.
    weights
        Weights of the projections, one of :data:`WEIGHTS`.
    residual
        One of :data:`RESIDUALS`; reversible blocks need norm "pre".

    >>> ModelConfig.named("tiny").to_json()
    {'d': 128, 'layers': 4, 'dff': 384, 'vocab': 256}
    >>> ModelConfig.named("tiny").ternary_weights
    884736
    """

    d: int
    layers: int
    dff: int
    vocab: int = 256
    mixer: str = "mlgru"
    channel: str = "glu"
    norm: str = "pre"
    weights: str = "ternary"
    residual: str = "plain"

    def __post_init__(self) -> None:
        for name, low, high in (
            ("d", 1, 65536), ("layers", 1, 1024), ("dff", 1, 65536), ("vocab", 2, 1 << 20),
        ):
            check_whole(name, getattr(self, name), low, high)
        if self.mixer == "hgrn_bit":
            if self.channel not in ("glu", _HGRN_BIT[1]):
                raise ValueError(f"the mixer hgrn_bit has a channel mixer of its own: leave the "
                                 f"channel out, got {self.channel}")
            for name, pattern in zip(("mixer", "channel"), _HGRN_BIT, strict=True):
                object.__setattr__(self, name, pattern)
        for name in ("mixer", "channel"):
            self._shorten(name)
        for name, allowed in (("norm", NORMS), ("weights", WEIGHTS), ("residual", RESIDUALS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
        if self.residual == "reversible" and self.norm != "pre":
            raise ValueError(
                f"residual reversible needs norm pre, got norm {self.norm}: a norm after the sum "
                f"cannot be undone")

    def _shorten(self, name: str) -> None:
        """Shorten the spelling of a pattern: 4*mlgru is mlgru, and so has its integer form."""
        pattern = shortest(parse_pattern(getattr(self, name)))
        if (count := len(parse_pattern(pattern))) > self.layers:
            raise ValueError(
                f"the {name} pattern {pattern!r} is for {count} layers or more, this model has "
                f"{self.layers}")
        object.__setattr__(self, name, pattern)

    def to_json(self) -> dict[str, Any]:
        """Sizes, and the choices that are not the default; ``ModelConfig(**...)`` undoes it."""
        return {name: value for name, value in asdict(self).items()
                if name in SIZES or value != _DEFAULTS[name]}

    @property
    def is_hgrn_bit(self) -> bool:
        """Whether the blocks are those of the published checkpoints."""
        return ((self.mixer, self.channel) == _HGRN_BIT
                and set(self.to_json()) == {*SIZES, "mixer", "channel"})

    @property
    def has_integer_form(self) -> bool:
        """Whether the integer reference, exact ONNX and the gateware support these mixers."""
        return set(self.to_json()) == set(SIZES)

    def check_integer_form(self) -> None:
        """Refuse a model without one; the message names the choices that have none."""
        if not self.has_integer_form:
            chosen = [f"{name} {value}" for name, value in self.to_json().items()
                      if name not in SIZES]
            hint = (": sterna push-folder, then sterna convert, make integers of it"
                    if self.is_hgrn_bit else "")
            raise ValueError(
                "only mlgru with glu, pre-norm and ternary weights have an integer form; this "
                f"model has {', '.join(chosen)}{hint}")

    def mixers(self) -> tuple[tuple[Choice, Choice], ...]:
        """The token mixer and the channel mixer of every layer, with the patterns repeated."""
        token, channel = parse_pattern(self.mixer), parse_pattern(self.channel)
        return tuple((token[layer % len(token)], channel[layer % len(channel)])
                     for layer in range(self.layers))

    @classmethod
    def named(cls, name: str) -> ModelConfig:
        """Return the configuration called ``name``: ``micro``, ``nano``, ``tiny`` or ``small``."""
        if name not in NAMED_CONFIGS:
            known = ", ".join(NAMED_CONFIGS)
            raise ValueError(f"no configuration is called {name!r}; known are {known}")
        return NAMED_CONFIGS[name]

    def projections(self) -> dict[str, tuple[int, int]]:
        """Return ``{name: (rows, columns)}`` of every ternary matrix of MLGRU and GLU, in the order
        of use, even if the model has other mixers. Rows are outputs, columns inputs. The quantised
        file, taps, ONNX value names and error messages use the same names."""
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

    @property
    def ternary_weights(self) -> int:
        """Number of ternary weights, including the head."""
        return sum(rows * columns for rows, columns in self.projections().values())


_DEFAULTS = {each.name: each.default for each in fields(ModelConfig)}

NAMED_CONFIGS = {
    "micro": ModelConfig(d=32, layers=1, dff=64, vocab=128),
    "nano": ModelConfig(d=64, layers=2, dff=192),
    "tiny": ModelConfig(d=128, layers=4, dff=384),
    "small": ModelConfig(d=256, layers=4, dff=768),
}
"""Shapes by name, as ``sterna train --config`` accepts them."""
