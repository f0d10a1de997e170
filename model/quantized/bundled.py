"""The files bundled with Sterna: models, their test data, their training records.

The text is bundled so that the models' figures can be reproduced with any Python: the
manual in ``pydoc_data.topics`` differs between versions.
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
"""Names of bundled models, accepted wherever a command takes MODEL."""

BUNDLED_NETWORK = "vowels"
"""The bundled network over frames."""


def bundled_path(name: str) -> Path:
    """Return the quantised file of a bundled model."""
    return _DATA / BUNDLED[name]


def bundled_heldout(vocab: int = 256) -> bytes:
    """Return the text that no bundled model was trained on, as UTF-8 bytes; in ASCII for a
    vocabulary of 128.
    """
    text = (_DATA / "heldout.txt").read_bytes()
    return as_ascii(text) if vocab <= ASCII_VOCAB else text


def bundled_recordings() -> Path:
    """Return the recordings that the network ``vowels`` was trained and is tested on: Japanese
    vowels of nine speakers (Kudo, Toyama and Shimbo, 1999; data/NOTICE.txt)."""
    return _DATA / "vowels.npz"


def bundled_metrics(name: str) -> Path:
    """Return the ``metrics.csv`` of the run that produced a bundled model.

    ``tiny`` and ``tiny-c12`` share one run.
    """
    return _DATA / f"{name.removesuffix('-c12')}-metrics.csv"
