"""The files that come with Sterna: models, what they are tested on, their training records.

The text is shipped so that the models' figures can be reproduced with any Python: the
manual that ``pydoc_data.topics`` holds differs from version to version.
"""

from __future__ import annotations

from pathlib import Path

from sterna.model.corpus import as_ascii
from sterna.model.tokenizer import ASCII_VOCAB

__all__ = ["BUNDLED", "BUNDLED_NETWORK", "bundled_heldout", "bundled_metrics", "bundled_path",
           "bundled_recordings"]

_DATA = Path(__file__).parents[1] / "data"

BUNDLED = {"tiny": "tiny.safetensors", "tiny-c12": "tiny-c12.safetensors",
           "micro": "micro-c12.safetensors", "tiny-bpe": "tiny-bpe.safetensors",
           "vowels": "vowels.safetensors"}
"""Names that stand for a bundled model wherever a command takes MODEL."""

BUNDLED_NETWORK = "vowels"
"""Which of them is a network over frames."""


def bundled_path(name: str) -> Path:
    """Return the quantised file of a bundled model."""
    return _DATA / BUNDLED[name]


def bundled_heldout(vocab: int = 256) -> bytes:
    """Return the text no bundled model was trained on, as UTF-8 bytes; in ASCII for a model with a
    vocabulary of 128.
    """
    text = (_DATA / "heldout.txt").read_bytes()
    return as_ascii(text) if vocab <= ASCII_VOCAB else text


def bundled_recordings() -> Path:
    """Return the recordings that the network ``vowels`` was trained and is tested on: Japanese
    vowels of nine speakers (Kudo, Toyama and Shimbo, 1999; data/NOTICE.txt)."""
    return _DATA / "vowels.npz"


def bundled_metrics(name: str) -> Path:
    """Return the ``metrics.csv`` of the run that a bundled model comes from.

    ``tiny`` and ``tiny-c12`` come from one.
    """
    return _DATA / f"{name.removesuffix('-c12')}-metrics.csv"
