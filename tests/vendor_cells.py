"""Vendor cells in Amaranth, so that its simulator runs the array styles that are built of them.

Written from the vendors' descriptions, not from ``hw/emit/cells``: the two check each other.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import memory

MODULES = ("sterna.hw.units.mac.ecp5_rows", "sterna.hw.units.mac.xc7_rows")


class Cell(Elaboratable):
    """Stands in for ``Instance``."""

    def __init__(self, kind: str, **connections) -> None:
        self.kind = kind
        self.connections = connections

    def input(self, name: str) -> Value:
        return Value.cast(self.connections.get(f"i_{name}", Const(0, 1)))

    def parameter(self, name: str, default=0):
        value = self.connections.get(f"p_{name}", default)
        return value.value if isinstance(value, Const) else value

    def drive(self, m: Module, name: str, value) -> None:
        if f"o_{name}" in self.connections:
            m.d.comb += Value.cast(self.connections[f"o_{name}"]).eq(value)

    def elaborate(self, platform):
        m = Module()
        getattr(self, f"_{self.kind.lower()}")(m)
        return m

    def _ccu2c(self, m):
        carry = self.input("CIN")
        for side in "01":
            init = Const(self.parameter(f"INIT{side}"), 16)
            pins = [self.input(f"{pin}{side}") for pin in "ABCD"]
            assert self.parameter(f"INJECT1_{side}") == "NO"
            propagate = init.bit_select(Cat(pins), 1)
            generate = init.bit_select(Cat(pins[:2], Const(0, 2)), 1)
            self.drive(m, f"S{side}", propagate ^ carry)
            carry = Mux(propagate, carry, generate)
        self.drive(m, "COUT", carry)

    def _trellis_dpr16x4(self, m):
        self._ram(m, "WAD", 4, "WRE", {"": ("DI", "RAD", "DO")})

    def _ram32m(self, m):
        self._ram(m, "ADDRD", 2, "WE", {
            letter: (f"DI{letter}", f"ADDR{letter}", f"DO{letter}") for letter in "ABCD"})

    def _ram(self, m, address, width, enable, ports):
        for name, (data_in, read, data_out) in ports.items():
            words = memory.Memory(shape=width, depth=1 << len(self.input(address)), init=[])
            m.submodules[f"words{name}"] = words
            write_port, read_port = words.write_port(), words.read_port(domain="comb")
            m.d.comb += [
                write_port.addr.eq(self.input(address)), write_port.data.eq(self.input(data_in)),
                write_port.en.eq(self.input(enable)), read_port.addr.eq(self.input(read))]
            self.drive(m, data_out, read_port.data)

    def _lut6_2(self, m):
        init = Const(self.parameter("INIT"), 64)
        pins = [self.input(f"I{pin}") for pin in range(6)]
        self.drive(m, "O6", init.bit_select(Cat(pins), 1))
        self.drive(m, "O5", init[:32].bit_select(Cat(pins[:5]), 1))

    def _carry4(self, m):
        carry = self.input("CI") | self.input("CYINIT")
        propagate, other = self.input("S"), self.input("DI")
        totals, carries = [], []
        for bit in range(4):
            totals.append(propagate[bit] ^ carry)
            out = Signal(name=f"carry{bit}")
            m.d.comb += out.eq(Mux(propagate[bit], carry, other[bit]))
            carries.append(out)
            carry = out
        self.drive(m, "O", Cat(totals))
        self.drive(m, "CO", Cat(carries))


@contextmanager
def simulated_cells():
    """Within, the array's vendor cells are these."""
    patches = [mock.patch(f"{module}.Instance", Cell) for module in MODULES]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
