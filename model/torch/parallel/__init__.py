"""Context parallelism: sequences split into parts, one for each process of a group.

Works with a ``torch.distributed`` process group of any backend with point-to-point communication:
gloo on CPUs and NCCL on GPUs.
"""
