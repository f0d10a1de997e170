"""The ternary array in Amaranth's simulator: products to run on it, and what they must give."""

from __future__ import annotations

import numpy as np
from vendor_cells import simulated_cells

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.weight_packing import beat_payloads, pack_projection, sum_values
from sterna.model.quantized.integer import ternary_matmul

STEADY = Pauses()


def reference(weight: np.ndarray, acts: np.ndarray) -> np.ndarray:
    return ternary_matmul(acts.astype(np.int64), weight.T.astype(np.float64))


def random_product(rng: np.random.Generator, rows: int, columns: int):
    return (rng.integers(-1, 2, (rows, columns), dtype=np.int8),
            rng.integers(-128, 128, columns))


def extreme_products(rows: int, columns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Matrices of one trit with the extreme activations, and the largest sums of either sign."""
    products = []
    for trit in (1, -1, 0):
        weight = np.full((rows, columns), trit, dtype=np.int8)
        products += [(weight, np.full(columns, act)) for act in (-128, 127, 0, -1)]
    alternating = np.resize(np.array([1, -1], dtype=np.int8), (rows, columns))
    return [*products, *((weight, np.resize([127, -128], columns))
                         for weight in (alternating, -alternating))]


def check_products(
    array: TernaryMacArray, products: list[tuple[np.ndarray, np.ndarray]], pauses=STEADY,
) -> StreamRun:
    """Run (weight, acts) pairs one after the other, and compare their products."""
    params = array.params
    payloads = [
        payload for weight, acts in products
        for payload in beat_payloads(pack_projection(weight, params), acts, params)]
    groups = [params.groups(len(weight)) for weight, _ in products]
    with simulated_cells():
        run = run_stream(
            array, array.beats, array.sums, payloads, sum(groups), pauses=pauses,
            max_cycles=40 * (len(payloads) * (1 + params.fill_steps) + params.latency) + 100)
    parts = np.split(sum_values(run.results, params), np.cumsum(groups)[:-1])
    for part, (weight, acts) in zip(parts, products, strict=True):
        np.testing.assert_array_equal(
            part.reshape(-1)[:len(weight)], reference(weight, acts))
    return run


def check_reset_in_mid_group(array: TernaryMacArray, seed: int) -> None:
    """Stop one beat short of a group, reset, and see that the next product is whole."""
    rng, params = np.random.default_rng(seed), array.params
    abandoned, complete = random_product(rng, 6, 16), random_product(rng, 4, 16)
    payloads = [beat_payloads(pack_projection(weight, params), acts, params)
                for weight, acts in (abandoned, complete)]
    # The first phase stops after two of three groups, one beat short of the third.
    phases = [(payloads[0][:-1], 2), (payloads[1], 2), (payloads[0][:1], 0), (payloads[1], 2)]
    with simulated_cells():
        runs = run_streams(array, array.beats, array.sums, phases,
                           pauses=Pauses(0.2, 0.2, 8), max_cycles=3000)
    for run in (runs[1], runs[3]):
        np.testing.assert_array_equal(
            sum_values(run.results, params).reshape(-1), reference(*complete))
