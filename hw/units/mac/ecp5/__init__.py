"""Rows made of ECP5 carry cells and LUT memory."""
