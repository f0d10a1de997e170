"""Rows of the styles for the Xilinx 7 series: their sums, and the cells they take."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from xc7_bench import run_verilog

from sterna.hw.emit.tools import run_yosys
from sterna.hw.emit.verilog import verilog_files, write_verilog
from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import (
    PAIRS,
    pack_pairs,
    pack_triples,
    unpack_triples,
)
from sterna.hw.units.mac.xc7_rows import PairAdder, TernaryAdder, Xc7PairRow, Xc7TableRow

TRIPLE_CODES = [*range(14), *range(17, 30)]


def packed(values, width: int) -> int:
    """Elements of a port as one number."""
    return to_ints(to_bits(np.array([values]), width))[0]


def signed(bits: str) -> int:
    """A number in two's complement."""
    return int(bits, 2) - (1 << len(bits)) * (bits[0] == "1")


# Adders


def test_pair_adder_is_right_for_every_code_and_activation(tmp_path):
    cases = [(code, x0, x1) for code in PAIRS for x0 in range(-8, 8) for x1 in range(-8, 8)]
    results = run_verilog(
        tmp_path, verilog_files(PairAdder(4), "adder")["adder.v"], "adder",
        {"code": 4, "x0": 4, "x1": 4}, ("total", 5),
        [{"code": code, "x0": x0, "x1": x1} for code, x0, x1 in cases],
        clocked=False)
    for (code, x0, x1), total in zip(cases, results, strict=True):
        w0, w1 = PAIRS[code]
        assert signed(total) == w0 * x0 + w1 * x1 - (w0, w1).count(-1), (code, x0, x1)


def test_ternary_adder_is_right_for_every_operand(tmp_path):
    cases = [(*abc, clear) for abc in itertools.product(range(-8, 8), repeat=3)
             for clear in (0, 1)]
    results = run_verilog(
        tmp_path, verilog_files(TernaryAdder(6), "adder")["adder.v"], "adder",
        {"a": 6, "b": 6, "c": 6, "clear": 1}, ("total", 6),
        [{"a": a, "b": b, "c": c, "clear": clear} for a, b, c, clear in cases], clocked=False)
    for (a, b, c, clear), total in zip(cases, results, strict=True):
        assert signed(total) == a + b + (0 if clear else c), (a, b, c, clear)


# Rows


def random_vector(dice: np.random.Generator, shape: tuple[int, int], low: int, high: int):
    """Random numbers, or the lowest or the highest throughout."""
    values = dice.integers(low, high, shape, endpoint=True)
    return [values, np.full(shape, low), np.full(shape, high)][dice.choice(3, p=[0.6, 0.2, 0.2])]


class Schedule:
    """Inputs of a row cycle by cycle, with pauses, and the sums that must come out.

    ``run`` and ``wait`` add cycles. What a beat's accumulation needs follows its operands
    by ``row_steps`` cycles in which the pipeline advances.
    """

    def __init__(self, params: MacParams, operands: dict[str, int], seed: int):
        self.params = params
        self.dice = random.Random(seed)
        self.operands = operands
        self.inputs = {"advance": 1, "filled": 1, "first": 1, **operands}
        self.stimuli: list[dict[str, int]] = []
        self.expected: dict[int, int] = {}
        self.behind = [{"filled": 0, "sum": None}] * params.row_steps

    def noise(self, **known: int) -> dict[str, int]:
        """A cycle's inputs: what is known of them, and anything for the others."""
        values = {name: self.dice.getrandbits(width) for name, width in self.inputs.items()}
        return values | known

    def cycle(self, beat: dict[str, int | None] | None, **known: int) -> None:
        """Advance by a beat, or by none; with pauses before it."""
        while self.dice.random() < 0.2:
            self.stimuli.append(self.noise(advance=0, **known))
        self.behind.append(beat or {"filled": 0, "sum": None})
        leaving = self.behind.pop(0)
        if leaving["sum"] is not None:
            self.expected[len(self.stimuli)] = leaving["sum"]
        late = {name: leaving[name] for name in ("filled", "first", "start") if name in leaving}
        early = {name: value for name, value in (beat or {}).items() if name in self.operands}
        early.pop("start", None)
        self.stimuli.append(self.noise(advance=1, **known, **late, **early))

    def drain(self) -> None:
        for _ in range(len(self.behind) + 1):
            self.cycle(None)

    def check(self, folder, row, module="row") -> int:
        """Simulate and return how many sums were right."""
        self.drain()
        results = run_verilog(folder, verilog_files(row, module)[f"{module}.v"], module,
                              self.inputs, ("sum", self.params.sum_bits), self.stimuli)
        wrong = [(cycle, signed(results[cycle]) if "x" not in results[cycle] else "x", total)
                 for cycle, total in self.expected.items()
                 if "x" in results[cycle] or signed(results[cycle]) != total]
        assert not wrong, wrong[:3]
        return len(self.expected)


@pytest.mark.parametrize(("cols", "beats", "act_bits"), [
    (1, 3, 8), (2, 1, 8), (3, 2, 8), (5, 2, 8), (6, 1, 4), (7, 3, 8), (16, 2, 8), (19, 2, 5),
    (40, 2, 8)])
def test_pair_row_sums_exactly(cols, beats, act_bits, tmp_path):
    params = MacParams(1, cols, cols * beats, act_bits, ArrayStyle.XC7_PAIR)
    dice = np.random.default_rng(cols)
    schedule = Schedule(params, {
        "weights": 4 * -(-cols // 2), "acts": act_bits * cols, "start": params.count_bits}, cols)
    groups = 25
    for _ in range(groups):
        length = int(dice.integers(1, beats + 1))
        weight = random_vector(dice, (length, cols), -1, 1)
        acts = random_vector(dice, (length, cols), -1 << (act_bits - 1), (1 << (act_bits - 1)) - 1)
        for beat in range(length):
            while schedule.dice.random() < 0.2:
                schedule.cycle(None)
            schedule.cycle({
                "filled": 1, "first": beat == 0, "start": int((weight == -1).sum()),
                "weights": packed(pack_pairs(weight[beat]), 4),
                "acts": packed(acts[beat], act_bits),
                "sum": int((weight * acts).sum()) if beat == length - 1 else None})
    assert schedule.check(tmp_path, Xc7PairRow(params)) == groups


def fill(schedule: Schedule, acts: np.ndarray, entry_bits: int) -> None:
    """Write every table, in any order, while earlier beats move on."""
    padded = np.pad(acts, (0, -len(acts) % 3)).reshape(-1, 3)
    for code in schedule.dice.sample(TRIPLE_CODES, 27):
        trits = unpack_triples(np.array([code]), 3).astype(int)
        schedule.cycle(None, fill=0)
        schedule.stimuli.append(schedule.noise(
            advance=0, fill=1, fill_index=code, entries=packed(padded @ trits, entry_bits)))


@pytest.mark.parametrize(("cols", "beats", "act_bits"), [
    (1, 2, 8), (3, 2, 8), (4, 1, 8), (6, 3, 8), (8, 2, 5), (9, 1, 8), (16, 2, 8), (31, 2, 8),
    (60, 2, 8)])
def test_table_row_sums_exactly(cols, beats, act_bits, tmp_path):
    params = MacParams(1, cols, cols * beats, act_bits, ArrayStyle.XC7_TABLE)
    triples, entry_bits = params.triples, params.entry_bits
    dice = np.random.default_rng(cols)
    schedule = Schedule(params, {
        "codes": 5 * triples, "fill": 1, "fill_index": 5, "entries": entry_bits * triples}, cols)
    sums = 0
    for _ in range(4):
        (acts,) = random_vector(
            dice, (1, cols), -1 << (act_bits - 1), (1 << (act_bits - 1)) - 1)
        fill(schedule, acts, entry_bits)
        for _ in range(8):
            length = int(dice.integers(1, beats + 1))
            weight = random_vector(dice, (length, cols), -1, 1)
            total = 0
            for beat in range(length):
                while schedule.dice.random() < 0.2:
                    schedule.cycle(None, fill=0)
                total += int(weight[beat] @ acts)
                sums += 1
                schedule.cycle({
                    "filled": 1, "first": beat == 0, "sum": total,
                    "codes": packed(pack_triples(weight[beat]), 5)}, fill=0)
    assert schedule.check(tmp_path, Xc7TableRow(params)) == sums


# Cells


def cells_of(row, folder) -> dict[str, int]:
    """What Yosys makes of a row for the 7 series."""
    write_verilog(row, "row", folder)
    run_yosys(folder, """
        read_verilog row.v
        synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top row
        tee -o cells.json stat -json
    """)
    report = json.loads((folder / "cells.json").read_text())
    return report["design"]["num_cells_by_type"]


def luts_in(cells: dict[str, int]) -> int:
    """Every LUT of the device: logic, both outputs or one, RAM, shift registers, inverters."""
    sizes = {"RAM32M": 4, "LUT6_2": 1, "SRL16E": 1, "SRLC32E": 1, "INV": 1,
             **{f"LUT{inputs}": 1 for inputs in range(1, 7)}}
    others = {"CARRY4", "FDRE", "$scopeinfo"}
    assert cells.keys() <= sizes.keys() | others
    return sum(size * cells.get(kind, 0) for kind, size in sizes.items())


@pytest.mark.slow
@pytest.mark.parametrize(("cols", "max_columns", "luts"), [(16, 1024, 136), (128, 384, 981)])
def test_pair_row_takes_at_most_9_luts_for_each_multiplication(cols, max_columns, luts, tmp_path):
    params = MacParams(1, cols, max_columns, style=ArrayStyle.XC7_PAIR)
    cells = cells_of(Xc7PairRow(params), tmp_path)
    assert luts_in(cells) == luts
    assert luts / cols <= 9


@pytest.mark.slow
@pytest.mark.parametrize(("cols", "max_columns", "luts"), [(48, 1024, 214), (128, 384, 568)])
def test_table_row_takes_at_most_4_5_luts_for_each_multiplication(
        cols, max_columns, luts, tmp_path):
    params = MacParams(1, cols, max_columns, style=ArrayStyle.XC7_TABLE)
    cells = cells_of(Xc7TableRow(params), tmp_path)
    assert luts_in(cells) == luts
    assert luts / cols <= 4.5
