"""How a core is written out: its folder, and registers around it."""
