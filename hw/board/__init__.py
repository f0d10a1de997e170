"""Boards: what stands around the core on a real one."""
