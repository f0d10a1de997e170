"""``sterna export`` and ``sterna generate``: the exact ONNX graphs and text from them."""

from __future__ import annotations

import codecs
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.console import out, print_json, say
from sterna.cli.texts import tokens_of
from sterna.model.quantized import load_model

__all__ = ["COMMANDS", "export", "generate"]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Step graph to write, NAME.onnx; the sequence graph goes to "
                               "NAME.sequence.onnx.")],
    graphs: Annotated[str, typer.Option(help="step, sequence or both.")] = "both",
    check: Annotated[int, typer.Option(
        help="Tokens of the held-out text to compare with the reference; 0 for none.")] = 256,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Write the exact ONNX graphs of a model, and compare them with the integer reference.

    Example: sterna export tiny -o build/tiny.onnx
    """
    from sterna.export.check import check_exact
    from sterna.export.writer import GraphChoice, export_onnx
    choices = [choice.value for choice in GraphChoice]
    if graphs not in choices:
        raise ValueError(f"--graphs must be one of {', '.join(choices)}, got {graphs!r}")
    loaded = load_model(model)
    tokens = tokens_of(None, check, loaded, "--check") if check else None
    output.parent.mkdir(parents=True, exist_ok=True)
    files = export_onnx(loaded, output, graphs=GraphChoice(graphs))
    results = []
    for path in files:
        entry: dict[str, object] = {"file": str(path), "bytes": path.stat().st_size}
        if tokens is not None:
            say(f"comparing {path} with the reference over {check} tokens", quiet)
            report = check_exact(loaded, path, tokens[None, :])
            entry |= {"tokens": report.tokens, "values": report.total.values,
                      "mismatches": report.total.mismatches,
                      "first": str(report.first) if report.first else None}
        results.append(entry)
    if as_json:
        print_json(results)
    else:
        for entry in results:
            compared = "" if tokens is None else (
                f"; {entry['values']:,} values compared, {entry['mismatches']} mismatches")
            out.print(f"{entry['file']}: {entry['bytes']:,} bytes{compared}")
            if entry.get("first"):
                out.print(f"  first mismatch: {entry['first']}")
    return 1 if any(entry.get("mismatches") for entry in results) else 0


def generate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help="Quantised file, tiny, or a step graph ending in .onnx.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "The ",
    tokens: Annotated[int, typer.Option(help="Tokens (bytes) to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="The text alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Continue a text with the exact ONNX graph under onnxruntime.

    Example: sterna generate tiny --prompt "The for statement" --tokens 300
    """
    from sterna.export.generate import generate as write_tokens
    from sterna.export.runtime import OnnxStep
    from sterna.export.traced import build_step
    from sterna.model.tokenizer import decode
    graph = OnnxStep(model if model.endswith(".onnx") else build_step(load_model(model)))
    stream = write_tokens(
        graph, prompt, tokens=tokens, temperature=temperature, seed=seed)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    written: list[int] = []
    if not as_json:
        out.print(prompt, end="")
    started = time.perf_counter()
    for token in stream:
        written.append(token)
        if not as_json:
            sys.stdout.write(decoder.decode(bytes([token])))
            sys.stdout.flush()
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"prompt": prompt, "text": decode(written), "tokens": written,
                    "temperature": temperature, "seed": seed})
    else:
        sys.stdout.write(decoder.decode(b"", final=True) + "\n")
        say(f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:,.0f} tokens/s", quiet)
    return 0


COMMANDS = (export, generate)
