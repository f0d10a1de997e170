"""Names in emitted Verilog that are legal in every tool without escaping."""

from __future__ import annotations

import re

__all__ = ["Names", "check_name", "plain"]

_VERILOG_2005 = """
    always and assign automatic begin buf bufif0 bufif1 case casex casez cell cmos config deassign
    default defparam design disable edge else end endcase endconfig endfunction endgenerate
    endmodule endprimitive endspecify endtable endtask event for force forever fork function
    generate genvar highz0 highz1 if ifnone incdir include initial inout input instance integer
    join large liblist library localparam macromodule medium module nand negedge nmos nor
    noshowcancelled not notif0 notif1 or output parameter pmos posedge primitive pull0 pull1
    pulldown pullup pulsestyle_onevent pulsestyle_ondetect rcmos real realtime reg release repeat
    rnmos rpmos rtran rtranif0 rtranif1 scalared showcancelled signed small specify specparam
    strong0 strong1 supply0 supply1 table task time tran tranif0 tranif1 tri tri0 tri1 triand trior
    trireg unsigned use uwire vectored wait wand weak0 weak1 while wire wor xnor xor
"""

# Many tools read .v files as SystemVerilog.
_SYSTEMVERILOG_2017 = """
    accept_on alias always_comb always_ff always_latch assert assume before bind bins binsof bit
    break byte chandle checker class clocking const constraint context continue cover covergroup
    coverpoint cross dist do endchecker endclass endclocking endgroup endinterface endpackage
    endprogram endproperty endsequence enum eventually expect export extends extern final
    first_match foreach forkjoin global iff ignore_bins illegal_bins implements implies import
    inside int interconnect interface intersect join_any join_none let local logic longint matches
    modport nettype new nexttime null package packed priority program property protected pure rand
    randc randcase randsequence ref reject_on restrict return s_always s_eventually s_nexttime
    s_until s_until_with sequence shortint shortreal soft solve static string strong struct super
    sync_accept_on sync_reject_on tagged this throughout timeprecision timeunit type typedef union
    unique unique0 until until_with untyped var virtual void wait_order weak wildcard with within
"""

# Verilog-AMS keywords that Icarus reserves in every language.
_ICARUS = "bool wreal"

KEYWORDS = frozenset(f"{_VERILOG_2005} {_SYSTEMVERILOG_2017} {_ICARUS}".split())
"""The reserved words of IEEE 1364-2005, of IEEE 1800-2017, and of simulators."""

_TAKEN = ("ecp5", "xc7", "std", "TOP", "clk", "rst", "irq")
"""Names not allowed for a module: cell models in its folder, names internal to Verilator, and
ports of the module."""


_INDEX = re.compile(r"\$\d+")
_ODD = re.compile(r"\W+", re.ASCII)


def plain(name: str) -> str:
    """Return a name without characters that need escaping: ``acts[3]`` becomes ``acts_3``.

    Amaranth distinguishes equal names by ``$`` and a number; these are removed as well, so the
    names of two signals may become equal.

    >>> plain("beats__payload$12.acts[3]"), plain("words__0"), plain("table"), plain("0x")
    ('beats__payload_acts_3', 'words__0', 'table_', 'n0x')
    """
    name = _ODD.sub("_", _INDEX.sub("", name).replace("]", "").lstrip("$")) or "unnamed"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in KEYWORDS else name


def check_name(name: object) -> None:
    """Reject names that are not plain Verilog names or are reserved."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(
            f"name must be a Verilog name (letters, digits, _; no digit first), got {name!r}")
    if plain(name) != name or name in _TAKEN:
        raise ValueError(f"name must be no word of Verilog or of a simulator, and none of "
                         f"{', '.join(_TAKEN)}, got {name!r}")


class Names:
    """The names of one scope, all different.

    >>> names = Names({"sum"})
    >>> names.new("sum"), names.new("sum"), names.new("carry")
    ('sum_2', 'sum_3', 'carry')
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def new(self, name: str) -> str:
        """Reserve and return a name, with a number if it is already taken."""
        found = name
        number = self._last.get(name, 1)
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._last[name] = number
        self._taken.add(found)
        return found
