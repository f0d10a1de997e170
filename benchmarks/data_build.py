"""Build a data folder of a large text and train on it: peak memory and time of both.

    python benchmarks/data_build.py [--megabytes 1000]

Writes a synthetic text (words by Zipf's law, lines of twelve, from a seed) to a temporary folder,
builds it with ``sterna data build`` as bytes, and as byte pairs with each number of processes,
reads windows from all over it, and trains ``tiny`` on it for a few steps. Every part runs in a
separate process, measured by its peak resident memory; with several encoders, that of the
largest. For reading it is also split into memory of the process itself and pages of mapped
files, which the system reclaims when needed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from sterna.model.files import write_atomically
from sterna.model.shards.text import ShardText

_WORDS, _LINE = 50_000, 12
_BLOCK_LINES = 20_000
_VOCAB, _STEPS = 1024, 20


def write_text(path: Path, size: int, seed: int = 0) -> None:
    """Write ``size`` bytes of text, or up to a line more."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwygpbvkxqjz"))
    chances = 1.0 / np.arange(1, 27)
    words = ["".join(letters[rng.choice(26, length, p=chances / chances.sum())])
             for length in rng.integers(1, 13, _WORDS)]
    ranks = 1.0 / np.arange(1, _WORDS + 1)
    places = np.cumsum(ranks / ranks.sum())
    written = 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            chosen = np.searchsorted(places, rng.random((_BLOCK_LINES, _LINE)))
            lines = "".join(" ".join(words[word] for word in line) + ".\n" for line in
                            np.minimum(chosen, _WORDS - 1).tolist())
            written += file.write(lines[:max(size - written, lines.find("\n") + 1)])


def measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return wall seconds, CPU seconds, and peak resident memory in MB."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def sterna(*arguments: object) -> tuple[float, float, float]:
    """The same for the command line of this checkout."""
    return measured([sys.executable, "-m", "sterna.cli", *map(str, arguments), "--quiet"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, "
          f"numpy {np.__version__}, torch {version('torch')}, seed 0", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, sample = folder / "text.txt", folder / "sample.txt"
        part("write", text, options.megabytes * 10 ** 6)
        with text.open("rb") as file:
            write_atomically(sample, file.read(5 * 10 ** 6))
        tokenizer = folder / "tokenizer.json"
        sterna("tokenizer", "train", sample, "--vocab", _VOCAB, "-o", tokenizer)
        megabytes = text.stat().st_size / 1e6
        print(f"{megabytes:,.0f} MB of text\n")
        print("part".ljust(34) + "".join(
            head.rjust(12) for head in ("wall s", "CPU s", "MB/s", "peak MB")))
        pairs = [("--tokenizer", tokenizer, "--jobs", jobs) for jobs in (1, 2)]
        for kind, builds in (("bytes", [()]), (f"{_VOCAB:,} tokens", pairs)):
            for more in builds:
                name = ", ".join([f"build, {kind}", *(f"--jobs {jobs}" for jobs in more[3:])])
                data = folder / name
                wall, cpu, peak = sterna("data", "build", text, "-o", data, *more)
                show(name, wall, cpu, f"{megabytes / wall:.1f}", peak)
            index = json.loads((data / "index.json").read_text())
            print(f"  {index['train']['bytes'] / sum(s['tokens'] for s in index['shards']):.3f} "
                  f"bytes per token")
            part("read", data, 200_000)
            show(f"train, {kind}, {_STEPS} steps",
                 *train(data.with_suffix(".run"), "--data", data))
        show(f"train, built-in text, {_STEPS} steps", *train(folder / "run"))


def show(part: str, wall: float, cpu: float, speed: str, peak: float) -> None:
    """Print a row."""
    print(f"{part:34}{wall:12.1f}{cpu:12.1f}{speed:>12}{peak:12.0f}", flush=True)


def part(name: str, path: Path, size: int) -> None:
    """Run a part in a separate process: its peak memory starts at that of its parent, which must
    stay small."""
    subprocess.run([sys.executable, __file__, name, str(path), str(size)], check=True)


def read_windows(data: Path, windows: int, tokens: int = 129) -> None:
    """Read windows, and print time and memory."""
    text = ShardText(data)
    starts = np.random.default_rng(0).integers(0, len(text), windows).tolist()
    before, started = memory(), time.process_time()
    for start in starts:
        text.piece(start, tokens)
    seconds, after = time.process_time() - started, memory()
    print(f"  {windows:,} windows of {tokens} tokens read: {seconds / windows * 1e6:.1f} us of CPU "
          f"each; own memory {before['Anon']:.0f} to {after['Anon']:.0f} MB, mapped "
          f"{before['File']:.0f} to {after['File']:.0f} MB", flush=True)


def memory() -> dict[str, float]:
    """Resident MB of this process: anonymous, and of files."""
    status = Path("/proc/self/status").read_text()
    return {kind: int(size) / 1024 for kind, size in re.findall(r"Rss(\w+):\s+(\d+)", status)}


def train(folder: Path, *text: object) -> tuple[float, float, str, float]:
    """A row of training, without a speed, as that depends on the model."""
    wall, cpu, peak = sterna(
        "train", "--config", "tiny", *text, "--steps", _STEPS, "-o", folder, "--threads", 1)
    return wall, cpu, "", peak


if __name__ == "__main__":
    if sys.argv[1:2] in (["write"], ["read"]):
        parts = {"write": write_text, "read": read_windows}
        parts[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
