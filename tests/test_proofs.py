"""The proofs about the array: what counts as one, and that a fault is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna.hw.units.mac.array_style import ArrayStyle

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "verify"))
    import prove as command
    from prove import CLAIMS, Cells, Claim, Question, Verdict, ask, plant
    from row_claims import Fault

TRUE = """
module proof (input clk, input [3:0] a, output holds);
  reg [3:0] kept = 0;
  always @(posedge clk) kept <= a;
  assign holds = kept < 16;
endmodule
"""
FALSE = TRUE.replace("kept < 16", "kept != 11")
INDUCTION = "sat -tempinduct -prove holds 1 -maxsteps 4"
FROM_RESET = "sat -seq 4 -prove holds 1"


@pytest.mark.parametrize(("verilog", "solve", "verdict"), [
    (TRUE, INDUCTION, Verdict.PROVEN), (TRUE, FROM_RESET, Verdict.PROVEN),
    (FALSE, INDUCTION, Verdict.REFUTED), (FALSE, FROM_RESET, Verdict.REFUTED),
    # A solver that says nothing has proven nothing.
    (TRUE, "stat", Verdict.UNDECIDED),
    # A register may hold anything before the first clock: not inductive, so no verdict.
    (TRUE.replace("kept <= a", "kept <= kept").replace("kept < 16", "kept == 0")
     .replace("output holds", "input b, output holds"), "sat -seq 2", Verdict.UNDECIDED),
])
def test_only_the_words_of_the_solver_are_a_verdict(verilog, solve, verdict, tmp_path):
    assert ask(Question(verilog, solve), tmp_path) is verdict


def test_a_fault_is_planted_in_a_cell_that_adds():
    assert plant(".INIT0(16'h0000) .INIT0(16'h66aa)") == ".INIT0(16'h0000) .INIT0(16'h66ea)"
    assert plant(".INIT(64'h0000000000000000)") == ".INIT(64'h0000000000000020)"
    with pytest.raises(ValueError, match="no cell"):
        plant("module proof; endmodule")


@pytest.mark.parametrize(("arguments", "message"), [
    (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    (["--only", "perpetual motion"], "perpetual motion")])
def test_impossible_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_every_style_is_among_the_claims():
    about = {style: [claim for claim in CLAIMS if claim.text.startswith(style)]
             for style in ArrayStyle}
    for style, claims in about.items():
        assert claims, style
        if style is not ArrayStyle.GENERIC:
            assert {claim.cells for claim in claims} == set(Cells)
            assert {Fault.CELL, Fault.CODE} <= {claim.fault for claim in claims}
    assert all(claim.fault is not Fault.NONE for claim in CLAIMS)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)


class Verilog:
    """A claim given in Verilog; with its fault it is another."""

    def __init__(self, text: str, sound: str, faulty: str) -> None:
        self.text, self.cells, self.fault = text, Cells.OURS, Fault.CODE
        self._verilog = {Fault.NONE: sound, Fault.CODE: faulty}

    def question(self, fault: Fault = Fault.NONE) -> Question:
        return Question(self._verilog[fault], INDUCTION)


@pytest.mark.parametrize(("sound", "faulty", "status", "words"), [
    (TRUE, FALSE, 0, "1 of 1 claims proven"),
    (FALSE, FALSE, 1, "FAILED"),
    (TRUE, TRUE, 1, "FAILED"),          # a fault that goes unnoticed
    (TRUE, "no Verilog", 1, "Yosys failed"),
])
def test_the_command_fails_unless_all_is_proven_and_each_fault_noticed(
        sound, faulty, status, words, monkeypatch, capsys):
    monkeypatch.setattr(command, "CLAIMS", (Verilog("a claim", sound, faulty),))
    assert command.main([]) == status
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("claim", [
    # The width of a narrow accumulator takes a second; the rows take minutes.
    pytest.param(claim, id=f"{claim.text} ({claim.cells})",
                 marks=() if claim.fault is Fault.WIDTH and "384" not in claim.text
                 else pytest.mark.long)
    for claim in CLAIMS])
def test_claim_is_proven_and_its_fault_noticed(claim: Claim):
    outcome = command.prove(claim)
    assert outcome.verdict is Verdict.PROVEN, outcome.error
    assert outcome.control is Verdict.REFUTED, outcome.error
