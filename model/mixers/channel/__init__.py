"""Channel mixers: each token by itself."""

from sterna.model.mixers.channel.glu import GLU

__all__ = ["GLU"]
