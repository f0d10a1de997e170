"""Which token reaches which, for every token mixer: measured, and drawn into docs/mixers/.

A pixel in row i and column j is the size of the change of output i by input j, the Jacobian's norm,
of a fresh mixer with float weights on random inputs. White is zero: a causal mixer is white above
the diagonal, a window below its band.

    python docs/site/mixer_patterns.py [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import torch

import sterna.model.torch.mixers  # noqa: F401  (registers them)
from sterna.model.files import write_atomically
from sterna.model.pattern import Choice
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS

FOLDER = Path(__file__).parents[1] / "mixers"
D, LENGTH, PIXELS, INPUTS = 32, 32, 6, 4
SMALL = {"size": 8, "sinks": 2, "block": 4, "stride": 6, "length": LENGTH, "bucket": 2,
         "rounds": 1, "random": 1}
"""Options that show their effect within so few tokens."""


def sensitivity(name: str) -> np.ndarray:
    """Mean norms ``[output, input]`` of the Jacobian's blocks, the largest made 1."""
    options = tuple((option, SMALL[option]) for option in TOKEN_MIXERS.options(name)
                    if option in SMALL)
    generator = torch.Generator().manual_seed(0)
    mixer = TOKEN_MIXERS.build(Choice(name, options), MixerInit(D, 2 * D, False, generator))
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    total = torch.zeros(LENGTH, LENGTH)
    for _ in range(INPUTS):
        x = torch.randn(LENGTH, 1, D, generator=generator)
        jacobian = torch.autograd.functional.jacobian(
            lambda x: mixer(x, mixer.initial_state(x))[0], x)
        total += jacobian.square().sum(dim=(1, 2, 4, 5)).sqrt().reshape(LENGTH, LENGTH)
    return (total / total.max()).numpy()


def draw(name: str) -> Path:
    """Write the picture of one mixer: blue on white, larger is darker."""
    size = np.kron(sensitivity(name) ** 0.5, np.ones((PIXELS, PIXELS)))[..., None]
    picture = 255 - size * (255 - np.array([20, 60, 130]))
    path = FOLDER / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.png")
    matplotlib.image.imsave(temporary, np.rint(picture).astype(np.uint8),
                            metadata={"Software": None})
    write_atomically(path, temporary.read_bytes())
    temporary.unlink()
    return path


if __name__ == "__main__":
    for each in sys.argv[1:] or TOKEN_MIXERS.names():
        print(draw(each).relative_to(FOLDER.parents[1]))
