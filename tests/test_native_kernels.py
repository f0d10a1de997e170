"""The compiled kernels of training compute what torch's operators do, on any number of threads."""

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mixer_parts import gates, values_and_gradients
from torch import Tensor

from sterna.model.cpp_library import NoCompilerError
from sterna.model.profile import S16
from sterna.model.torch.native_cpu.kernels import kernels_of_library
from sterna.model.torch.native_cpu.library import kernel_library
from sterna.model.torch.network.bitlinear import bit_linear
from sterna.model.torch.network.gates import gated_scan, gated_silu, residual_sum
from sterna.model.torch.network.kernels import kernels_for, use_kernels
from sterna.model.torch.network.numerics import Limits, Numerics
from sterna.model.torch.network.recurrence import mlgru_scan, naive_mlgru

PROCESSORS = ["native"]
if platform.machine() == "x86_64":
    # Products forward in int8 with sums of 16 bits, and in float32.
    PROCESSORS += [pytest.param(each, marks=pytest.mark.slow)
                   for each in ("x86-64-v3", "x86-64-v3 -mno-avx2")]

REAL, LIMITS = Numerics(), Limits(S16)     # products reach 32, the residual stream 16

seeds = st.integers(0, 2**32 - 1)
threads = st.integers(1, 3)
checked = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)


@pytest.fixture(params=PROCESSORS, scope="module")
def kernels(request):
    """The kernels, from the cache of whoever runs the tests."""
    try:
        return kernels_of_library(kernel_library(*request.param.split()).build())
    except NoCompilerError as error:
        pytest.skip(str(error))


@contextmanager
def arithmetic(count: int, precision: str = "highest") -> Iterator[None]:
    """A number of threads, and how precise torch's products are."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(count)
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


def assert_near(ours: list[Tensor], expected: list[Tensor], relative: float) -> None:
    """Within ``relative`` of the largest number of each tensor."""
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        scale = float(other.abs().max()) + 1e-30
        assert one.shape == other.shape
        assert float((one.double() - other.double()).abs().max()) <= relative * scale


def normal(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator)


def layer(
    columns: int, rows: list[int], lead: tuple[int, ...], bias: bool, seed: int,
) -> list[Tensor]:
    """Vectors (the first is zero), matrices of different scale and biases."""
    make = normal(seed)
    x = make(*lead, columns)
    x.view(-1, columns)[0] = 0.0
    return [x, *(make(count, columns) * 3.0**i for i, count in enumerate(rows)),
            *(make(count) for count in rows if bias)]


def as_layer(parts: int, limit: float) -> Callable[..., Tensor]:
    """``bit_linear`` of tensors one after the other."""
    return lambda x, *others: bit_linear(x, others[:parts], others[parts:] or None, limit)


@pytest.mark.parametrize(("products", "skipped", "error"), [
    ("highest", 0, 1e-6),
    # A single gradient of the inputs may be cancelled down to its rounding in bfloat16: only the
    # others are compared with what was added up.
    ("medium", 2, 2e-2)])
@checked
@given(
    columns=st.integers(3, 150), rows=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    lead=st.sampled_from([(1,), (5,), (3, 50), (299,)]), bias=st.booleans(),
    limit=st.sampled_from([math.inf, 1.5]), seed=seeds, count=threads)
def test_a_projection_is_the_same_to_the_last_bit_and_its_gradients_nearly(
        kernels, products, skipped, error, columns, rows, lead, bias, limit, seed, count):
    inputs, form = layer(columns, rows, lead, bias, seed), as_layer(len(rows), limit)
    expected = values_and_gradients(form, inputs)
    with use_kernels(kernels), arithmetic(count, products):
        ours = values_and_gradients(form, inputs)
    assert torch.equal(ours[0], expected[0])
    assert_near(ours[skipped:], expected[skipped:], error)


@pytest.mark.parametrize(("columns", "rows", "tokens", "limit", "error"), [
    (70_000, [2], 3, math.inf, 1e-5), (33, [17, 17], 700, 2.0, 1e-6)])
def test_a_long_row_and_many_tokens_are_no_exception(kernels, columns, rows, tokens, limit, error):
    inputs, form = layer(columns, rows, (tokens,), True, 1), as_layer(len(rows), limit)
    expected = values_and_gradients(form, inputs)
    with use_kernels(kernels), arithmetic(len(rows)):
        assert_near(values_and_gradients(form, inputs), expected, error)


@pytest.mark.parametrize("columns", [256, 257, 1000])
def test_sums_at_their_ends_do_not_wrap(kernels, columns):
    """Sums of 16 bits hold 256 columns: 127 * 2 * 256 of them is just below their end."""
    signs = torch.tensor([[1.0], [-1.0]])
    inputs = [signs.expand(2, columns).contiguous() for _ in range(2)]
    with use_kernels(kernels):
        ours = bit_linear(inputs[0], inputs[1:], None)
    whole = torch.full((2,), float(columns))    # every vector normalised is of ones
    assert torch.equal(ours, bit_linear(inputs[0], inputs[1:], None))
    torch.testing.assert_close(ours, torch.diag(whole) - torch.diag(whole).flip(0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_the_outputs_as_in_torch(kernels, bad):
    form = as_layer(1, 2.0)
    for spoiled in (0, 1):      # a vector, the matrix
        inputs = layer(20, [7], (4,), True, 3)
        inputs[spoiled][2, 5] = bad
        expected = form(*inputs)
        with use_kernels(kernels):
            ours = form(*inputs)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
        assert expected.isnan().all(-1).tolist() == [bool(spoiled)] * 2 + [True, bool(spoiled)]


def scan_inputs(*shape: int, seed: int) -> list[Tensor]:
    """Gates, candidates and a first state."""
    make = normal(seed)
    return [gates(*shape, seed=seed).float(), make(*shape), make(*shape[1:])]


def test_closed_gates_copy_the_candidate_and_open_gates_keep_the_state(kernels):
    _, candidate, initial = scan_inputs(9, 2, 37, seed=0)
    with use_kernels(kernels):
        closed = mlgru_scan(torch.zeros_like(candidate), candidate, initial)
        kept = mlgru_scan(torch.ones_like(candidate), candidate, initial)
    assert torch.equal(closed, candidate)
    assert torch.equal(kept, initial.expand_as(kept))


@checked
@given(steps=st.integers(1, 40), batch=st.integers(1, 3), channels=st.integers(1, 70), seed=seeds,
       count=threads)
def test_recurrences_products_and_sums_are_those_of_torch(
        kernels, steps, batch, channels, seed, count):
    """Which computes in twice the precision: kernels are for float32."""
    make = normal(seed)
    z, state = 4.0 * make(steps, batch, 3 * channels), make(batch, channels)
    z[0, 0, 0] = 300.0      # far beyond where an exponential overflows
    z[0, 0, -1] = -300.0
    pair = [8.0 * make(steps, batch, 2 * channels)]
    both = [12.0 * make(steps, channels), 12.0 * make(steps, channels)]
    for function, inputs in (
        (mlgru_scan, scan_inputs(steps, batch, channels, seed=seed)),
        (lambda z, state: gated_scan(z, state, REAL), [z, state]),
        (lambda z: gated_scan(z, state.to(z.dtype), LIMITS)[1], [z]),
        (lambda z: gated_silu(z, LIMITS), pair), (lambda z: gated_silu(z, REAL), pair),
        (lambda a, b: residual_sum(a, b, LIMITS), both),
        (lambda a, b: residual_sum(a, b, REAL), both),
    ):
        twin = naive_mlgru if function is mlgru_scan else function
        expected = values_and_gradients(twin, [each.double() for each in inputs])
        with use_kernels(kernels), arithmetic(count):
            assert_near(values_and_gradients(function, inputs), expected,
                        1e-6 if function is mlgru_scan else 5e-6)


def test_results_of_the_gated_recurrence_hold_no_memory_but_their_own(kernels):
    with use_kernels(kernels):
        for each in gated_scan(torch.ones(5, 2, 9), torch.ones(2, 3), REAL):
            assert each.untyped_storage().nbytes() == 4 * each.numel()


class Halves(Limits):
    """Limits that also round states."""

    def h(self, state: Tensor) -> Tensor:
        return (2.0 * state).round() / 2.0


def test_other_numerics_than_limits_are_left_to_torch(kernels):
    z, state = normal(0)(5, 2, 9), normal(1)(2, 3)
    expected = gated_scan(z, state, Halves(S16))
    with use_kernels(kernels):
        ours = gated_scan(z, state, Halves(S16))
    assert all(torch.equal(*pair) for pair in zip(ours, expected, strict=True))
    assert not torch.equal(ours[0], gated_scan(z, state, LIMITS)[0])


def calls() -> list[tuple[Callable[..., Tensor | tuple[Tensor, ...]], list[Tensor]]]:
    make = normal(5)
    return [
        (as_layer(3, 2.0), layer(96, [40, 50, 60], (700,), True, 4)),
        (mlgru_scan, scan_inputs(50, 3, 130, seed=6)),
        (lambda z, state: gated_scan(z, state, REAL), [make(50, 3, 390), make(3, 130)]),
        (lambda z: gated_silu(z, LIMITS), [make(60, 300)])]


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_no_result_depends_on_the_number_of_threads(kernels, precision):
    found = []
    for count in (1, 3):
        with use_kernels(kernels), arithmetic(count, precision):
            found.append([each for call in calls() for each in values_and_gradients(*call)])
    assert all(map(torch.equal, *found))


def test_tensors_that_no_kernel_is_for_go_to_torch(kernels):
    x = torch.ones(2, 3)
    with use_kernels(kernels):
        assert kernels_for(x) is kernels
        for other in (x.double(), x.bfloat16(), x[:0], x.to("meta")):
            assert kernels_for(x, other) is None
            assert kernels_for(other) is None
        inputs = [each.double() for each in layer(5, [3], (4,), True, 0)]
        expected = as_layer(1, 1.0)(*inputs)
        assert as_layer(1, 1.0)(*inputs).dtype == torch.float64
        with use_kernels(None):
            assert kernels_for(x) is None
            assert torch.equal(as_layer(1, 1.0)(*inputs), expected)
        assert kernels_for(x) is kernels
    assert kernels_for(x) is None


def test_results_are_float32_whatever_torch_makes_by_default(kernels):
    with use_kernels(kernels), arithmetic(1):
        for call in calls():
            expected = values_and_gradients(*call)
            torch.set_default_dtype(torch.float64)
            try:
                found = values_and_gradients(*call)
            finally:
                torch.set_default_dtype(torch.float32)
            assert all(each.dtype == torch.float32 for each in found)
            assert_near(found, expected, 1e-6)  # the gradients that came in have been rounded once


def test_shapes_that_do_not_fit_are_refused_and_not_read_beyond(kernels):
    x = torch.ones(5, 2, 6)
    with use_kernels(kernels):
        for refused, what in (
            (lambda: bit_linear(x, [torch.ones(3, 7)], None), r"matrix must be \[3, 6\]"),
            (lambda: bit_linear(x, [torch.ones(3, 6)], [torch.ones(2)]), r"bias must be \[3\]"),
            (lambda: mlgru_scan(x, x, torch.ones(1, 6)), r"state must be \[2, 6\]"),
            (lambda: mlgru_scan(x[:4], x, x[0]), r"gates must be \[5, 2, 6\]"),
            (lambda: gated_scan(x, torch.ones(2, 3), REAL), r"must be \[5, 2, 9\]"),
            (lambda: gated_silu(torch.ones(2, 5), REAL), r"must be \[2, 4\], got \[2, 5\]"),
        ):
            with pytest.raises(ValueError, match=what):
                refused()
