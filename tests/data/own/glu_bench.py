"""Cocotb tests of a GLU folder, as a user would write them; ``test_own_test.py`` runs them."""

import os

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge

from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.integer import IntegerRecords
from sterna.model.quantized.records import glu_cell
from sterna.model.quantized.synthetic import random_model
from sterna.sim import StreamDriver, StreamSink, check, start

MODEL = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), C12, seed=7)
WRONG = int(os.environ.get("GLU_BENCH_WRONG", "0"))
INSIDE = "GLU_BENCH_INSIDE" in os.environ


@cocotb.test()
async def products(dut):
    """Six words and a part of one, then a single one, against the integer reference."""
    await start(dut)
    preacts = StreamDriver(dut, "preacts", seed=1, pause=0.3)
    outputs = StreamSink(dut, "products", seed=2, pause=0.3)
    z = MODEL.profile.z
    gate, up = np.random.default_rng(3).integers(z.min, z.max + 1, (2, 26))
    await preacts.send({"gate": gate, "up": up, "last": 1})
    cell = IntegerRecords(glu_cell(MODEL.profile, "glu", 26), {}, MODEL.sigmoid)
    p, _ = cell.run({"glu.gate.z": gate, "glu.up.z": up})
    p[5] += WRONG
    await outputs.expect("layer0.glu.p", p, field="p")
    await preacts.send({"gate": gate[:4], "up": up[None, :4], "last": 0})
    words = await outputs.receive()
    check("p", words["p"], p[None, :4])
    check("last", words["last"], [0])


@cocotb.test()
async def a_word_that_does_not_come(dut):
    """The sink says what it waits for."""
    await start(dut)
    outputs = StreamSink(dut, "products", patience=30)
    with pytest.raises(AssertionError, match="products: no word in 30 cycles, after 0 of 2"):
        await outputs.receive(2)


@cocotb.test(skip=not INSIDE)
async def a_signal_inside(dut):
    """The first stage is empty after a reset, and full once the pipeline is held up."""
    await start(dut)
    assert dut.filled_1.value == 0
    preacts = StreamDriver(dut, "preacts")
    cocotb.start_soon(preacts.send({"gate": np.ones(80, int), "up": 1, "last": 1}))
    for _ in range(30):
        await RisingEdge(dut.clk)
    assert dut.filled_1.value == 1
