"""Rows made of 7 series carry chains and LUTs with two outputs."""
