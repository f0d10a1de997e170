"""``sterna simulate --unit core``: the text that the gateware writes, and what was compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.terminal.console import Stages, out, print_json, print_table, say, write
from sterna.cli.terminal.texts import check_prompts
from sterna.model.quantized import QuantizedModel
from sterna.model.tokens.tokenizer import TextStream, Tokenizer
from sterna.sim.bench.runner import Engine, Simulator

if TYPE_CHECKING:
    from sterna.sim.core.simulate import CoreReport

__all__ = ["simulate_core"]


def simulate_core(
    model: QuantizedModel, prompts: Sequence[str], tokens: int, *, temperature: float,
    sizes: Mapping[str, Any], engine: Engine, netlist: bool,
    simulator: Simulator, waves: Path | None, output: Path | None, seed: int, quiet: bool,
    as_json: bool,
) -> int:
    """Let a core write text, print it and what was compared; return the exit code.

    With the C++ engine and one prompt the text appears as it is written.
    """
    check_prompts(prompts, model.config.vocab)
    encoded = [model.tokenizer.encode(prompt).tolist() for prompt in prompts]
    spelled = model.config.vocab == model.tokenizer.vocab
    live = engine is Engine.CPP and len(prompts) == 1 and spelled and not as_json
    with Stages(quiet) as stage:
        text = _LiveText(prompts[0], model.tokenizer, stage)
        if netlist:
            from sterna.sim.netlist import simulate_core_netlist
            report = simulate_core_netlist(
                model, encoded, tokens, temperature=temperature, simulator=simulator,
                waves=waves, work=output, seed=seed, progress=stage, **sizes)
        else:
            from sterna.sim.core.simulate import simulate_core as run_simulation
            report = run_simulation(
                model, encoded, tokens, temperature=temperature, engine=engine,
                simulator=simulator, waves=waves, work=output, seed=seed, progress=text.stage,
                on_tokens=text.show if live else lambda sequence, written: None, **sizes)
        text.close()
    if as_json:
        print_json({**report.as_dict(), "prompts": list(prompts),
                    "texts": [_text(model, each) for each in report.generated]})
        return 0 if report.passed else 1
    if not live:
        for prompt, written in zip(prompts, report.generated, strict=True):
            out.print(prompt, end="", style="bold")
            out.print(_text(model, written))
    _print(f"{'netlist of ' if netlist else ''}core in {report.simulator.value} "
           f"({report.engine.value}), {tokens} tokens, {report.params.rows} x "
           f"{report.params.cols}, seed {seed}", report)
    if output is not None:
        out.print(f"kept in {output}")
    if report.failure is not None:
        say(f"MISMATCH in {report.failure}")
    return 0 if report.passed else 1


class _LiveText:
    """The text after a prompt, printed as it is written, between the stages of a simulation."""

    def __init__(self, prompt: str, tokenizer: Tokenizer, stage: Stages) -> None:
        self._prompt, self._stage = prompt, stage
        self._stream = TextStream(tokenizer)
        self._is_open = False

    def show(self, sequence: int, written: list[int]) -> None:
        """Print more of the text."""
        if not self._is_open:
            self._stage.end()       # a clock that runs would draw over the text
            out.print(self._prompt, end="", style="bold")
            self._is_open = True
        write(self._stream.add(written))

    def stage(self, label: str) -> None:
        """Begin a stage, on a line of its own."""
        self.close()
        self._stage(label)

    def close(self) -> None:
        """End the line of the text, if one has begun."""
        if self._is_open:
            write(self._stream.end() + "\n")
            self._is_open = False


def _print(title: str, report: CoreReport) -> None:
    print_table(
        title, ("phase", "cycles", "values = reference", "values = onnxruntime", "mismatches",
                "cycles = model", "wrong"),
        [(phase.name, phase.cycles, phase.checks.reference.values,
          phase.checks.onnx.values,
          phase.checks.reference.mismatches + phase.checks.onnx.mismatches,
          phase.timing.events, phase.timing.mismatches) for phase in report.phases])
    if report.cycles_per_token is not None and report.utilisation is not None:
        out.print(f"{report.cycles_per_token:,.1f} cycles per token, the array is busy in "
                  f"{report.utilisation:.1%} of them")


def _text(model: QuantizedModel, tokens: list[int]) -> str:
    """Tokens as text, if the tokenizer spells all that there are; otherwise their numbers."""
    if model.config.vocab == model.tokenizer.vocab:
        return model.tokenizer.decode(tokens)
    return " " + " ".join(map(str, tokens))
