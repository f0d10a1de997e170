"""What is emitted stays as it is: Verilog folders, ONNX files, quantised files, board sources.

A change that means to alter them records new checksums with ``python tests/emitted_bytes.py
--write`` and says in the changelog what changed.
"""

from __future__ import annotations

import json

import emitted_bytes
import pytest

RECORDED = json.loads(emitted_bytes.RECORDED.read_text())


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == emitted_bytes.cases()


@pytest.mark.parametrize("case", emitted_bytes.cases())
def test_files_are_as_recorded(case: str) -> None:
    assert list(emitted_bytes.differences(case, RECORDED)) == []
