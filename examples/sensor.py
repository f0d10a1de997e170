"""Train a network over frames of a sensor; run it in integers, in ONNX and as Verilog."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional

from sterna import IntegerModel, Network, Session, emit_verilog, export_onnx, layer_cost
from sterna.model import Recordings, accuracy, bundled_recordings
from sterna.sim import simulate_network

SEED, EPOCHS, BATCH, NOISE = 0, 60, 30, 0.3

# Recordings of nine speakers: a list of frames [length, 12], and a label for each.
train, test = (Recordings.load(bundled_recordings(), held_out=part) for part in (False, True))
every = torch.tensor(np.concatenate(train.frames)).float()
padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(each).float() for each in train.frames])
lengths, labels = torch.tensor([*map(len, train.frames)]), torch.tensor(train.labels)

network = Network(12, 9, seed=SEED).fit(every)
generator = torch.Generator().manual_seed(SEED)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.01)
batches = len(labels) // BATCH
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * batches)
for epoch in range(EPOCHS):
    for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
        noise = torch.randn(padded[:, chosen].shape, generator=generator)
        _, pooled = network(padded[:, chosen] + NOISE * every.std(0) * noise, lengths[chosen])
        loss = functional.cross_entropy(pooled, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss:.3f}")

with torch.no_grad():
    found = [int(network(torch.tensor(each).float()[:, None])[1].argmax()) for each in test.frames]
share = float(np.mean(found == test.labels))
model = network.to_model("C12", {
    "training": {"recordings": "vowels", "script": "examples/sensor.py", "seed": SEED,
                 "epochs": EPOCHS}, "held out": {"recordings": len(found), "float": share}})
model.save("vowels.safetensors")
session = Session(export_onnx(model, "vowels.onnx"))
print(f"float: {share:.1%} of {len(found)} recordings held out")
for name, runs in (("integers", IntegerModel(model)), ("ONNX", session)):
    print(f"{name}: {accuracy(runs, test, model.integers).share:.1%}")

emitted = emit_verilog(model, "network", "vowels", rows=2, cols=8, quant_lanes=1, compact=True)
frames = [model.integers(each)[0] for each in test.frames]
checks = simulate_network(model, frames[:3], emitted=emitted).checks
print(f"Verilog: {checks.reference.mismatches + checks.onnx.mismatches} mismatches in simulation")
cost = layer_cost(emitted, "ice40-up5k")
print(f"{cost}\n{cost.latency[0] / 12:.0f} microseconds a frame at 12 MHz")

results, _ = session.run(frames[0][None])
plt.plot(results[0] / 2.0 ** model.logit.frac, label=[f"speaker {each}" for each in range(9)])
plt.legend()
plt.savefig("vowels.svg")
