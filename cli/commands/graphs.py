"""``sterna export`` and ``sterna generate``: ONNX files, and text from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import out, print_json, progress_bar, say, write
from sterna.cli.terminal.texts import tokens_of
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.export.graph.metadata import Form
    from sterna.export.runtime.session import Session

__all__ = ["COMMANDS", "export", "generate", "open_model"]

_FORMS = "exact, exact-2bit, fast, web, traced or float32"


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Step graph to write, NAME.onnx; the sequence graph goes to "
                               "NAME.sequence.onnx.")],
    form: Annotated[str, typer.Option(help=f"{_FORMS}.")] = "exact",
    graphs: Annotated[str, typer.Option(help="step, sequence or both.")] = "both",
    check: Annotated[int, typer.Option(
        help="Tokens of the held-out text to compare with the reference; 0 for none.")] = 256,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Write the ONNX graphs of a model, and compare them with the integer reference.

    Example: sterna export tiny -o build/tiny.onnx --form exact
    """
    from sterna.export.forms.writer import GraphChoice, export_onnx
    from sterna.export.runtime.check import check_close, check_exact
    kind = _form(form)
    choices = [choice.value for choice in GraphChoice]
    if graphs not in choices:
        raise ValueError(f"--graphs must be one of {', '.join(choices)}, got {graphs!r}")
    loaded = load_model(model)
    tokens = tokens_of(None, check, loaded, "--check") if check else None
    output.parent.mkdir(parents=True, exist_ok=True)
    files = export_onnx(loaded, output, form=kind, graphs=GraphChoice(graphs))
    results: list[dict[str, Any]] = []
    for path in files:
        entry: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size}
        if tokens is not None:
            say(f"comparing {path} with the reference over {check} tokens", quiet)
            if kind.exact:
                report = check_exact(loaded, path, tokens[None, :])
                entry |= {"tokens": report.tokens, "values": report.total.values,
                          "mismatches": report.total.mismatches,
                          "first": str(report.first) if report.first else None}
            else:
                entry |= {"tokens": check,
                          "decibels": round(check_close(loaded, path, tokens[None, :]), 1)}
        results.append(entry)
    if as_json:
        print_json(results)
    else:
        for entry in results:
            out.print(f"{entry['file']}: {entry['bytes']:,} bytes{_compared(entry)}")
            if entry.get("first"):
                out.print(f"  first mismatch: {entry['first']}")
    return 1 if any(entry.get("mismatches") for entry in results) else 0


def _form(name: str, option: str = "--form") -> Form:
    from sterna.export.graph.metadata import Form
    if name not in list(Form):
        raise ValueError(f"{option} must be {_FORMS}, got {name!r}")
    return Form(name)


def _compared(entry: dict[str, Any]) -> str:
    if "decibels" in entry:
        return f"; logits {entry['decibels']:.1f} dB from the reference"
    if "values" in entry:
        return f"; {entry['values']:,} values compared, {entry['mismatches']} mismatches"
    return ""


def open_model(
    model: str, *, form: str | None = None, option: str = "--form", prompts: bool = True,
    threads: int = 1, ops: Path | None = None,
) -> Session:
    """Load ``model``: an ONNX file as it is, a quantised model in a form.

    ``option`` is what messages call the form; without ``prompts`` a quantised model gets no
    sequence graph.

    Raises
    ------
    ValueError
        If the model or the form cannot be used, or a form is asked of an ONNX file.
    """
    from sterna.export.forms.forms import build
    from sterna.export.graph.metadata import GraphKind
    from sterna.export.runtime.session import Session
    if model.endswith(".onnx"):
        if form is not None:
            raise ValueError(
                f"{option} goes with a quantised model; {model} has its form already")
        return Session(model, threads=threads, ops=ops)
    kind = _form(form or "exact", option)
    loaded = load_model(model)
    return Session(
        build(loaded, kind, GraphKind.STEP),
        sequence=build(loaded, kind, GraphKind.SEQUENCE) if prompts else None,
        threads=threads, ops=ops)


def _library(
    built: bool, path: Path | None, quiet: bool, model: str, form: str | None,
) -> Path | None:
    """The library of operators: the file at ``path``, or the one built here if asked for."""
    if path is not None or not built:
        return path
    from sterna.export.runtime.arguments import check_ops_form
    from sterna.export.runtime.runtime import read_graph
    # Refused before it is compiled, not after.
    check_ops_form(read_graph(model)[1].form if model.endswith(".onnx")
                   else _form(form or "exact"), model)
    from sterna.export.native.build import build_ops
    display, move = progress_bar("compiling the operators", quiet)
    with display:
        return build_ops(progress=move)


def generate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help="Quantised file, tiny, or a step graph ending in .onnx.")],
    prompt: Annotated[list[str] | None, typer.Option(
        help="Text to continue; several are continued side by side. [default: 'The ']")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens (bytes) to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(
        help="Draw only from the K most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(
        help="Draw from the fewest tokens whose probabilities add up to this.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the writing.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    form: Annotated[str | None, typer.Option(
        help=f"Form of a quantised model: {_FORMS}. [default: exact]")] = None,
    ops: Annotated[bool, typer.Option(
        "--ops", help="Use compiled operators; they are built the first time.")] = False,
    ops_library: Annotated[Path | None, typer.Option(
        help="Use the compiled operators in this file, from sterna build-ops.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of one operator.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="The text alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Continue a text with an ONNX graph under onnxruntime.

    Example: sterna generate tiny --prompt "The for statement" --tokens 300
    """
    prompts = prompt or ["The "]
    session = open_model(
        model, form=form, threads=threads,
        ops=_library(ops, ops_library, quiet, model, form))
    pieces = session.generate(
        prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        stop=stop or (), seed=seed)
    stream = len(prompts) == 1 and not as_json
    if stream:
        write(prompts[0])
    texts = [""] * len(prompts)
    drawn: list[list[int]] = [[] for _ in prompts]
    started = time.perf_counter()
    for piece in pieces:
        texts[piece.prompt] += piece.text
        drawn[piece.prompt].append(piece.token)
        if stream:
            write(piece.text)
    seconds = time.perf_counter() - started
    written = sum(map(len, drawn))
    if as_json:
        results = [
            {"prompt": text, "text": after, "tokens": tokens_drawn, "temperature": temperature,
             "seed": seed + index}
            for index, (text, after, tokens_drawn) in enumerate(
                zip(prompts, texts, drawn, strict=True))]
        print_json(results[0] if len(results) == 1 else results)
        return 0
    if not stream:
        for text, after in zip(prompts, texts, strict=True):
            write(f"{text}{after}\n\n")
    else:
        write("\n")
    say(f"{written} tokens in {seconds:.2f} s, {written / seconds:,.0f} tokens/s", quiet)
    return 0


COMMANDS = (export, generate)
