"""Train a network over frames of a sensor, and run it in integers, in ONNX and as Verilog."""

import sys

import numpy as np
import torch
from torch.nn import functional

from sterna import IntegerModel, Network, Session, export_onnx
from sterna.model import Recordings, accuracy, bundled_recordings

EPOCHS, BATCH, NOISE = int(sys.argv[1]) if len(sys.argv) > 1 else 60, 30, 0.3

# Recordings of nine speakers: a list of frames [length, 12], and a label for each.
train, test = (Recordings.load(bundled_recordings(), held_out=part) for part in (False, True))
lengths = torch.tensor([len(each) for each in train.frames])
padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(each).float() for each in train.frames])
labels = torch.tensor(train.labels)
deviation = torch.tensor(np.concatenate(train.frames)).std(0).float()

network = Network(12, 9, seed=0).fit(torch.tensor(np.concatenate(train.frames)))
generator = torch.Generator().manual_seed(0)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.01)
steps = EPOCHS * (len(labels) // BATCH)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for step in range(steps):
    if step % (len(labels) // BATCH) == 0:
        order = torch.randperm(len(labels), generator=generator)
    chosen, order = order[:BATCH], order[BATCH:]
    noise = NOISE * deviation * torch.randn(padded[:, chosen].shape, generator=generator)
    _, pooled = network(padded[:, chosen] + noise, lengths[chosen])
    loss = functional.cross_entropy(pooled, labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    schedule.step()

with torch.no_grad():
    right = [network(torch.tensor(each).float()[:, None])[1].argmax() for each in test.frames]
print(f"float: {np.mean(np.array(right) == test.labels):.1%}")
model = network.to_model("C12", {"training": {"recordings": "vowels", "seed": 0}})
model.save("vowels.safetensors")
print(f"integers: {accuracy(IntegerModel(model), test, model.integers).share:.1%}")
session = Session(export_onnx(model, "vowels.onnx"))
print(f"ONNX: {accuracy(session, test, model.integers).share:.1%}")
