"""Time every ONNX form of random ternary models, and matrix-vector products beside llama.cpp's.

    python benchmarks/edge.py --cold -o docs/edge-benchmark
    python benchmarks/edge.py --quick

Writes NAME.json, NAME.md and NAME.svg after each size, and prints the tables; the first command
takes some ten minutes. Absolute times depend on the machine; ratios are taken within a round, one
call of each contestant in turn, on one thread.

Missing contestants are left out: PyTorch, a compiler for the operator library, llama.cpp. For
llama.cpp install ``llama-cpp-python`` beside Sterna, or elsewhere and pass its ``llama_cpp/lib``
with ``--ggml``. The installation compiles it for this processor:

    CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=OFF" pip install llama-cpp-python==0.3.36
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import edge_contestants as contestants
from edge_peers import PRODUCT_BASES, Ggml, Native, find_ggml, products
from edge_report import all_tables, left_out, write_reports
from timing import describe_machine, describe_versions, measure, summarise

from sterna.cli.terminal.console import progress_bar, say
from sterna.export.native.ops import OpsError, build_ops
from sterna.model.config import ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import S16
from sterna.model.quantized.synthetic import random_model

LAYERS, VOCAB = 2, 256
SIZES = ((128, 352), (256, 704), (1024, 2816), (2048, 5632))
SHAPES = ((1024, 1024), (1024, 2816), (2048, 5632))
QUICK = {"sizes": SIZES[:2], "shapes": SHAPES[:1], "rounds": 40, "probes": 1, "seconds": 8.0}
Record = dict[str, Any]


def pair(text: str) -> tuple[int, int]:
    """Read ``128x352``."""
    first, _, second = text.partition("x")
    try:
        found = int(first), int(second)
    except ValueError:
        found = (0, 0)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected two numbers like 128x352, got {text!r}")
    return found


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``--quick`` changes the defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("-o", "--output", type=Path, default=Path("build/edge/edge-benchmark"),
        help="files to write, without the suffix")
    add("--sizes", nargs="+", type=pair, metavar="DxDFF", default=SIZES,
        help="widths d and dff of the models")
    add("--shapes", nargs="+", type=pair, metavar="KxN", default=SHAPES,
        help="columns and rows of the products")
    add("--rounds", type=int, default=100, help="timed calls of each; a fifth for prefill")
    add("--cold", action="store_true", help="measure with cold caches as well")
    add("--ggml", type=Path, help="folder of libggml-base and libggml-cpu, if llama-cpp-python "
                                  "is not installed beside Sterna")
    add("--quick", action="store_true", help="small sizes and few rounds: under two minutes")
    add("--quiet", action="store_true", help="no progress")
    # Processes that load each file, and the time limit of one measurement.
    parser.set_defaults(probes=3, seconds=120.0)
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    return options


def measure_model(
    d: int, dff: int, options: argparse.Namespace, names: Sequence[str], ops: Path | None,
) -> Record:
    """Measure one size: files, then step and prefill of every contestant.

    Forms that a runtime cannot load or run are left out, with the reason kept.
    """
    config = ModelConfig(d=d, layers=LAYERS, dff=dff, vocab=VOCAB)
    say(f"d {d}, dff {dff}: a random model", options.quiet)
    model = random_model(config, S16)
    entry: Record = {"d": d, "dff": dff, "weights": config.ternary_weights, "files": {},
                     "failed": {}}
    for length, part, rounds in (
            (1, "step", options.rounds),
            (contestants.PREFILL_TOKENS, "prefill", max(1, options.rounds // 5))):
        with tempfile.TemporaryDirectory(prefix="sterna-edge-") as folder:
            calls = {}
            for name in names:
                say(f"d {d}: {name}, {part}", options.quiet)
                try:
                    path = contestants.write_file(name, model, Path(folder))
                    if length == 1:
                        probes = [contestants.probe(name, length, path, ops, model)
                                  for _ in range(options.probes)]
                        size = path.stat().st_size
                        entry["files"][name] = {
                            "bytes": size, "bits_per_weight": 8 * size / config.ternary_weights,
                            **{key: statistics.median(each[key] for each in probes)
                               for key in probes[0]}}
                    calls[name] = contestants.open_call(
                        name, length, path, ops, config, model.profile)
                except Exception as error:  # the base of all onnxruntime errors
                    reason = " ".join(str(error).replace(folder, "").split())
                    entry["failed"][f"{name}, {part}"] = reason[:300]
                    say(f"  left out: {error}", options.quiet)
        entry[part] = time_calls(f"d {d}: {part}", calls, [contestants.BASE], rounds, options)
    return entry


def time_calls(
    label: str, calls: dict[str, Callable[[], object]], bases: Sequence[str], rounds: int,
    options: argparse.Namespace,
) -> Record:
    """Time warm, and cold if asked for."""
    found: Record = {}
    for cold in (False, True) if options.cold else (False,):
        state = "cold" if cold else "warm"
        say(f"{label}, {state}: {rounds} rounds of {len(calls)} contestants", options.quiet)
        with progress_bar(f"{label}, {state}", options.quiet) as move:
            taken = measure(
                calls, rounds=rounds, cold=cold, seconds=options.seconds, progress=move)
        found[state] = summarise(taken, bases)
    return found


def command_line(arguments: Sequence[str]) -> str:
    """The given command, without the folders of absolute paths, which are machine-specific.

    >>> command_line(["--ggml", "/home/me/lib", "-o", "docs/edge"])
    'python benchmarks/edge.py --ggml lib -o docs/edge'
    """
    words = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["python", "benchmarks/edge.py", *words])


def run(options: argparse.Namespace, command: str) -> Record:
    """Measure everything; write after each size."""
    absent = {name: reason for name in contestants.NAMES if (reason := contestants.missing(name))}
    folder = options.ggml or find_ggml()
    if folder is None:
        absent["llama.cpp"] = "llama-cpp-python is not installed, and --ggml names no folder"
    ggml = None if folder is None else Ggml(folder)
    ops = native = None
    try:
        say("the library of operators", options.quiet)
        ops = build_ops()
        native = Native(ops)
    except OpsError as error:
        absent[contestants.OPS] = str(error)
    names = [name for name in contestants.NAMES if name not in absent]
    record: Record = {
        "machine": describe_machine(),
        "versions": describe_versions(None if ggml is None else ggml.version),
        "settings": {
            "profile": S16.name, "layers": LAYERS, "vocab": VOCAB, "threads": 1,
            "prefill_tokens": contestants.PREFILL_TOKENS, "rounds": options.rounds,
            "seconds": options.seconds, "probes": options.probes, "cold": options.cold,
            "forms": names},
        "missing": absent, "date": datetime.now(UTC).date().isoformat(), "command": command,
        "models": [], "products": []}
    options.output.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        write_atomically(
            options.output.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
        write_reports(record, options.output)

    for d, dff in options.sizes:
        record["models"].append(measure_model(d, dff, options, names, ops))
        keep()
    for columns, rows in options.shapes:
        made, failed = products(columns, rows, ggml=ggml, native=native)
        record["products"].append({
            "columns": columns, "rows": rows, "failed": failed,
            "bytes": {name: product.weight_bytes for name, product in made.items()},
            **time_calls(f"product {columns} x {rows}", dict(made), PRODUCT_BASES,
                         options.rounds, options)})
        keep()
    return record


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; return the exit code."""
    options = read_options(arguments)
    try:
        record = run(options, command_line(arguments))
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"interrupted; {options.output.with_suffix('.json')} has the sizes that are done")
        return 130
    for table in all_tables(record):
        table.print(width=160)
    for name, reason in left_out(record).items():
        say(f"left out: {name}: {reason}")
    for suffix in (".json", ".md", ".svg"):
        say(f"wrote {options.output.with_suffix(suffix)}", options.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
