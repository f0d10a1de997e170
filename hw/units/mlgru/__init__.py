"""The MLGRU: the recurrence, with its state memory and sigmoid tables."""
