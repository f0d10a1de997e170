"""Convert a published checkpoint to integers: matrices become ternary, and a calibration text
determines the formats."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from sterna.model.hub.folder import HubError, HubFolder
from sterna.model.hub.layout import shape_of, tensor_shapes
from sterna.model.profile import mantissa_and_shift, sigmoid_table
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.hgrn_bit import EPS, WIDTHS, Formatted, Widths, hgrn_bit
from sterna.model.quantized.real import Matrix, run_real
from sterna.model.quantized.records import Embedding, Project
from sterna.model.tokenizer import contiguous_sequences
from sterna.model.tokens.files import fitted
from sterna.model.tokens.hub import ForeignTokenizerError, HubTokenizer
from sterna.model.tokens.tokenizer import BYTES, NUMBERS, Tokenizer, as_tokens

__all__ = ["Published", "convert", "ternarize", "tokenizer_of"]

_SMALLEST_SCALE = 1e-5


def ternarize(weight: np.ndarray) -> Matrix:
    """Codes int8 and the scale of a matrix, float32 ``[rows, columns]``: the mean magnitude, and
    each weight divided by it, rounded half to even and clipped to -1 to 1.

    A matrix of the values ``-s, 0, s`` is already ternary and keeps its scale ``s``: its mean
    would be smaller by the share of zeros.
    """
    magnitudes = np.abs(weight)
    largest = magnitudes.max()
    if largest > 0 and ((magnitudes == 0) | (magnitudes == largest)).all():
        return np.sign(weight).astype(np.int8), float(largest)
    scale = max(float(magnitudes.mean(dtype=np.float64)), _SMALLEST_SCALE)
    return np.clip(np.rint(weight / np.float32(scale)), -1, 1).astype(np.int8), scale


class Published:
    """A published checkpoint: its shape, its gains, and its matrices one at a time.

    ``reals`` are the real vectors of the records' :class:`Scale`.

    Raises HubError if the folder holds another architecture, or a tensor is missing, unknown,
    misshapen or not finite.
    """

    def __init__(self, folder: HubFolder) -> None:
        self._folder = folder
        self.shape = shape_of(folder)
        folder.check(tensor_shapes(self.shape))
        self._up: Matrix | None = None
        self.reals: dict[str, np.ndarray] = {}
        embedding = folder.tensor(_EMBEDDING)
        largest = np.maximum(embedding.max(axis=0), -embedding.min(axis=0)).astype(np.float64)
        _, exponents = np.frexp(np.where(largest > 0, largest, 0.5))
        self.reals["embedding.x"] = np.ldexp(1.0, exponents)
        bounds = self._lower_bounds()
        for layer in range(self.shape.layers):
            to, at = f"layer{layer}.mlgru", f"model.layers.{layer}"
            gain = self._root(to, f"{at}.attn_norm")
            for part, name in _GATES.items():
                self.reals[f"{to}.{part}.w"] = gain * self._gain(f"{at}.attn.{name}_proj.norm")
            if bounds is not None and layer:
                self.reals[f"{to}.f.update"] = 1 - bounds[layer]
            inner = self._gain(f"{at}.attn.g_norm")
            self.reals[f"{to}.out_root.r"] = inner
            self.reals[f"{to}.out.w"] = inner * self._gain(f"{at}.attn.o_proj.norm")
            to = f"layer{layer}.glu"
            gain = self._root(to, f"{at}.mlp_norm")
            self.reals[f"{to}.gate.w"] = gain * self._gain(f"{at}.mlp.gate_proj.norm")
            self.reals[f"{to}.down.w"] = self._gain(f"{at}.mlp.down_proj.norm")
        gain = self._root("head", "model.norm")
        self.reals["head.w"] = gain * self._gain("lm_head.norm")

    def embedding(self) -> np.ndarray:
        """float32 ``[vocab, d]``, each channel divided by the power of two in ``reals``."""
        values = self._folder.tensor(_EMBEDDING)
        return values / self.reals["embedding.x"].astype(np.float32)

    def matrix(self, name: str) -> Matrix:
        """The matrix of a :class:`Project` by name; those of a layer must be requested in order."""
        if name == "head":
            return ternarize(self._folder.tensor("lm_head.weight"))
        layer, mixer, part = name.removeprefix("layer").split(".")
        at = f"model.layers.{layer}"
        if mixer == "mlgru":
            part = {**_GATES, "out": "o"}[part]
            return ternarize(self._folder.tensor(f"{at}.attn.{part}_proj.weight"))
        if part == "down":
            return ternarize(self._folder.tensor(f"{at}.mlp.down_proj.weight"))
        if part == "up":
            assert self._up is not None
            up, self._up = self._up, None
            return up
        # Gate and up are one matrix, with one scale.
        codes, scale = ternarize(self._folder.tensor(f"{at}.mlp.gate_proj.weight"))
        self._up = codes[self.shape.dff:], scale
        return codes[:self.shape.dff], scale

    def _gain(self, name: str) -> np.ndarray:
        return self._folder.tensor(f"{name}.weight").astype(np.float64)

    def _root(self, at: str, name: str) -> np.ndarray:
        """The gain of a block's norm; the vector of its root is ``sqrt(gain^2 + eps)``."""
        gain = self._gain(name)
        self.reals[f"{at}.root.r"] = np.sqrt(gain**2 + EPS)
        return gain

    def _lower_bounds(self) -> np.ndarray | None:
        """float64 ``[layers, d]``: the running sum of a softmax over the layers, minus its first
        term."""
        if not self.shape.lower_bounds:
            return None
        logits = self._folder.tensor("model.lower_bounds").astype(np.float64)
        parts = np.exp(logits - logits.max(axis=0))
        parts /= parts.sum(axis=0)
        return np.asarray(np.cumsum(parts, axis=0) - parts[0])


_EMBEDDING = "model.embeddings.weight"
_RANDOM_TOKENS = 4096
_GATES = {"c": "i", "f": "f", "g": "g"}
"""Names of the projections of a token mixer: ours, theirs."""


def convert(
    folder: HubFolder, text: str | bytes | np.ndarray | None, *, tokenizer: Tokenizer,
    widths: Widths = WIDTHS["P24"], sequences: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QuantizedModel:
    """Convert a published checkpoint to integers.

    Parameters
    ----------
    folder
        The checkpoint.
    text
        Text, UTF-8 bytes or tokens to calibrate with: each format holds 1.5 times the largest value
        on them. None for 4,096 random tokens.
    tokenizer
        Tokenizer of the model, which may have more tokens than it.
    widths
        Bits of each kind of value.
    sequences
        Parts of the text to run in parallel; fewer are used if it is short.
    progress
        Called as ``progress(matrices_done, matrices)``.

    Raises
    ------
    ValueError
        If the folder cannot be used, the tokenizer has more tokens or does not reproduce the text,
        the text has fewer than two tokens, or a value does not fit in its bits.
    """
    published = Published(folder)
    shape, reals = published.shape, published.reals
    tokenizer = fitted(tokenizer, shape.vocab)
    row = (np.random.default_rng(1).integers(shape.vocab, size=_RANDOM_TOKENS) if text is None
           else as_tokens(text, tokenizer))
    parts = contiguous_sequences(row, max(1, min(sequences, row.size // 2)))
    begin = np.tile(np.array(tokenizer.begin, dtype=np.int64), (len(parts), 1))
    tokens = np.concatenate([begin, parts], axis=1)
    plain = hgrn_bit(shape, widths, reals, defaultdict(lambda: 1.0))
    total = sum(isinstance(each, Project) for each in plain.records)
    matrices: dict[str, Matrix] = {}

    def matrix(name: str) -> Matrix:
        matrices[name] = published.matrix(name)
        progress(len(matrices), total)
        return matrices[name]

    peaks: dict[str, float] = {}

    def note(name: str, value: np.ndarray) -> None:
        peaks[name] = max(float(value.max()), -float(value.min()), peaks.get(name, 0.0))

    embedding = published.embedding()
    run_real(plain.records, tokens, embedding, matrix, reals, plain.constants, note,
             keeps_logits=False)
    # Of every row, not only those of the text.
    peaks["embedding.row"] = 1.0
    peaks["embedding.x"] = float(reals["embedding.x"].max())
    made = hgrn_bit(shape, widths, reals, peaks)
    projections = {name: _projection(name, *each, made) for name, each in matrices.items()}
    first = made.records[0]
    assert isinstance(first, Embedding)
    # Float32 represents a 23-bit number plus one half exactly.
    rows = np.floor(np.ldexp(embedding, first.output.frac) + np.float32(0.5))
    table = sigmoid_table(widths.table, widths.sigmoid_frac, widths.sigmoid_segments)
    return QuantizedModel(
        tuple(made.records), widths.name, projections, rows.astype(np.int32),
        np.array(table, dtype=np.int32),
        {"source": folder.path.name, "calibration_tokens": parts.size}, tokenizer,
        made.vectors)


def tokenizer_of(
    folder: HubFolder, warn: Callable[[str], None] = warnings.warn,
) -> Tokenizer:
    """The tokenizer of a folder: its ``tokenizer.json``, or bytes if the file's tokens are bytes.

    Without one, or with one that does not stand for bytes, the model has none: ``warn`` is called,
    and texts are the numbers of tokens. Raises HubError if the file is damaged.
    """
    path = folder.path / "tokenizer.json"
    without = "the model has no tokenizer, and its texts are numbers of tokens"
    if not path.is_file():
        warn(f"{folder.path}: there is no {path.name}: {without}")
        return NUMBERS
    ends = folder.config.get("eos_token_id")
    try:
        found = HubTokenizer(path.read_text(encoding="utf-8-sig"), ends)
        return BYTES if (found.spellings, found.begin) == (BYTES.spellings, BYTES.begin) else found
    except ForeignTokenizerError as error:
        warn(f"{path}: {error}: {without}")
        return NUMBERS
    except (OSError, ValueError) as error:
        raise HubError(f"{path}: {error}") from error


def _projection(name: str, codes: np.ndarray, scale: float, made: Formatted) -> Projection:
    widths = made.widths
    try:
        k, shift = mantissa_and_shift(
            scale * made.scales[name], widths.mantissa_bits, widths.scale_bits)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Projection(codes, np.zeros(len(codes), dtype=np.int16), k, shift)
