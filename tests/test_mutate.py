"""Benches of units notice changes of one bit: a sample, the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "verify"))
    import mutate as command


@pytest.mark.parametrize("name", ["mac", "requantizer"])
def test_a_sample_of_mutants_is_noticed_or_proven_the_same_circuit(name):
    found = command.mutate(name, 24, seed=2)
    assert found.mutants == 24
    assert found.missed == []
    assert found.caught >= 20


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--mutants", "0"]])
def test_impossible_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "no unit has" in capsys.readouterr().err
