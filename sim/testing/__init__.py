"""Your own cocotb tests of an emitted folder: running them, with drivers and sinks by field."""
