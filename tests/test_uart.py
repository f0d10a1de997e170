"""The UART: against another implementation of one, and against lines that are not clean."""

from __future__ import annotations

import os
import sys

import pytest

from sterna.hw.board.uart import UartParams, UartReceiver, UartTransmitter
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.testbench.amaranth import run_bench
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch

FAST = UartParams(16_000_000, 1_000_000)


def receive(line: list[int], params: UartParams = FAST) -> bytes:
    """The bytes that come out if the line has such a level in each cycle."""
    dut, received = UartReceiver(params), bytearray()

    async def bench(ctx):
        for level in line:
            ctx.set(dut.rx, level)
            await ctx.tick()
            if ctx.get(dut.received):
                received.append(ctx.get(dut.data))

    run_bench(dut, bench)
    return bytes(received)


def levels(data: bytes, bit_cycles: float, stop: int = 1) -> list[int]:
    """The line, a level for each cycle, of bytes that follow each other without a gap."""
    bits = [bit for byte in data
            for bit in (0, *(byte >> position & 1 for position in range(8)), stop)]
    return [bits[int(cycle / bit_cycles)] for cycle in range(int(len(bits) * bit_cycles))]


IDLE = [1] * 40


@pytest.mark.parametrize("divisor", [16, 17, 100])
@pytest.mark.parametrize("speed", [0.96, 1.0, 1.04])
def test_lines_up_to_four_percent_off_are_received(divisor, speed):
    params = UartParams(divisor * 1000, 1000)
    data = bytes([0x00, 0xFF, 0x55, 0xAA, 0x80, 0x01])
    # The sender is faster or slower; its bytes are spaced as its own clock has it.
    line = IDLE + levels(data, divisor / speed) + IDLE + [1] * divisor
    assert receive(line, params) == data


@pytest.mark.parametrize(("line", "received"), [
    pytest.param(IDLE + line + IDLE, received, id=name) for name, line, received in (
        ("no stop bit: dropped, and the next is received",
         levels(b"A", 16, stop=0) + [0] * 100 + IDLE + levels(b"B", 16), b"B"),
        ("a short pulse is no start bit", [*[0] * 5, *IDLE, *levels(b"C", 16)], b"C"),
        ("a break is no byte", [0] * 1000 + IDLE + levels(b"D", 16), b"D"))])
def test_lines_that_are_not_clean(line, received):
    assert receive(line) == received


def test_a_line_low_at_the_start_is_no_byte_and_one_too_fast_is_not_received():
    assert receive([0] * 400 + IDLE + levels(b"E", 16) + IDLE) == b"E"
    data = bytes([0x55] * 4)
    assert receive(IDLE + levels(data, 16 * 0.85) + IDLE) != data


@pytest.mark.parametrize("divisor", [16, 23])
def test_bits_that_are_sent_have_the_right_length(divisor):
    dut, line = UartTransmitter(UartParams(divisor * 1000, 1000)), []

    async def bench(ctx):
        data = list(b"\x00\xa5\xff")
        for _ in range(33 * divisor):
            ctx.set(dut.bytes.valid, bool(data))
            ctx.set(dut.bytes.payload, data[0] if data else 0)
            if data and ctx.get(dut.bytes.ready):
                data.pop(0)
            await ctx.tick()
            line.append(ctx.get(dut.tx))

    run_bench(dut, bench)
    # A byte takes ten bits and the cycle in which it is taken.
    expected = [
        *levels(b"\x00", divisor), 1, *levels(b"\xa5", divisor), 1, *levels(b"\xff", divisor)]
    assert line[:len(expected)] == expected
    assert set(line[len(expected):]) == {1}


@pytest.mark.parametrize(("clock", "baud", "reason"), [
    (12_000_000, 750_001, "at least 16 cycles: at 12000000 Hz baud must be from 1 to 750000"),
    (12_000_000, 0, "from 1 to 750000, got 0"),
    (16_500_000, 1_000_000, r"wrong by -2.9%.* 970,588 is exact"),
    (16_490_000, 1_000_000, r"wrong by \+3.1%, at most 2%"),
])
def test_impossible_speeds_are_refused(clock, baud, reason):
    with pytest.raises(ValueError, match=reason):
        UartParams(clock, baud)


@pytest.mark.parametrize(("clock", "baud", "divisor"), [
    (150_000_000, 1_000_000, 150), (150_000_000, 3_000_000, 50), (12_000_000, 115_200, 104),
    (25_000_000, 921_600, 27)])
def test_usual_speeds_are_within_two_percent(clock, baud, divisor):
    params = UartParams(clock, baud)
    assert params.divisor == divisor
    assert params.error == pytest.approx(clock / divisor / baud - 1)
    assert abs(params.error) < 0.02


BENCH = '''
import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, Timer
from cocotbext.uart import UartSink, UartSource

@cocotb.test(timeout_time=40, timeout_unit="ms")
async def bytes_go_round(dut):
    """What somebody else's UART sends comes back to it through both of ours."""
    # 3 MHz is no multiple of 115200 baud: the two count time in different steps.
    cocotb.start_soon(Clock(dut.clk, 333334, unit="ps").start())
    dut.rst.value = 0
    source = UartSource(dut.rx, baud=115200, bits=8)
    sink = UartSink(dut.tx, baud=115200, bits=8)
    await Timer(20, unit="us")
    data = bytes(range(256))
    await source.write(data)
    heard = bytearray()
    while len(heard) < len(data):
        heard += await sink.read()
    assert bytes(heard) == data
'''

ECHO = """
module echo(input clk, input rst, input rx, output tx);
    wire [7:0] heard;
    wire received, ready;
    reg [7:0] kept = 0;
    reg full = 0;
    always @(posedge clk)
        if (received) begin kept <= heard; full <= 1; end
        else if (ready) full <= 0;
    receiver in(.clk(clk), .rst(rst), .rx(rx), .data(heard), .received(received));
    transmitter out(.clk(clk), .rst(rst), .bytes__payload(kept), .bytes__valid(full),
                    .bytes__ready(ready), .tx(tx));
endmodule
"""


@pytest.mark.slow
def test_every_byte_passes_to_and_from_another_uart(tmp_path):
    params = UartParams(3_000_000, 115_200)
    (tmp_path / "echo.v").write_text(ECHO)
    write_verilog(UartReceiver(params), "receiver", tmp_path)
    write_verilog(UartTransmitter(params), "transmitter", tmp_path)
    (tmp_path / "uart_bench.py").write_text(BENCH)
    # Raises if a test fails, or if there is none.
    run_launch(
        Launch(Simulator.VERILATOR, [str(path) for path in sorted(tmp_path.glob("*.v"))], "echo",
               "uart_bench", str(tmp_path)),
        {**check_simulator(Simulator.VERILATOR, tmp_path),
         "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
