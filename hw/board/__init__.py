"""Boards: what surrounds the core on a real one."""
