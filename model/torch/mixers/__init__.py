"""Token and channel mixers by name, a file for each family; importing this registers them all."""

from sterna.model.torch.mixers import attention, channel, fixed, linear, recurrent, sparse

__all__ = ["attention", "channel", "fixed", "linear", "recurrent", "sparse"]
