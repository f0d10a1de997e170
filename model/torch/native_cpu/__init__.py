"""Compiled kernels for training on a CPU: C++ sources, build, and autograd functions."""
