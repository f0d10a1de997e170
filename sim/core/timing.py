"""The cycles of a simulated core against the cycle model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sterna.hw.core.plan.core_params import CoreParams, program
from sterna.hw.core.timing.cycles import TokenTimes

__all__ = ["CyclesCheck", "check_stages", "check_tokens"]


@dataclass(frozen=True, slots=True)
class CyclesCheck:
    """Cycles as simulated and as the cycle model predicts them.

    ``events`` were compared, ``mismatches`` of them differ; ``first`` says which first.
    """

    events: int = 0
    mismatches: int = 0
    first: str | None = None

    def __add__(self, other: CyclesCheck) -> CyclesCheck:
        return CyclesCheck(
            self.events + other.events, self.mismatches + other.mismatches,
            self.first or other.first)


def check_tokens(
    params: CoreParams, times: Sequence[TokenTimes], taken_at: Sequence[Sequence[int]],
) -> CyclesCheck:
    """Compare the cycles in which generated tokens came out, a list for each sequence.

    A token is offered in the cycle after it was chosen.
    """
    pairs = []
    for sequence in range(params.sequences):
        seen = list(taken_at[sequence])
        done = [token.done + 1 for token in times
                if token.sequence == sequence and token.generates]
        pairs += [(f"token {index} of sequence {sequence}", predicted, simulated)
                  for index, (predicted, simulated) in enumerate(zip(done, seen, strict=False))]
        if len(done) != len(seen):
            pairs.append((f"number of tokens of sequence {sequence}", len(done), len(seen)))
    return _check(pairs)


def check_stages(
    params: CoreParams, times: Sequence[TokenTimes], beats: Sequence[int],
    results: Sequence[int],
) -> CyclesCheck:
    """Compare first and last beat of every stage, first and last word of its results, the counts.

    Parameters
    ----------
    params, times
        Geometry of the core, and what the cycle model says.
    beats, results
        Cycles in which the array took beats, and the post-processor gave words of results.
    """
    stages = program(params)
    in_order = sorted((stage for token in times for stage in token.stages),
                      key=lambda stage: stage.service)
    pairs = []
    beat = header = 0
    for times_of_stage in in_order:
        stage = stages[times_of_stage.index]
        first, beat = beat, beat + stage.beats
        first_result, header = header, header + stage.headers
        if beat > len(beats) or header > len(results):
            continue    # the counts below say that some are missing
        name = f"of stage {stage.projections[0]}"
        pairs += [
            (f"first beat {name}", times_of_stage.first_beat, beats[first]),
            (f"last beat {name}", times_of_stage.last_beat, beats[beat - 1]),
            (f"first result {name}", times_of_stage.first_result, results[first_result]),
            (f"last result {name}", times_of_stage.last_result, results[header - 1])]
    for what, predicted, seen in (("beats", beat, beats), ("words of results", header, results)):
        if predicted != len(seen):
            pairs.append((f"number of {what}", predicted, len(seen)))
    return _check(pairs)


def _check(pairs: Sequence[tuple[str, int, int]]) -> CyclesCheck:
    wrong = [f"{what}: the cycle model says {predicted}, simulated {simulated}"
             for what, predicted, simulated in pairs if predicted != simulated]
    return CyclesCheck(len(pairs), len(wrong), wrong[0] if wrong else None)
