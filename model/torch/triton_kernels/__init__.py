"""The recurrence and BitLinear as Triton kernels, forward and backward, for CUDA tensors."""
