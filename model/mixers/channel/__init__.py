"""Channel mixers: each token by itself."""

from sterna.model.mixers.channel.feed_forward import MLP, ReLU2
from sterna.model.mixers.channel.gated import (
    Bilinear,
    GeGLU,
    ReGLU,
    ReLU2GLU,
    SeGLU,
    SigmoidGLU,
)
from sterna.model.mixers.channel.glu import GLU
from sterna.model.mixers.channel.glumml import GLUMML

__all__ = ["GLU", "GLUMML", "MLP", "Bilinear", "GeGLU", "ReGLU", "ReLU2", "ReLU2GLU", "SeGLU",
           "SigmoidGLU"]
