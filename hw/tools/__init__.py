"""External tools: how they are found, run and ended."""
