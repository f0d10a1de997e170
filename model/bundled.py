"""The files that come with Sterna: two models, their held-out text, their training record.

The text is shipped so that the models' figures can be reproduced with any Python: the
manual that ``pydoc_data.topics`` holds differs from version to version.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["BUNDLED", "bundled_heldout", "bundled_metrics", "bundled_path"]

_DATA = Path(__file__).parent / "data"

BUNDLED = {"tiny": "tiny.safetensors", "tiny-c12": "tiny-c12.safetensors"}
"""Names that stand for a bundled model wherever a command takes MODEL."""


def bundled_path(name: str) -> Path:
    """Return the quantised file of a bundled model."""
    return _DATA / BUNDLED[name]


def bundled_heldout() -> bytes:
    """Return the text no bundled model was trained on, as UTF-8 bytes."""
    return (_DATA / "heldout.txt").read_bytes()


def bundled_metrics() -> Path:
    """Return the ``metrics.csv`` of the run that both bundled models come from."""
    return _DATA / "tiny-metrics.csv"
