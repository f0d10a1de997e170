"""``sterna bench attention``: softmax attention, linear attention and MLGRU by length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, print_table, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder, choose
from sterna.model.checks import check_whole

if TYPE_CHECKING:
    from sterna.model.study.attention_result import AttentionResult

__all__ = ["attention"]

_QUICK = {"lengths": (128, 256, 512), "batch": 8, "runs": 10, "seconds": 1.0}


def attention(
    lengths: Annotated[str | None, typer.Option(
        metavar="N,N,...", help="Lengths of the sequences. Default: 128 to 6000.")] = None,
    batch: Annotated[int | None, typer.Option(
        help="Sequences at a time. Default: 32.")] = None,
    d: Annotated[int, typer.Option(help="Channels.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads of attention.")] = 4,
    runs: Annotated[int | None, typer.Option(
        help="Timed runs of each contestant at a length. Default: 100.")] = None,
    seconds: Annotated[float | None, typer.Option(
        help="No further run of a contestant after so many seconds of its own; three runs at "
             "least. Default: 5.")] = None,
    part: Annotated[str, typer.Option(
        help="core (what lies between the projections), or the whole mixer with float or "
             "ternary projections.")] = "core",
    backward: Annotated[bool, typer.Option(
        "--backward", help="Time forward and backward together.")] = False,
    memory: Annotated[float | None, typer.Option(
        "--memory-gb", help="Most memory to take, in 10^9 bytes. Default: 90 % of what is free.")
        ] = None,
    fit: Annotated[bool, typer.Option(
        "--fit", help="Where a contestant does not fit in memory, halve the batch of all until "
                      "it does. Otherwise it is not run at that length.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of inputs and weights.")] = 0,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Short sequences, small batch, few runs: a few seconds.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR",
        help="Write attention.json, attention.svg and attention.html to this folder, after "
             "every length.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Time attention and the MLGRU as sequences grow.

    One layer with random inputs, the experiment of the works on linear attention. Softmax
    attention is timed twice: with its matrix written to memory, and fused; how many times as fast
    the others are is given for both. The number of threads is torch's: set OMP_NUM_THREADS. One
    thread is timed by the processor, which others at work on the machine disturb least. Where
    the C library is glibc, freed memory is kept for the next run, as torch does on CUDA.

    Example: sterna bench attention --quick
    """
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.study.attention_benchmark import bench_attention
        from sterna.model.study.attention_contestants import PARTS
        from sterna.model.study.attention_result import Settings
    choose("--part", part, PARTS)
    check_whole("--seed", seed, 0, (1 << 63) - 1)
    if memory is not None and not 0 < memory < 1e18:
        raise ValueError(f"--memory-gb must be above 0 and below 10^18, got {memory:g}")
    if output is not None:
        check_folder(output)
    given = {"lengths": None if lengths is None else _lengths(lengths), "batch": batch,
             "runs": runs, "seconds": seconds}
    chosen: dict[str, Any] = (_QUICK if quick else {}) | {
        name: value for name, value in given.items() if value is not None}
    settings = Settings(
        **chosen, d=d, heads=heads, part=part, backward=backward, memory_gb=memory, fit=fit,
        device=device, seed=seed)
    measured = _Measured(output)
    try:
        bench_attention(settings, note=lambda text: say(text, quiet), done=measured.keep)
    finally:        # an interruption leaves the lengths that are done
        measured.show(as_json)
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--lengths must be whole numbers with commas between, such as 128,1024, got "
            f"{text!r}") from None


class _Measured:
    """What is done so far, on disk and then on the terminal."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._result: AttentionResult | None = None
        self._written: list[Path] = []

    def keep(self, result: AttentionResult) -> None:
        """Note a result, and write it if there is a folder."""
        self._result = result
        if self._output is not None:
            from sterna.cli.reports.attention_page import write_attention_report
            self._written = write_attention_report(self._output, result)

    def show(self, as_json: bool) -> None:
        """Print it."""
        if self._result is None:
            return
        if as_json:
            print_json(self._result.as_dict())
            return
        _print(self._result)
        for path in self._written:
            out.print(f"{path}: {path.stat().st_size:,} bytes")


def _print(result: AttentionResult) -> None:
    from sterna.cli.reports.attention_page import COLUMNS, misfits, rows, setting
    from sterna.model.study.attention_result import findings
    out.print(setting(result))
    for length in result.lengths():
        batch = next(iter(result.at(length).values())).batch
        out.print()
        print_table(f"N {length:,}, batch {batch}", COLUMNS, rows(result, length))
    out.print()
    for line in (*misfits(result), *findings(result)):
        out.print(line)
