"""Names in emitted Verilog: plain, telling, and the same logic behind them."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Array, MemoryData, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.emit.rtlil_names import readable
from sterna.hw.emit.verilog import contents_at_once, verilog_files
from sterna.hw.tools.process import run_yosys


class Inner(wiring.Component):
    """Keeps the largest sum, and has a name that is a keyword."""

    def __init__(self):
        super().__init__({
            "values": In(data.ArrayLayout(signed(8), 2)), "largest": Out(signed(9)),
            "shown": Out(signed(9)), "show": In(1)})

    def elaborate(self, platform):
        m = Module()
        begin = Signal(signed(9))
        m.d.comb += begin.eq(self.values[0] + self.values[1])
        with m.If(begin > self.largest):
            m.d.sync += self.largest.eq(begin)
        m.d.comb += self.shown.eq(Mux(self.show, self.largest - 3, 0))
        return m


class Outer(wiring.Component):
    """Two of them, a memory, and signals of the same name."""

    def __init__(self):
        super().__init__({
            "values": In(data.ArrayLayout(signed(8), 2)), "which": In(1), "sum": Out(signed(10)),
            "kept": Out(8), "address": In(2)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = first = Inner()
        m.submodules.table = second = Inner()
        m.submodules.store = store = memory.Memory(shape=8, depth=4, init=[3, 1, 4, 1])
        read, write = store.read_port(), store.write_port()
        total = Signal(signed(10))
        totals = [Signal(signed(10), name="total") for _ in range(2)]
        for unit in (first, second):
            m.d.comb += [unit.values.eq(self.values), unit.show.eq(self.which)]
        m.d.comb += [
            total.eq(first.shown + second.shown), read.addr.eq(self.address + 1),
            write.addr.eq(self.address), write.data.eq(self.values[0] ^ 5), self.kept.eq(read.data),
            write.en.eq(self.which)]
        m.d.sync += [totals[0].eq(total * 3), totals[1].eq(totals[0] | total)]
        m.d.comb += self.sum.eq(Array(totals)[self.which])
        return m


@pytest.fixture(scope="module")
def files():
    return verilog_files(Outer(), "outer")


@pytest.fixture(scope="module")
def text(files):
    return files["outer.v"]


def declared(text: str, module: str) -> set[str]:
    body = re.search(rf"^module {module}\(.*?^endmodule", text, re.M | re.S)[0]
    return set(re.findall(r"^  (?:wire|reg)(?: signed)? (?:\[[^\]]*\] )?([^ ;=]+)", body, re.M))


def test_no_name_is_escaped_and_no_two_are_the_same(text):
    assert "\\" not in text
    assert not re.search(r"[\s(,]\$(?!signed|unsigned|readmemh)", text)
    assert set(re.findall(r"^module (\w+)", text, re.M)) == {"outer", "outer__inner"}
    names = declared(text, "outer")
    assert {"total", "total_2", "total_3", "values_0", "values_1"} <= names


def test_what_has_no_name_is_named_after_what_it_is_for(text):
    assert {"total_2_mul", "total_2_next", "total_3_or", "total_3_next", "address_add",
            "write__data_not", "kept_reg"} <= declared(text, "outer")
    inner = declared(text, "outer__inner")
    assert {"largest_next", "largest_gt", "begin_", "shown_sub"} <= inner
    assert "begin" not in inner
    # An instance is not hidden by a signal inside.
    instances = re.findall(r"^  outer__inner (\w+) \(", text, re.M)
    assert instances == ["inner", "table_"]
    assert not inner & set(instances)


class Twins(wiring.Component):
    """Four of a kind, each with a pair of equal modules; two memories of zeros that are written,
    and one that is not."""

    def __init__(self):
        super().__init__({"values": In(data.ArrayLayout(signed(8), 2)), "total": Out(signed(14)),
                          "which": In(1)})

    def elaborate(self, platform):
        m = Module()
        units = []
        for number in range(4):
            m.submodules[f"unit{number}"] = unit = Outer()
            m.d.comb += [unit.values.eq(self.values), unit.which.eq(self.which)]
            units.append(unit.sum)
        for name in ("zeros", "nothing", "table"):
            m.submodules[name] = store = memory.Memory(shape=5, depth=3, init=[])
            units.append(store.read_port().data)
            if name != "table":
                write = store.write_port()
                m.d.comb += [write.en.eq(self.which), write.data.eq(self.values[0]),
                             write.addr.eq(self.values[1][1:3])]
        m.d.comb += self.total.eq(sum(units))
        return m


def test_equal_modules_and_the_zeros_of_memories_that_are_written_come_once():
    files = verilog_files(Twins(), "top")
    modules = set(re.findall(r"^module (\w+)", files["top.v"], re.M))
    assert modules == {"top", "top__unit", "top__unit0__inner"}
    assert re.findall(r"^  (\w+) (unit\d) ", files["top.v"], re.M) == [
        ("top__unit", f"unit{number}") for number in range(4)]
    digits = [hashlib.sha256(text.encode()).hexdigest()[:8]
              for text in ("03\n01\n04\n01\n", "00\n" * 3)]
    assert {name: text.split() for name, text in files.items() if name != "top.v"} == {
        f"top__unit__store_{digits[0]}.mem": ["03", "01", "04", "01"],
        "top__zeros_3x8.mem": ["00"] * 3, f"top__table__{digits[1]}.mem": ["00"] * 3}
    assert files["top.v"].count('$readmemh("top__zeros_3x8.mem"') == 2


class Contents(wiring.Component):
    """Memories of every kind of words, and of none."""

    def __init__(self):
        super().__init__({"address": In(3), "total": Out(16)})

    def elaborate(self, platform):
        m = Module()
        for index, (shape, depth, init) in enumerate([
            (unsigned(5), 7, [31, 0, 9]), (signed(4), 8, [-8, 7, -1]), (unsigned(70), 2, [1 << 69]),
            (data.StructLayout({"low": 3, "high": signed(2)}), 8, [{"low": 5, "high": -2}]),
            (unsigned(3), 8, []), (unsigned(0), 8, [0]), (unsigned(3), 0, []),
        ]):
            m.submodules[f"store{index}"] = store = memory.Memory(
                shape=shape, depth=depth, init=init)
            read = store.read_port(domain="comb")
            m.d.comb += read.addr.eq(self.address)
            m.d.sync += self.total.eq(self.total + Value.cast(read.data))
        return m


def test_contents_are_those_that_amaranth_writes():
    plain = rtlil.convert(Contents(), name="top", emit_src=False)
    with contents_at_once():
        assert rtlil.convert(Contents(), name="top", emit_src=False) == plain
        with pytest.warns(Warning, match="will be truncated"):
            MemoryData(shape=unsigned(3), depth=1, init=[9])


def test_the_logic_is_that_of_amaranths_own_text(files, tmp_path):
    from amaranth.back import verilog
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "outer.v").rename(tmp_path / "ours.v")
    (tmp_path / "plain.v").write_text(verilog.convert(
        Outer(), name="outer", emit_src=False, strip_internal_attrs=True))
    ours, plain = (_logic(tmp_path, name) for name in ("ours", "plain"))
    assert ours == plain


def _logic(folder, name):
    """The cells of a file's module ``outer``, by type and width, and its bits of memory."""
    run_yosys(folder, f"""
        read_verilog {name}.v
        hierarchy -check -top outer
        proc
        flatten
        opt
        wreduce
        memory -nomap
        opt_clean
        tee -o {name}.json stat -json -width
    """)
    found = json.loads((folder / f"{name}.json").read_text())["design"]
    return found["num_cells_by_type"], found["num_memory_bits"]


def test_a_field_follows_the_signal_it_is_of_and_the_text_is_left_otherwise():
    source = "\n".join([
        r"attribute \generator "'"$1 \\\\x"', r"module \top", "",
        r"  wire width 2 input 0  \p", r"  wire width 2 \p$7", r"  wire width 1 \p.last",
        r"  wire width 1 \p$7.last", r"  wire width 1 $1", "  cell $not $2",
        r"    parameter \A_SIGNED 0", r"    connect \A \p$7 [0]", r"    connect \Y $1", "  end",
        r"connect { \p.last \p$7.last } { $1 [0] \p [1] }", "", "end"])
    assert readable(source).splitlines() == [
        r"attribute \generator "'"$1 \\\\x"', r"module \top", "",
        r"  wire width 2 input 0  \p", r"  wire width 2 \p_2", r"  wire width 1 \p_last",
        r"  wire width 1 \p_2_last", r"  wire width 1 \p_last_not", "  cell $not $2",
        r"    parameter \A_SIGNED 0", r"    connect \A \p_2 [0]", r"    connect \Y \p_last_not",
        "  end", r"connect { \p_last \p_2_last } { \p_last_not [0] \p [1] }", "", "end"]


def test_a_signal_without_bits_stops_nothing():
    source = "\n".join([r"module \top", r"  wire width 0 \none", "  process $1",
                        "    assign {  } {  }", "  end", "connect {  } {  }", "end"])
    assert readable(source) == source
