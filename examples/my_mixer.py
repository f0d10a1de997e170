"""A token mixer of your own, in a file of your own: trained, compared and sampled by name."""

import torch

from sterna import ModelConfig, builtin_corpus, train
from sterna.model import TokenMixer, token_mixer


@token_mixer("short_conv")
class ShortConv(TokenMixer):
    """Each channel: a weighted sum over the last tokens, times a gate."""
    def __init__(self, init, *, taps: int = 4):
        super().__init__()
        self.d, self.taps = init.d, taps
        self.gate, self.value = init.linear(init.d, init.d), init.linear(init.d, init.d)
        self.out = init.linear(init.d, init.d, residual=True)
        self.kernel = init.parameter(taps, init.d, std=0.5)

    def forward(self, x, state):  # [time, batch, d] and the last values [batch, taps - 1, d]
        past = torch.cat([state[0].transpose(0, 1), self.value(x)])
        mixed = sum(self.kernel[i] * past[i:i + len(x)] for i in range(self.taps))
        return self.out(self.gate(x).sigmoid() * mixed), (past[len(x):].transpose(0, 1).clone(),)

    def initial_state(self, x):
        return (x.new_zeros(x.shape[-2], self.taps - 1, self.d),)

    def state_words(self, length):
        return (self.taps - 1) * self.d

    def products(self, length):
        return (self.taps + 1) * self.d


if __name__ == "__main__":  # the same: sterna train --mixer my_mixer.py:ShortConv
    config = ModelConfig(d=32, layers=2, dff=64, mixer="my_mixer:ShortConv(taps=3)")
    run = train(config, builtin_corpus(), run_dir="run", steps=150, quiet=True, overwrite=True)
    print(f"below 4.5 bits per byte: {run.heldout_bpb < 4.5}")
