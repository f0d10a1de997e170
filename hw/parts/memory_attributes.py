"""Memory attributes that tell synthesis tools how to implement a memory.

None requests LUT RAM: on iCE40, which has none, Yosys fails at such a memory; elsewhere the tools
infer it for small memories.

Yosys and Vivado read ``ram_style`` and ``rom_style``, Lattice's tools ``syn_*``.
"""

from __future__ import annotations

__all__ = ["BLOCK_RAM", "BLOCK_ROM", "LOGIC_ROM", "NEVER_COLLIDES"]

BLOCK_RAM = {"ram_style": "block", "syn_ramstyle": "block_ram"}
BLOCK_ROM = {"rom_style": "block", "ram_style": "block", "syn_romstyle": "block_rom"}
LOGIC_ROM = {"rom_style": "logic", "syn_romstyle": "logic"}

NEVER_COLLIDES = {"no_rw_check": 1}
"""Additional attribute: a word read in the cycle that writes it does not matter.

Without it, Yosys adds logic behind block RAMs with undefined output in that case, and no output
register fits between the two.
"""
