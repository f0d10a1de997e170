"""Mixing that does not compare tokens: weights of positions, or a Fourier transform."""

from sterna.model.mixers.fixed.fnet import FNet
from sterna.model.mixers.fixed.gmlp import GMLP
from sterna.model.mixers.fixed.mlp_mixer import MLPMixer
from sterna.model.mixers.fixed.synthesizer_dense import DenseSynthesizer
from sterna.model.mixers.fixed.synthesizer_random import RandomSynthesizer

__all__ = ["GMLP", "DenseSynthesizer", "FNet", "MLPMixer", "RandomSynthesizer"]
