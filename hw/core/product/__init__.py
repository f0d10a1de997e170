"""Output of a core: its folder, and registers around it."""
