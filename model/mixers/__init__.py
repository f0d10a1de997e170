"""Token and channel mixers by name, one file each; importing this registers all of them."""

from sterna.model.mixers import attention, channel, fixed, linear, recurrent, sparse

__all__ = ["attention", "channel", "fixed", "linear", "recurrent", "sparse"]
