"""``sterna simulate --unit core``: the text that the gateware writes, and what was compared."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sterna.cli.terminal.console import out, print_json, print_table, say
from sterna.model.quantized import QuantizedModel
from sterna.model.tokenizer import decode, encode
from sterna.sim.bench.runner import Simulator
from sterna.sim.core.engine import Engine

__all__ = ["simulate_core"]


def simulate_core(
    model: QuantizedModel, prompts: Sequence[str], tokens: int, *, temperature: float,
    sizes: Mapping[str, Any], engine: Engine, netlist: bool,
    simulator: Simulator, waves: bool, output: Path | None, seed: int, quiet: bool,
    as_json: bool,
) -> int:
    """Let a core write text, print it and what was compared; return the exit code.

    With the C++ engine and one prompt the text appears as it is written.
    """
    from sterna.sim.core.simulate import simulate_core as run_simulation
    bytewise = model.config.vocab <= 256
    live = engine is Engine.CPP and len(prompts) == 1 and bytewise and not as_json
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    line_is_open = False

    def show(sequence: int, written: list[int]) -> None:
        nonlocal line_is_open
        if live:
            if not line_is_open:
                out.print(prompts[0], end="", style="bold")
                line_is_open = True
            sys.stdout.write(decoder.decode(bytes(written)))
            sys.stdout.flush()

    def end_line() -> None:
        nonlocal line_is_open
        if line_is_open:
            sys.stdout.write(decoder.decode(b"", final=True) + "\n")
            sys.stdout.flush()
            line_is_open = False

    def note(line: str) -> None:
        end_line()
        say(line, quiet)

    encoded = [encode(prompt.encode()).tolist() for prompt in prompts]
    if netlist:
        from sterna.sim.netlist import simulate_core_netlist
        report = simulate_core_netlist(
            model, encoded, tokens, temperature=temperature, simulator=simulator,
            waves=waves, work=output, seed=seed, progress=note, **sizes)
    else:
        report = run_simulation(
            model, encoded, tokens, temperature=temperature, engine=engine,
            simulator=simulator, waves=waves, work=output, seed=seed, progress=note,
            on_tokens=show, **sizes)
    if as_json:
        print_json({**report.as_dict(), "prompts": list(prompts),
                    "texts": [_text(model, each) for each in report.generated]})
        return 0 if report.passed else 1
    end_line()
    if not live:
        for prompt, written in zip(prompts, report.generated, strict=True):
            out.print(prompt, end="", style="bold")
            out.print(_text(model, written))
    print_table(
        f"{'netlist of ' if netlist else ''}core in {report.simulator.value} "
        f"({report.engine.value}), {tokens} tokens, {report.params.rows} x {report.params.cols}, "
        f"seed {seed}",
        ("phase", "cycles", "values = reference", "values = onnxruntime", "mismatches",
         "cycles = model", "wrong"),
        [(phase.name, phase.cycles, phase.checks.reference.values,
          phase.checks.onnx.values,
          phase.checks.reference.mismatches + phase.checks.onnx.mismatches,
          phase.timing.events, phase.timing.mismatches) for phase in report.phases])
    if report.cycles_per_token is not None and report.utilisation is not None:
        out.print(f"{report.cycles_per_token:,.1f} cycles per token, the array is busy in "
                  f"{report.utilisation:.1%} of them")
    if output is not None:
        out.print(f"kept in {output}")
    if report.failure is not None:
        say(f"MISMATCH in {report.failure}")
    return 0 if report.passed else 1


def _text(model: QuantizedModel, tokens: list[int]) -> str:
    """Tokens as text, if they are bytes; otherwise their numbers."""
    if model.config.vocab <= 256:
        return decode(tokens)
    return " " + " ".join(map(str, tokens))
