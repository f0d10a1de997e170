"""Small networks over recordings beside other classifiers, on data sets of the package aeon.

    pip install '.[train]' aeon==1.6.0
    python benchmarks/networks.py -o build/networks

``sterna.Network`` by one recipe for every set, in float and in integers, three seeds; a float
``nn.GRU`` with as many parameters, and one with as many bytes, by the same recipe; aeon's
MiniRocket and nearest neighbour by dynamic time warping, which take whole recordings. Writes a
table and JSON; earlier results are kept, set by set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import aeon.datasets
import numpy as np
import torch
from aeon.classification.convolution_based import MiniRocketClassifier
from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
from aeon.datasets import load_from_ts_file
from torch import Tensor, nn

from sterna import IntegerModel, Network, QuantizedModel
from sterna.model import Recordings, accuracy

BATCH, NOISE, LR, DECAY = 30, 0.3, 1e-2, 0.01
SEEDS = (0, 1, 2)
SETS = {"JapaneseVowels": (1, 100), "BasicMotions": (5, 100), "ItalyPowerDemand": (6, 100),
        "GunPoint": (10, 300), "PickupGestureWiimoteZ": (8, 100)}
"""For each set, time steps per frame, and epochs. Those of ItalyPowerDemand and GunPoint were
chosen for the network by five-fold cross-validation of the training recordings."""
DATA = Path(aeon.datasets.__file__).parent / "data"


@dataclass(frozen=True)
class Row:
    """Results of one set: accuracy on the test recordings, by seed."""

    name: str
    train: int
    test: int
    classes: int
    channels: int
    network: list[float]
    s16: list[float]
    c12: list[float]
    weight_bytes: int
    gru_parameters: list[float]
    gru_bytes: list[float]
    minirocket: float
    warping: float


def recordings_of(name: str, part: str, step: int) -> Recordings:
    """A part of a set as frames of ``step`` time steps, with labels from 0."""
    series, labels = load_from_ts_file(str(DATA / name / f"{name}_{part}.ts"))
    frames = [np.asarray(each).T for each in series]
    frames = [each[:len(each) // step * step].reshape(-1, step * each.shape[1]) for each in frames]
    return Recordings(frames, np.unique(labels, return_inverse=True)[1])


class Gru(nn.Module):
    """A float GRU followed by a linear layer; frames scaled by those of the training."""

    def __init__(self, inputs: int, outputs: int, width: int, every: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", every.mean(0))
        self.register_buffer("deviation", every.std(0))
        self.gru, self.out = nn.GRU(inputs, width), nn.Linear(width, outputs)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        every = self.out(self.gru((frames - self.mean) / self.deviation)[0])
        counts = torch.arange(len(every))[:, None, None] < lengths[:, None]
        return every, (every * counts).sum(0) / lengths[:, None]


def gru_width(inputs: int, outputs: int, parameters: int) -> int:
    """Width of the largest GRU with at most ``parameters`` parameters."""
    def size(width: int) -> int:
        return 3 * width * (inputs + width + 2) + (width + 1) * outputs

    return max((width for width in range(1, 512) if size(width) <= parameters), default=1)


def padded(recordings: Recordings) -> tuple[Tensor, Tensor]:
    frames = [torch.tensor(each).float() for each in recordings.frames]
    return nn.utils.rnn.pad_sequence(frames), torch.tensor([*map(len, frames)])


def train(module: nn.Module, recordings: Recordings, seed: int, epochs: int) -> None:
    """AdamW with a cosine to 0 and noise on the frames, the same for every module and set."""
    generator = torch.Generator().manual_seed(seed)
    (frames, lengths), labels = padded(recordings), torch.tensor(recordings.labels)
    deviation = torch.tensor(np.concatenate(recordings.frames)).std(0).float()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=DECAY)
    batches = -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
            noise = torch.randn(frames[:, chosen].shape, generator=generator)
            _, pooled = module(frames[:, chosen] + NOISE * deviation * noise, lengths[chosen])
            loss = nn.functional.cross_entropy(pooled, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def share(module: nn.Module, recordings: Recordings) -> float:
    """Accuracy of a float module."""
    with torch.no_grad():
        _, pooled = module(*padded(recordings))
    return float((pooled.argmax(1).numpy() == recordings.labels).mean())


def weight_bytes(model: QuantizedModel) -> int:
    """Bytes of ternary weights (2 bits each), biases (2 bytes), mantissa and shift (4 bytes)."""
    return sum(-(-each.weight.size // 4) + 2 * len(each.bias) + 4
               for each in model.projections.values())


def others(name: str) -> tuple[float, float]:
    """MiniRocket and nearest neighbour by warping, on the set's equal-length version if any."""
    kind = "_eq" if (DATA / name / f"{name}_eq_TRAIN.ts").exists() else ""
    (x, y), (test, labels) = (
        load_from_ts_file(str(DATA / name / f"{name}{kind}_{part}.ts"))
        for part in ("TRAIN", "TEST"))
    found = []
    for make in (lambda: MiniRocketClassifier(random_state=0),
                 lambda: KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw")):
        classifier = make().fit(x, y)
        found.append(float((classifier.predict(test) == labels).mean()))
    return found[0], found[1]


def measure(name: str, say: Callable[[str], None]) -> Row:
    step, epochs = SETS[name]
    train_set, test_set = (recordings_of(name, part, step) for part in ("TRAIN", "TEST"))
    every = torch.tensor(np.concatenate(train_set.frames)).float()
    inputs, classes = every.shape[1], int(train_set.labels.max()) + 1
    shares: dict[str, list[float]] = {key: [] for key in (
        "network", "s16", "c12", "gru_parameters", "gru_bytes")}
    size = 0
    for seed in SEEDS:
        say(f"{name}, seed {seed}")
        network = Network(inputs, classes, seed=seed).fit(every)
        train(network, train_set, seed, epochs)
        shares["network"].append(share(network, test_set))
        for profile in ("S16", "C12"):
            model = network.to_model(profile)
            size = weight_bytes(model)
            shares[profile.lower()].append(
                accuracy(IntegerModel(model), test_set, model.integers).share)
        parameters = sum(each.numel() for each in network.parameters())
        for key, budget in (("gru_parameters", parameters), ("gru_bytes", size // 4)):
            torch.manual_seed(seed)
            gru = Gru(inputs, classes, gru_width(inputs, classes, budget), every)
            train(gru, train_set, seed, epochs)
            shares[key].append(share(gru, test_set))
    say(f"{name}, aeon's classifiers")
    rocket, warping = others(name)
    return Row(name, len(train_set.labels), len(test_set.labels), classes, inputs,
               weight_bytes=size, minirocket=rocket, warping=warping, **shares)


def table(rows: list[Row]) -> str:
    def seeds(values: list[float]) -> str:
        return ", ".join(f"{100 * each:.1f}" for each in values)

    lines = ["| set (recordings to train, to test; classes; numbers a frame) | network, float "
             "| S16 | C12 | bytes | GRU, as many parameters | GRU, as many bytes | MiniRocket "
             "| 1-NN DTW |",
             "|---|---|---|---|--:|---|---|--:|--:|"]
    lines += [f"| {each.name} ({each.train}, {each.test}; {each.classes}; {each.channels}) "
              f"| {seeds(each.network)} | {seeds(each.s16)} | {seeds(each.c12)} "
              f"| {each.weight_bytes:,} | {seeds(each.gru_parameters)} | {seeds(each.gru_bytes)} "
              f"| {100 * each.minirocket:.1f} | {100 * each.warping:.1f} |" for each in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("build/networks"))
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; all by default")
    options = parser.parse_args()
    if strangers := set(options.sets).difference(SETS):
        parser.error(f"there is no set {min(strangers)}; there are: {', '.join(SETS)}")
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.sets or SETS:
        path = options.output / f"{name}.json"
        if not path.exists():
            row = measure(name, lambda text: print(text, flush=True))
            path.write_text(json.dumps(asdict(row), indent=2) + "\n")
        rows.append(Row(**json.loads(path.read_text())))
    text = table(rows)
    (options.output / "table.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
