"""A training loop to read in one sitting: text, tokens, model, steps, bits per byte, integers.

Plain torch with Sterna's parts; sterna.model.torch.training adds what a long run needs:
checkpoints, budgets, a folder, reports. Change anything here.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from sterna import S16, IntegerModel, ModelConfig, builtin_corpus, quantize
from sterna.model import ByteTokenizer, LanguageModel, heldout_bpb

STEPS, BATCH, WINDOW, LR, SEED = 60, 8, 128, 1e-2, 0  # 3000 steps make readable words

# Text becomes tokens: here a token is a byte. sterna tokenizer makes others.
corpus, tokenizer = builtin_corpus(), ByteTokenizer()
tokens = torch.from_numpy(tokenizer.encode(corpus.train))

# An embedding, blocks of MLGRU and SwiGLU with ternary weights, a ternary head. The weights are
# floats while they are trained: every forward pass rounds them, gradients pass straight through.
config = ModelConfig(d=64, layers=2, dff=192, vocab=tokenizer.vocab)
model = LanguageModel(config, seed=SEED)

# Matrices decay, so that steps can still change their codes; the embedding learns faster.
matrices = [each.weight for each in model.named_projections().values()]
known = {id(each) for each in [*matrices, model.embedding.weight]}
optimizer = torch.optim.AdamW([
    {"params": [model.embedding.weight], "factor": 3.0, "weight_decay": 0.0},
    {"params": matrices, "factor": 1.0, "weight_decay": 0.5},
    {"params": [each for each in model.parameters() if id(each) not in known],
     "factor": 1.0, "weight_decay": 0.0},
], lr=LR, betas=(0.9, 0.99))

generator = torch.Generator().manual_seed(SEED)
for step in range(STEPS):
    # A short warm-up, then a cosine down to 2 % of the peak.
    rate = LR * min(1.0, (step + 1) / 20)
    rate *= 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * step / STEPS))
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]

    # Windows from anywhere in the text, [batch, window + 1]: each token is to be predicted
    # from those before it.
    starts = torch.randint(len(tokens) - WINDOW, (BATCH, 1), generator=generator)
    windows = tokens[starts + torch.arange(WINDOW + 1)]
    logits, _ = model(windows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if (step + 1) % 20 == 0:
        print(f"step {step + 1}: {loss.item() / math.log(2):.2f} bits per byte in training")

# How well it predicts text that it has not seen; the state is carried through it.
heldout = corpus.heldout[:16384]
floats = heldout_bpb(model, heldout, tokenizer=tokenizer)

# Floats become integers, once. From here on no torch is needed: the same file makes ONNX graphs
# and Verilog, and all compute the same integers.
integers = quantize(model, S16, tokenizer=tokenizer)
integers.save("minimal.safetensors")
print(f"held out: {floats:.2f} bits per byte; below 5: {floats < 5}")

# A few words, the most likely byte each time, by the integer reference.
reader = IntegerModel(integers)
prompt = "The for statement"
logits, state = reader.run(tokenizer.encode(prompt)[None])
written, last = [], logits[:, -1]
for _ in range(32):
    written.append(int(last[0].argmax()))
    last, state = reader.step(np.array([written[-1]]), state)
print(prompt + tokenizer.decode(written))
