"""Your own cocotb test of an emitted folder: running it, and drivers and sinks by field name."""
