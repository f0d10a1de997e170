"""When Triton kernels are taken, and when torch computes; needs no Triton."""

from __future__ import annotations

import importlib

import pytest
import torch

from sterna.model.torch.network import kernels
from sterna.model.torch.network.kernels import by_triton


def test_tensors_that_are_not_on_a_gpu_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_triton_wanted", lambda: True)
    assert not by_triton(torch.zeros(2))
    assert not by_triton(torch.zeros(2, device="meta"))
    with by_triton.by(lambda *tensors: True):
        assert by_triton(torch.zeros(2))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    for value, wanted in (("1", True), ("0", False)):
        monkeypatch.setenv("STERNA_TRITON", value)
        assert kernels._triton_wanted.__wrapped__() is wanted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_float32_on_a_gpu_is_taken_if_triton_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = torch.zeros(2, device="cuda"), torch.zeros(2)
    for installed in (True, False):
        monkeypatch.setattr(kernels, "_triton_wanted", lambda installed=installed: installed)
        assert by_triton(here, torch.nn.Parameter(here)) is installed
        assert not by_triton(here, elsewhere)
        assert not by_triton(here.double())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["triton_gpu", "triton_errors --device cuda"])
def test_measures_without_a_gpu_are_refused(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", command.split())
    script = importlib.import_module(command.split()[0])
    for installed, message in ((True, "this needs a CUDA device"), (False, "this needs Triton")):
        monkeypatch.setattr(script, "find_spec", lambda name, there=installed: there or None)
        assert script.main() == 2
        assert capsys.readouterr().err.startswith(message)
