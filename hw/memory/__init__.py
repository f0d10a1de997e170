"""Controllers of external memory, for linear reads."""
