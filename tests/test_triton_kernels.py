"""The Triton kernels compute what their naive twins do: in Triton's interpreter, or on a GPU.

`make test-triton` runs these; without Triton, or with neither of the two, they are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton is in the extra triton")

import triton_errors
import triton_gpu
from triton_aot import KERNELS

from sterna.model.config import ModelConfig
from sterna.model.torch.network import quantizers
from sterna.model.torch.network.bitlinear import bit_linear
from sterna.model.torch.network.kernels import by_triton
from sterna.model.torch.network.recurrence import mlgru_scan
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.triton_kernels import absmax, bitlinear, recurrence, ternary
from sterna.model.torch.triton_kernels.kernel import INTERPRETED, Form, Kernel
from sterna.model.torch.triton_kernels.limits import WIDEST_ROW

if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

DEVICE = "cpu" if INTERPRETED else "cuda"
SCANS = (recurrence.scan_one_pass, recurrence.scan_chunked)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that a test launched."""
    names: list[str] = []
    launch = Kernel.launch

    def counted(kernel: Kernel, *arguments: object, form: Form) -> None:
        names.append(kernel.name)
        launch(kernel, *arguments, form=form)

    monkeypatch.setattr(Kernel, "launch", counted)
    return names


@pytest.fixture(autouse=True)
def restored_precision() -> Iterator[None]:
    """Torch's float32 products are what they were."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("group", ["scans", "quantisers", "projections"])
def test_every_kernel_is_within_a_millionth_of_its_naive_twin(
    group: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The interpreter takes long; still more than a chunk, and more than a block of each.
    monkeypatch.setattr(triton_errors, "SCANS", ((1, 1, 1), (70, 1, 33)))
    monkeypatch.setattr(
        triton_errors, "PROJECTIONS",
        (((3, 5, 33), (17, 40)), ((150, 130), (70, 130, 1)), ((1, 1), (1,))))
    for each in getattr(triton_errors, group)(DEVICE):
        assert each.forward <= 1e-6, each
        assert each.backward is None or each.backward <= 1e-6, each


@pytest.mark.parametrize("scan", SCANS)
def test_gates_of_zero_and_one_are_exact(scan: Callable[..., Tensor]) -> None:
    steps = 67
    candidate, initial = random(steps, 1, 3) * 1e30, random(1, 3, seed=1) * 1e-30
    replaced = scan(torch.zeros_like(candidate), candidate, initial)
    assert torch.equal(replaced, candidate)
    kept = scan(torch.ones_like(candidate), candidate, initial)
    assert torch.equal(kept, initial.expand_as(kept))


@pytest.mark.parametrize("scan", SCANS)
def test_a_sequence_goes_on_from_the_state_carried_out(scan: Callable[..., Tensor]) -> None:
    forget, candidate, initial = random(70, 2, 3).sigmoid(), random(70, 2, 3), random(2, 3)
    whole = scan(forget, candidate, initial)
    first = scan(forget[:40], candidate[:40], initial)
    second = scan(forget[40:], candidate[40:], first[-1])
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-6, atol=1e-6)


def test_codes_and_factors_are_torchs_own_to_the_last_bit() -> None:
    x = random(40, 130)
    x[0] = 0.0
    x[1] *= 1e-31   # below the smallest peak
    x[2] *= 1e30
    # A peak of 127 has a gain of 1: these are halves, which go to the even side.
    x[3] = torch.linspace(-32.5, 32.0, 130)
    x[3, 0] = 127.0
    codes, gains, inverses = absmax.absmax_codes(x)
    q, gain, inverse = quantizers.absmax_codes(x)
    assert torch.equal(codes.to(torch.float32), q)
    assert torch.equal(gains, gain[:, 0])
    torch.testing.assert_close(inverses, inverse[:, 0], rtol=2e-7, atol=0)
    halves = codes[3, 2::2].abs()
    assert bool((halves % 2 == 0).all())
    assert len(set(halves.tolist())) > 10


def test_ternary_codes_are_torchs_own_also_beside_a_threshold() -> None:
    half = torch.tensor([0.5, 1.5], device=DEVICE)
    beside = torch.cat([half, half.nextafter(half * 2), half.nextafter(half * 0), half * 1e20])
    weights = [torch.cat([beside, -beside])[None] * 2.0**-7, random(33, 16) * 5]
    scales = [torch.tensor(2.0**-7, device=DEVICE), quantizers.ternary_scale(weights[1])]
    codes = ternary.ternary_codes(weights, scales).to(torch.float32)
    expected = torch.cat([(weight / scale).round().clamp(-1, 1)
                          for weight, scale in zip(weights, scales, strict=True)])
    assert torch.equal(codes, expected)


def project(x: Tensor, weight: Tensor, limit: float = math.inf) -> Tensor:
    return bitlinear.bit_linear(x, [weight], [quantizers.ternary_scale(weight)], None, limit=limit)


def test_a_zero_vector_gives_zeros_and_gets_no_gradient() -> None:
    x, weight = random(3, 20), random(5, 20)
    x[1] = 0.0
    x.requires_grad_()
    out = project(x, weight)
    assert out[1].tolist() == [0.0] * 5
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum(1).gt(0).tolist() == [True, False, True]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("limit", [math.inf, 1.0])
def test_what_is_not_finite_is_not_hidden(wrong: float, limit: float) -> None:
    x = random(3, 20)
    x[1, 7] = wrong
    finite = project(x, random(5, 20), limit).isfinite()
    assert finite.all(1).tolist() == [True, False, True]
    assert not finite[1].any()


@pytest.mark.parametrize("of", [
    lambda x: absmax.absmax_quantize(x), lambda x: project(x, random(5, 6)),
    lambda x: recurrence.scan_one_pass(x[:, None].sigmoid(), x[:, None], x[:1])],
    ids=["quantiser", "projection", "scan"])
def test_a_gradient_of_a_gradient_is_refused_and_not_left_out(of: Callable[..., Tensor]) -> None:
    x = random(3, 6).requires_grad_()
    (grad,) = torch.autograd.grad(of(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        grad.sum().backward()


def test_saturated_outputs_pass_no_gradient() -> None:
    x, weight = random(6, 16), random(9, 16).requires_grad_()
    free = project(x, weight.detach())
    limit = float(free.abs().median())
    out = project(x, weight, limit)
    assert float(out.detach().abs().max()) == limit
    grad = (free.abs() >= limit).to(torch.float32)   # only into what is saturated
    out.backward(grad)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_vector_wider_than_any_form_is_refused_and_left_to_torch(launched: list[str]) -> None:
    x, weight = random(1, WIDEST_ROW + 1), random(2, WIDEST_ROW + 1)
    with pytest.raises(ValueError, match=rf"columns \({WIDEST_ROW + 1}\) must be at most"):
        project(x, weight)
    with by_triton.by(lambda *tensors: True):
        assert bit_linear(x, [weight], None).shape == (1, 2)
    assert launched == []


@pytest.mark.skipif(not INTERPRETED, reason="checked where it costs nothing")
def test_what_was_not_compiled_ahead_of_time_is_not_launched() -> None:
    kernel = ternary.KERNELS[0]
    weight, codes = random(2, 3), torch.empty(2, 3, dtype=torch.int8)
    with pytest.raises(AssertionError, match="not compiled for"):
        kernel.launch((1,), weight, weight, codes, 6, form=Form({"BLOCK": 512}))
    with pytest.raises(AssertionError, match="not compiled for"):
        kernel.launch((1,), weight.double().to(torch.int8), weight, codes, 6,
                      form=kernel.forms[0])


def test_a_model_is_trained_the_same_with_the_kernels(launched: list[str]) -> None:
    model = LanguageModel(ModelConfig(d=12, layers=1, dff=20, vocab=16)).to(DEVICE)
    tokens = torch.arange(42).remainder(16).view(2, 21).to(DEVICE)
    results = []
    for wanted in (False, True):
        model.zero_grad()
        with by_triton.by(lambda *tensors, wanted=wanted: wanted):
            logits, state = model(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if not wanted:
            assert launched == []
        results.append([logits.detach(), *(part for layer in state for part in layer),
                        *(each.grad for each in model.parameters())])
    for torchs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    # One pass, as 20 steps are few; so all but the chunked forms.
    assert set(launched) == {kernel.name for kernel in KERNELS} - {
        "_chunked_forward", "_chunked_backward"}


def test_long_sequences_are_scanned_by_chunks(launched: list[str]) -> None:
    leaf = random(64, 1, 2).requires_grad_()
    with by_triton.by(lambda *tensors: True):
        mlgru_scan(leaf.sigmoid(), leaf, leaf[0]).sum().backward()
    assert launched == ["_chunked_forward", "_chunked_backward"]


@pytest.mark.parametrize("limit", [math.inf, 1.0])
def test_gradients_follow_torchs_precision_and_sums_of_codes_are_exact(limit: float) -> None:
    x, weight = random(64, 96).requires_grad_(), random(32, 96).requires_grad_()
    found = []
    for precision in ("highest", "highest", "high", "high"):
        torch.set_float32_matmul_precision(precision)
        out = project(x, weight, limit)
        found.append([out.detach(), *torch.autograd.grad(out, [x, weight], random(64, 32, seed=1))])
    exact, twice, coarse, coarse_twice = found
    assert all(map(torch.equal, exact + coarse, twice + coarse_twice))
    assert torch.equal(exact[0], coarse[0])
    for ours, theirs in zip(coarse[1:], exact[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=4e-3 * float(theirs.abs().max()))
        if DEVICE == "cuda":
            assert not torch.equal(ours, theirs)


def test_gradients_keep_their_precision_under_autocast() -> None:
    x, weight = random(40, 16).requires_grad_(), random(9, 16).requires_grad_()
    found = []
    for enabled in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(project(x, weight).sum(), [x, weight]))
    assert all(map(torch.equal, *found))


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU the script is for real sizes")
def test_the_timings_for_a_gpu_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["triton_gpu.py", "--smallest", "--repeats", "1"])
    assert triton_gpu.main() == 0
    out = capsys.readouterr().out
    assert out.startswith("Triton's interpreter; torch ")
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == [
        *["recurrence (5, 2, 3)"] * 3, *["BitLinear (4, 8, 5)"] * 2, *["step, d 8, layers 1"] * 2]
