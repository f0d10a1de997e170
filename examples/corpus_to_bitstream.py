"""A text of your own as a bitstream for the iCEBreaker: trained, quantised, placed and routed.

Takes a minute. No board is needed, and none was used.
"""

import argparse
from pathlib import Path

from sterna import C12, ModelConfig, corpus_from_file, evaluate, quantize, train
from sterna.hw import BoardParams, board_design, board_named, build_bitstream

TEXT, STEPS = argparse.__file__, 200  # any UTF-8 text of 4 KiB or more, say of 1 MB; 20,000

corpus = corpus_from_file(TEXT).as_ascii()
shape = ModelConfig(d=16, layers=1, dff=16, vocab=128)  # small, to be placed soon: d=32 fits
trained = train(shape, corpus, run_dir="run", steps=STEPS, quiet=True, overwrite=True)
model = quantize(trained.model, C12)
model.save("own.safetensors")
bits = evaluate(model, corpus.heldout).bits_per_byte
print(f"{corpus.name}: {bits:.2f} bits per byte of held-out text after {STEPS} steps")

made = build_bitstream(board_design(model, BoardParams(board_named("icebreaker"))))
Path(made.name).write_bytes(made.data)
for each in made.usage:
    print(f"{each.resource}: {each.needed:,} of {each.available:,}")
print(f"{made.name}: {len(made.data):,} bytes, {made.fmax_mhz:.1f} MHz reached, 12 wanted")
