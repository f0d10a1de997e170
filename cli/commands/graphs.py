"""ONNX files: ``sterna export``, ``generate``, ``web`` and ``build-ops``.

Export and generate take a quantised model, or a checkpoint: the float model of any mixers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, progress_bar, say, write
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    QuietOption,
    check_file,
    choose,
    complete_model,
    is_checkpoint,
)
from sterna.cli.terminal.texts import check_prompts, tokens_of
from sterna.model.checks import whole_number
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.export.graph.metadata import Form
    from sterna.export.runtime.generate import Piece
    from sterna.export.runtime.session import Session
import math
from dataclasses import asdict

from sterna.cli.terminal.options import ModelArgument, check_folder
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import TextStream

__all__ = ["COMMANDS", "build_ops", "export", "generate", "open_model", "web"]

_FORMS = "exact, exact-2bit, fast, web, traced or float32"
_MOST_TOKENS = 1 << 16
"""Of a comparison: full attention has the square of them in memory."""


def export(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, or a checkpoint ending in .pt, or its folder.",
        autocompletion=complete_model)],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Step graph to write, NAME.onnx; the sequence graph goes to "
                               "NAME.sequence.onnx. Of a checkpoint the folder for both.")],
    form: Annotated[str | None, typer.Option(
        help=f"How the arithmetic of a quantised model is spelled: {_FORMS}. [default: exact]")
        ] = None,
    graphs: Annotated[str, typer.Option(
        help="Which graphs to write: step, sequence or both.")] = "both",
    check: Annotated[int, typer.Option(
        help="Compare this many tokens of the held-out text with the reference; 0 skips it. Of a "
             "checkpoint, of a random text with torch.")] = 256,
    linear_attention: Annotated[bool, typer.Option(
        "--linear-attention",
        help="Of a checkpoint: recurrences by onnxruntime's operator LinearAttention, where it "
             "fits.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write the ONNX graphs of a model and check them.

    Those of a quantised model are compared with the integer reference on held-out text; those of a
    checkpoint, of any mixers and in floats, with torch. Exits with 1 if an exact form differs, or
    a checkpoint's graph by more than 1e-4.

    Example: sterna export tiny -o build/tiny.onnx --form exact
    """
    from sterna.export.forms.forms import GraphChoice, check_graph_name, export_onnx
    from sterna.export.runtime.check import check_close, check_exact
    wanted = GraphChoice(choose("--graphs", graphs, [each.value for each in GraphChoice]))
    if is_checkpoint(model):
        if form is not None:
            raise ValueError(f"--form goes with a quantised model; {model} is a checkpoint, whose "
                             f"graphs are in floats")
        return _export_checkpoint(
            model, output, wanted.value, check=check, use_linear_attention=linear_attention,
            quiet=quiet, as_json=as_json)
    if linear_attention:
        raise ValueError("--linear-attention goes with a checkpoint, which ends in .pt, or "
                         "its folder")
    check_file(output)
    kind = _form("exact" if form is None else form)
    loaded = load_model(model)
    tokens = tokens_of(None, check, loaded, "--check") if check else None
    check_graph_name(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    with Stages(quiet) as stage:
        stage(f"write the form {kind}", quick=True)
        for path in export_onnx(loaded, output, form=kind, graphs=wanted):
            entry: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size}
            results.append(entry)
            if tokens is None:
                continue
            stage(f"compare {path} with the reference over {check} tokens")
            if kind.exact:
                report = check_exact(loaded, path, tokens[None, :])
                entry |= {"tokens": report.tokens, "values": report.total.values,
                          "mismatches": report.total.mismatches,
                          "first": str(report.first) if report.first else None}
            else:
                entry |= {"tokens": check,
                          "decibels": round(check_close(loaded, path, tokens[None, :]), 1)}
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
    return Form(choose(option, name, Form))


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
    sequence graph. Raises ValueError if the model or the form cannot be used, or a form is asked of
    an ONNX file.
    """
    from sterna.export.forms.forms import build
    from sterna.export.graph.metadata import GraphKind
    from sterna.export.runtime.session import Session
    if model.endswith(".onnx"):
        if form is not None:
            raise ValueError(
                f"{option} goes with a quantised model; {model} has its form already")
        return Session(model, threads=threads, ops=ops)
    kind = _form("exact" if form is None else form, option)
    loaded = load_model(model)
    return Session(
        build(loaded, kind, GraphKind.STEP),
        sequence=build(loaded, kind, GraphKind.SEQUENCE) if prompts else None,
        threads=threads, ops=ops)


def _library(
    built: bool, path: Path | None, quiet: bool, model: str, form: str | None,
    prompts: Sequence[str],
) -> Path | None:
    """The library of operators: the file at ``path``, or the one built here if asked for."""
    if path is not None or not built:
        return path
    from sterna.export.runtime.runtime import check_ops_form, read_graph
    # What cannot be used is refused before they are compiled, not after.
    if model.endswith(".onnx"):
        info = read_graph(model)[1]
        kind, config = info.form, info.config
    else:
        kind, config = _form("exact" if form is None else form), load_model(model).config
    check_ops_form(kind, model)
    check_prompts(prompts, config.vocab)
    from sterna.export.native.ops import build_ops
    display, move = progress_bar("compiling the operators", quiet)
    with display:
        return build_ops(progress=move)


def generate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, a step graph ending in .onnx, or a checkpoint "
                              "ending in .pt or its folder (the float model).")],
    prompt: Annotated[list[str] | None, typer.Option(
        help="Text to continue; several are continued side by side. [default: 'The ']")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(
        help="Draw only from the K most likely tokens.", metavar="K")] = None,
    top_p: Annotated[float | None, typer.Option(
        metavar="P",
        help="Draw only from the most likely tokens whose probabilities add up to P.")] = None,
    stop: Annotated[list[str] | None, typer.Option(
        help="End a text before this string; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    form: Annotated[str | None, typer.Option(
        help=f"Form of a quantised model: {_FORMS}. [default: exact]")] = None,
    ops: Annotated[bool, typer.Option(
        "--ops", help="Use compiled operators, which are built the first time.")] = False,
    ops_library: Annotated[Path | None, typer.Option(
        help="Use the compiled operators in this file, from sterna build-ops.")] = None,
    threads: Annotated[int, typer.Option(help="Threads that one operator may use.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the text alone.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Continue a text with an ONNX graph or a checkpoint.

    Example: sterna generate tiny --prompt "The for statement" --tokens 300
    """
    from sterna.export.runtime.generate import seed_of, stop_strings
    from sterna.export.runtime.runtime import thread_count
    from sterna.model.quantized.sampling import Sampler
    prompts = prompt or ["The "]
    whole_number("--tokens", tokens, 1)
    thread_count(threads)
    stop_strings(stop or ())
    Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if is_checkpoint(model):
        for name, given in (("--form", form), ("--ops", ops), ("--ops-library", ops_library),
                            ("--stop", stop), ("--threads", threads != 1)):
            if given:
                raise ValueError(f"{name} goes with a quantised model or a graph; {model} is a "
                                 f"checkpoint, whose float model torch runs")
        return _generate_from_checkpoint(
            model, prompts, tokens, [Sampler(
                temperature=temperature, top_k=top_k, top_p=top_p, seed=seed_of(seed, index))
                for index in range(len(prompts))], quiet=quiet, as_json=as_json)
    library = _library(ops, ops_library, quiet, model, form, prompts)
    with Stages(quiet) as stage:
        stage(f"load {model}", quick=True)
        session = open_model(model, form=form, threads=threads, ops=library)
    check_prompts(prompts, session.info.config.vocab)
    pieces = session.generate(
        prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        stop=stop or (), seed=seed)
    started = time.perf_counter()
    if as_json or len(prompts) > 1:
        display, move = progress_bar("writing", quiet)
        with display:
            texts, drawn = _collect(pieces, len(prompts), tokens, move)
    else:
        texts, drawn = _stream(pieces, prompts[0])
    seconds = time.perf_counter() - started
    if as_json:
        results = [
            {"prompt": text, "text": after, "tokens": tokens_drawn, "temperature": temperature,
             "seed": seed_of(seed, index)}
            for index, (text, after, tokens_drawn) in enumerate(
                zip(prompts, texts, drawn, strict=True))]
        print_json(results[0] if len(results) == 1 else results)
        return 0
    if len(prompts) > 1:
        for text, after in zip(prompts, texts, strict=True):
            write(f"{text}{after}\n\n")
    written = sum(map(len, drawn))
    say(f"{written} tokens in {seconds:.2f} s, {written / seconds:,.0f} tokens/s", quiet)
    return 0


def _collect(
    pieces: Iterator[Piece], count: int, tokens: int, progress: Callable[[int, int], None],
) -> tuple[list[str], list[list[int]]]:
    """The text and the tokens after each of ``count`` prompts, at most ``tokens`` of each."""
    texts = [""] * count
    drawn: list[list[int]] = [[] for _ in range(count)]
    for piece in pieces:
        texts[piece.prompt] += piece.text
        drawn[piece.prompt].append(piece.token)
        progress(sum(map(len, drawn)), tokens * count)
    return texts, drawn


def _stream(pieces: Iterator[Piece], prompt: str) -> tuple[list[str], list[list[int]]]:
    """The same for one prompt, written as it comes."""
    text, drawn = "", []
    write(prompt)
    for piece in pieces:
        text += piece.text
        drawn.append(piece.token)
        write(piece.text)
    write("\n")
    return [text], [drawn]


# Checkpoints --------------------------------------------------------------------------


def _export_checkpoint(
    path: str, folder: Path, graphs: str, *, check: int, use_linear_attention: bool, quiet: bool,
    as_json: bool,
) -> int:
    """Write the graphs to a folder and compare them with torch; return the exit code."""
    whole_number("--check", check, 0, _MOST_TOKENS)
    if folder.suffix == ".onnx":
        raise ValueError(f"--output of a checkpoint is a folder, for step.onnx and sequence.onnx; "
                         f"got {folder}")
    check_folder(folder)
    results: list[dict[str, Any]] = []
    failed = False
    with Stages(quiet) as stage:
        stage(f"load {path}", quick=True)
        from sterna.model.onnx_float.check import LARGEST_DIFFERENCE, check_float
        from sterna.model.onnx_float.writer import GRAPHS, export_float
        from sterna.model.training.checkpoint import load_checkpoint
        model = load_checkpoint(path).model()
        stage(f"trace {model.config.mixer} in float32")
        files = export_float(
            model, folder, graphs=GRAPHS if graphs == "both" else (graphs,),
            use_linear_attention=use_linear_attention)
        for file in files:
            entry: dict[str, Any] = {"file": str(file), "bytes": file.stat().st_size}
            results.append(entry)
            if check:
                stage(f"compare {file} with torch")
                report = check_float(model, file, tokens=check)
                entry |= {**asdict(report), "allowed": LARGEST_DIFFERENCE}
                failed |= not report.close
    if as_json:
        for entry in results:
            if entry.get("difference") == math.inf:
                entry["difference"] = None
        print_json(results)
    else:
        for entry in results:
            out.print(f"{entry['file']}: {entry['bytes']:,} bytes{_compared_with_torch(entry)}")
    return 1 if failed else 0


def _compared_with_torch(entry: dict[str, Any]) -> str:
    if "tokens" not in entry:
        return ""
    if entry["difference"] == math.inf:
        return f"; not what torch computes: {entry['where']}"
    text = f"; {entry['difference']:.1e} from torch at most"
    if entry["where"]:      # nothing differs otherwise
        text += f", {entry['where']}"
    if entry["difference"] > entry["allowed"]:
        text += f", and {entry['allowed']:g} is allowed"
    if entry["codes"]:
        text += f"; {entry['flipped']} of {entry['codes']:,} 8-bit codes rounded the other way"
    if entry["flipped"]:
        text += f", from {entry['farthest']:.0e} beside a half"
    if entry["missing"]:
        text += f"; {entry['missing']} roundings of torch are not in the graph"
    return text


def _generate_from_checkpoint(
    path: str, prompts: Sequence[str], tokens: int, samplers: Sequence[Sampler], *,
    quiet: bool, as_json: bool,
) -> int:
    """Continue every prompt, one after the other; ``samplers`` has one for each."""
    from sterna.export.runtime.generate import prompt_tokens
    with Stages(quiet) as stage:
        stage(f"load {path}", quick=True)
        from sterna.model.stack.evaluate import sample_tokens
        from sterna.model.training.checkpoint import load_checkpoint
        checkpoint = load_checkpoint(path)
        model = checkpoint.model()
        tokenizer = fitted(checkpoint.tokenizer, model.config.vocab)
    check_prompts(prompts, model.config.vocab)
    rows = [prompt_tokens(prompt, tokenizer) for prompt in prompts]
    for block in model.blocks():    # before anything is written
        block.mixer.check_length(max(row.size for row in rows))
    results: list[dict[str, Any]] = []
    for prompt, row, sampler in zip(prompts, rows, samplers, strict=True):
        drawn: list[int] = []
        found = sample_tokens(model, row, tokens=tokens, sampler=sampler,
                              end_of_text=tokenizer.end_of_text)
        text = ""
        if not as_json:
            write(prompt)
        for piece in _texts(found, drawn, TextStream(tokenizer)):
            text += piece
            if not as_json:
                write(piece)
        if not as_json:
            write("\n" if prompt is prompts[-1] else "\n\n")
        results.append({"prompt": prompt, "text": text, "tokens": drawn})
    if as_json:
        print_json(results[0] if len(results) == 1 else results)
    return 0


def _texts(found: Iterator[int], drawn: list[int], stream: TextStream) -> Iterator[str]:
    """The text of the tokens, as far as it is certain; the tokens go to ``drawn``."""
    for token in found:
        drawn.append(token)
        yield stream.add([token])
    yield stream.end()


# A web page, and compiled operators ---------------------------------------------------


def web(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    check: Annotated[int, typer.Option(
        help="How many tokens of the integer reference to record, for the page to compare "
             "its own with.")] = 64,
    ort: Annotated[Path | None, typer.Option(
        help="Folder of the unpacked npm package onnxruntime-web. Default: taken from the "
             "cache, or else fetched with npm.")] = None,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page's params.json.")] = False,
) -> int:
    """Write a web page in which the model writes text.

    It is a folder of files for any static web server, and needs no network.

    Example: sterna web tiny -o build/page
    """
    from sterna.export.web.page import write_page
    check_folder(output)
    with Stages(quiet) as stage:
        stage(f"write {output}", quick=True)
        page = write_page(load_model(model), output, check_tokens=check, runtime=ort)
    if as_json:
        print_json(dict(page.manifest))
        return 0
    for path in sorted(page.folder.iterdir()):
        out.print(f"{path}: {path.stat().st_size:,} bytes")
    say(f"to see it: python -m http.server 8000 -d {output}, then open http://localhost:8000",
        quiet)
    return 0


def build_ops(
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR",
        help="Folder of the library. Default: a folder in your cache.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compile the fast operators for onnxruntime.

    They are optional, and need g++.

    Example: sterna build-ops
    """
    from sterna.export.native.ops import build_ops as build
    from sterna.export.native.ops import kernel_name
    if output is not None:
        check_folder(output)
    display, move = progress_bar("compiling the operators", quiet)
    with display:
        library = build(output, progress=move)
    kernel = kernel_name(library)
    if as_json:
        print_json({"library": str(library), "kernel": kernel})
    else:
        out.print(f"{library}\nkernel: {kernel}")
    return 0


COMMANDS = (export, generate, web, build_ops)
