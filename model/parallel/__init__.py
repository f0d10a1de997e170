"""Context parallelism: sequences in parts, one for each process of a group.

All of it works on a process group of ``torch.distributed`` of any backend that sends from process
to process, gloo on CPUs and NCCL on GPUs.
"""
