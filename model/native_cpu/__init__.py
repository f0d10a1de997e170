"""Compiled kernels for training on a CPU: their C++, building it, and what autograd makes of it."""
