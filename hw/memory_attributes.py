"""What a memory is meant to become, in the words of the synthesis tools.

``ram_style`` and ``rom_style`` are what Yosys and Vivado read, ``syn_*`` what Lattice's
tools do.
"""

from __future__ import annotations

__all__ = ["BLOCK_RAM", "BLOCK_ROM", "LUT_RAM"]

BLOCK_RAM = {"ram_style": "block", "syn_ramstyle": "block_ram"}
BLOCK_ROM = {"rom_style": "block", "ram_style": "block", "syn_romstyle": "block_rom"}
LUT_RAM = {"ram_style": "distributed", "syn_ramstyle": "distributed"}
