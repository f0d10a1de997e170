"""What a memory is meant to become, in the words of the synthesis tools.

Nothing asks for LUT RAM: iCE40 has none, Yosys stops there at a memory that does, and elsewhere a
small memory becomes it by itself.

``ram_style`` and ``rom_style`` are what Yosys and Vivado read, ``syn_*`` what Lattice's
tools do.
"""

from __future__ import annotations

__all__ = ["BLOCK_RAM", "BLOCK_ROM", "LOGIC_ROM", "NEVER_COLLIDES"]

BLOCK_RAM = {"ram_style": "block", "syn_ramstyle": "block_ram"}
BLOCK_ROM = {"rom_style": "block", "ram_style": "block", "syn_romstyle": "block_rom"}
LOGIC_ROM = {"rom_style": "logic", "syn_romstyle": "logic"}

NEVER_COLLIDES = {"no_rw_check": 1}
"""Besides: a word that is read in the cycle that writes it does not matter.

Without this Yosys adds logic behind the block RAMs whose own answer is undefined then, and
no output register fits between the two.
"""
