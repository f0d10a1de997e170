"""Proof by induction that the accumulator of the array never overflows; a bit less does."""

from __future__ import annotations

import pytest

from sterna.hw.emit.folder import verilog_text
from sterna.hw.proof.overflow import NoOverflow, OneBitLess
from sterna.hw.proof.solver import Question, Verdict, ask
from sterna.hw.units.mac.base.params import MacParams

GEOMETRIES = [(1, 1), (4, 16), (5, 17), (128, 128), (128, 384)]  # cols, max_columns
INDUCTION = "sat -tempinduct -prove holds 1 -maxsteps 12"


@pytest.mark.parametrize(("cols", "max_columns"), GEOMETRIES)
@pytest.mark.parametrize(("kind", "verdict", "words"), [
    (MacParams, Verdict.PROVEN, "Induction step proven: SUCCESS!"),
    (OneBitLess, Verdict.REFUTED, "model found for base case: FAIL!"),
])
def test_accumulator_is_wide_enough_and_a_bit_less_is_not(
        kind, verdict, words, cols, max_columns, tmp_path):
    claim = verilog_text(NoOverflow(kind(1, cols, max_columns)), "proof")
    answer = ask(Question(claim, INDUCTION), tmp_path)
    assert answer.verdict is verdict, answer.log[-2000:]
    assert words in answer.log
