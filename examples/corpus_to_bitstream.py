"""A text of your own as a bitstream for the iCEBreaker: trained, quantised, placed and routed.

Give a text of 4 KiB or more; without one, a file of Python's library is learnt.
"""

import argparse
import sys
from pathlib import Path

from sterna.hw.board.bitstream import build_bitstream
from sterna.hw.board.boards import BOARDS
from sterna.hw.board.emit_board import board_design
from sterna.hw.board.top import BoardParams
from sterna.model.config import ModelConfig
from sterna.model.corpus import corpus_from_file
from sterna.model.profile import C12
from sterna.model.quantized.evaluate import evaluate
from sterna.model.training.quantize import quantize
from sterna.model.training.train import train

corpus = corpus_from_file(*sys.argv[1:] or [argparse.__file__]).as_ascii()
shape = ModelConfig(d=16, layers=1, dff=16, vocab=128)  # far too small to write well
trained = train(shape, corpus, run_dir="run", steps=200, quiet=True)
model = quantize(trained.model, C12)
model.save("own.safetensors")
bits = evaluate(model, corpus.heldout).bits_per_byte
print(f"{corpus.name}: {bits:.2f} bits per byte after {200} steps, unlearnt 7")

design = board_design(model, BoardParams(BOARDS["icebreaker"]))
made = build_bitstream(design)
Path(made.name).write_bytes(made.data)
for resource, (used, available) in made.used.items():
    print(f"{resource}: {used:,} of {available:,}")
print(f"{made.name}: {len(made.data):,} bytes, {made.fmax_mhz:.1f} MHz reached, 12 needed")
