"""The residual stream: a vector in a memory that is added to."""
