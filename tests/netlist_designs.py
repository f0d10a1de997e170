"""Small designs for ECP5, one for each way that Yosys uses its block RAMs and multipliers.

Every design has the same ports: ``clk``, random bits ``stimulus``, and ``out``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MEMORIES", "MULTIPLIERS", "STIMULUS_BITS", "Part", "design", "memory", "multiplier"]

STIMULUS_BITS = 128
_ADDRESSES = 64
"""Addresses of a memory that are used: the lowest 32, and the highest 32."""


@dataclass(frozen=True, slots=True)
class Part:
    """A module of a design: its name, its Verilog, and the bits of its output."""

    name: str
    text: str
    bits: int


def design(name: str, parts: Sequence[Part]) -> str:
    """Verilog of a design of several parts, all driven by the same random bits."""
    total = sum(part.bits for part in parts)
    lines = [f"module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus, "
             f"output [{total - 1}:0] out);"]
    low = 0
    for part in parts:
        lines.append(f"  {part.name} u_{part.name} (.clk(clk), .stimulus(stimulus), "
                     f".out(out[{low + part.bits - 1}:{low}]));")
        low += part.bits
    return "\n".join([*lines, "endmodule", *(part.text for part in parts)])


_DEPTHS = {1: 16384, 2: 8192, 4: 4096, 9: 2048, 18: 1024, 36: 512}
_BODIES = {
    "rom": "if (re) q <= mem[ra];",
    "simple": "if (re) q <= mem[ra]; if (we) mem[wa] <= data;",
    "reset": "if (clear) q <= 0; else if (re) q <= mem[ra]; if (we) mem[wa] <= data;",
    "registered": "if (re) q <= mem[ra]; if (go) r <= q;",
    "no_change": "if (re) begin if (we) mem[wa] <= data; else q <= mem[wa]; end",
    "read_first": "if (re) begin if (we) mem[wa] <= data; q <= mem[wa]; end",
    "write_first": "if (re) begin if (we) mem[wa] <= data; q <= we ? data : mem[wa]; end",
    # Never the same word at both ports: what then happens is not defined.
    "dual": "if (re) begin if (we) mem[wa] <= data; else q <= mem[wa]; end"
            " if (stimulus[20]) begin if (stimulus[21]) mem[{ra[HIGH:1], ~wa[0]}] <= ~data;"
            " else r <= mem[{ra[HIGH:1], ~wa[0]}]; end",
    "bytes": "if (re) q <= mem[ra];",
}
_SHOWN = {"registered": ["r"], "dual": ["q", "r"]}


def memory(kind: str, width: int) -> Part:
    """A memory as large as a block RAM.

    ``kind`` is one of ``_BODIES``: ``bytes`` has an enable for each 9 bits, ``dual`` two ports
    that write or read.
    """
    depth = _DEPTHS[width]
    bits = (depth - 1).bit_length()
    rng = random.Random(width)
    name = f"{kind}_{width}"
    output = _SHOWN.get(kind, ["q"])
    body = _BODIES[kind].replace("HIGH", str(bits - 1))
    for lane in range(width // 9 if kind == "bytes" else 0):
        byte = f"[{9 * lane + 8}:{9 * lane}]"
        body += f" if (we & stimulus[{24 + lane}]) mem[wa]{byte} <= data{byte};"
    init = "\n".join(
        f"    mem[{address}] = {width}'h{rng.getrandbits(width):x};"
        for address in [*range(_ADDRESSES // 2), *range(depth - _ADDRESSES // 2, depth)])

    def address(low: int) -> str:
        return f"{{{{{bits - 5}{{stimulus[{low + 5}]}}}}, stimulus[{low + 4}:{low}]}}"

    return Part(name, f"""
module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus,
               output [{len(output) * width - 1}:0] out);
  (* ram_style = "block", syn_ramstyle = "block_ram" *)
  reg [{width - 1}:0] mem [0:{depth - 1}];
  initial begin
{init}
  end
  wire [{bits - 1}:0] ra = {address(0)};
  wire [{bits - 1}:0] wa = {address(8)};
  wire re = stimulus[6] | stimulus[14];
  wire we = stimulus[7];
  wire go = stimulus[15] | stimulus[16];
  wire clear = stimulus[17] & stimulus[18];
  wire [{width - 1}:0] data = stimulus[{64 + width - 1}:64];
  reg [{width - 1}:0] q = 0, r = 0;
  always @(posedge clk) begin
    {body}
  end
  assign out = {{{", ".join(output)}}};
endmodule
""", len(output) * width)


MEMORIES = [
    *(memory(kind, width) for kind in ("rom", "simple") for width in (1, 2, 4, 9, 18, 36)),
    *(memory(kind, width) for kind in ("no_change", "read_first", "write_first", "dual", "reset")
      for width in (9, 18)),
    memory("dual", 1), memory("dual", 2), memory("dual", 4),
    memory("bytes", 18), memory("bytes", 36), memory("reset", 36),
    *(memory("registered", width) for width in (4, 9, 18, 36)),
]


_KINDS = ("plain", "in", "out", "both")


def multiplier(kind: str, a_signed: bool, b_signed: bool, a_bits: int, b_bits: int) -> Part:
    """A product of ``a_bits`` by ``b_bits``.

    ``kind`` is ``plain``, or where there are registers: ``in``, ``out``, ``both``; each with
    an enable of its own.
    """
    name = f"{kind}_{'us'[a_signed]}{a_bits}_{'us'[b_signed]}{b_bits}"
    bits = a_bits + b_bits
    turn = 1 + 7 * _KINDS.index(kind)       # equal products would be computed once
    a, b = ("a_now", "b_now") if kind in ("plain", "out") else ("a", "b")
    factors = [each if signed else f"$signed({{1'b0, {each}}})"
               for each, signed in ((a, a_signed), (b, b_signed))]
    a_type, b_type = (
        f"{'signed' if signed else ''} [{width - 1}:0]"
        for signed, width in ((a_signed, a_bits), (b_signed, b_bits)))
    return Part(name, f"""
module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus, output [{bits - 1}:0] out);
  wire [{STIMULUS_BITS - 1}:0] turned = {{stimulus[{turn - 1}:0], stimulus[127:{turn}]}};
  wire {a_type} a_now = turned[{a_bits - 1}:0];
  wire {b_type} b_now = turned[{32 + b_bits - 1}:32];
  reg {a_type} a = 0;
  reg {b_type} b = 0;
  reg signed [{bits - 1}:0] p = 0;
  wire signed [{bits - 1}:0] product = {" * ".join(factors)};
  always @(posedge clk) begin
    if (turned[64]) a <= a_now;
    if (turned[65]) b <= b_now;
    if (turned[66]) p <= product;
  end
  assign out = {'p' if kind in ('out', 'both') else 'product'};
endmodule
""", bits)


MULTIPLIERS = [
    multiplier(kind, a_signed, b_signed, *bits)
    for kind in _KINDS
    for a_signed, b_signed, bits in (
        (True, True, (18, 18)), (True, False, (18, 17)), (False, False, (18, 18)),
        (True, True, (10, 16)))
]
