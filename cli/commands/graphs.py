"""ONNX files and C: ``sterna export``, ``generate``, ``web`` and ``build-ops``.

Export and generate take a quantised model, or a checkpoint: the float model of any mixers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import (
    Stages,
    out,
    print_files,
    print_json,
    progress_bar,
    say,
    write,
)
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    ModelArgument,
    QuietOption,
    check_file,
    check_folder,
    choose,
    complete_model,
    is_checkpoint,
    refuse,
)
from sterna.cli.terminal.texts import check_prompts, tokens_of
from sterna.model.checks import whole_number
from sterna.model.quantized import load_model
from sterna.model.quantized.sampling import Sampler
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import TextStream

if TYPE_CHECKING:
    import numpy as np

    from sterna.export.graph.metadata import Form
    from sterna.export.runtime.generate import Piece
    from sterna.export.runtime.session import Session
    from sterna.model.quantized import QuantizedModel
    from sterna.model.quantized.compare import Comparison

__all__ = ["COMMANDS", "build_ops", "export", "generate", "open_model", "web"]

_FORMS = "exact or fast"
_C = "c"
_MOST_TOKENS = 1 << 16
"""Limit of a comparison: full attention needs memory for the square of them."""


def export(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, or a checkpoint (.pt) or its folder.",
        autocompletion=complete_model)],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="File to write, NAME.onnx. For the form c, or a checkpoint: folder "
                               "to write.")],
    form: Annotated[str | None, typer.Option(
        help="Form of a quantised model: exact, fast, or c for C99. [default: exact]")] = None,
    one_token: Annotated[bool, typer.Option(
        "--one-token", help="Write a graph that takes one token a call and has no loop, for "
                            "compilers of static graphs.")] = False,
    graphs: Annotated[str | None, typer.Option(
        help="For a checkpoint: step, sequence or both. [default: both]")] = None,
    check: Annotated[int, typer.Option(
        help="Compare this many tokens of the held-out text, or for a network frames, with the "
             "reference, or for a checkpoint this many random tokens with torch; 0 skips the "
             "check.")] = 256,
    linear_attention: Annotated[bool, typer.Option(
        "--linear-attention", help="For a checkpoint: write recurrences as onnxruntime's operator "
                                   "LinearAttention where possible.")] = False,
    name: Annotated[str | None, typer.Option(
        help="For c: beginning of every name in C. [default: model]")] = None,
    blob: Annotated[bool, typer.Option(
        "--blob", help="For c: write the weights to NAME.bin, and not as C.")] = False,
    ram: Annotated[int | None, typer.Option(
        metavar="BYTES", help="For c: refuse a model whose state and scratch take more.")] = None,
    flash: Annotated[int | None, typer.Option(
        metavar="BYTES", help="For c: refuse a model whose weights take more.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write a model as an ONNX graph, or as C99, and check it.

    What is written of a quantised model is compared with the integer reference on held-out text,
    the graphs of a checkpoint (any mixers, in float32) with torch. Exits with 1 if an exact form or
    C differs, or if a checkpoint's graph differs by more than 1e-4.

    Example: sterna export tiny -o build/tiny.onnx --form exact
    """
    with Stages(quiet) as stage:
        if form != _C:
            refuse("goes with --form c", name=name, blob=blob, ram=ram, flash=flash)
        if is_checkpoint(model):
            refuse(f"goes with a quantised model; {model} is a checkpoint, whose graphs are in "
                   f"floats", form=form, one_token=one_token)
            wanted = choose("--graphs", graphs or "both", ["step", "sequence", "both"])
            found = _export_checkpoint(
                model, output, ("step", "sequence") if wanted == "both" else (wanted,), check,
                linear_attention, stage)
        else:
            refuse("goes with a checkpoint, which ends in .pt, or its folder",
                   linear_attention=linear_attention, graphs=graphs)
            from sterna.export.graph.metadata import Form
            kind = choose("--form", form or "exact", (*Form, _C))
            if kind == _C:
                refuse("goes with an ONNX graph", one_token=one_token)
                found = _export_c(model, output, name or "model", blob, ram, flash, check, stage)
            else:
                found = _export_quantized(model, output, Form(kind), one_token, check, stage)
        entries = list(found)
    failed = [entry.pop("failed") for entry in entries]
    texts = [entry.pop("text") for entry in entries]
    if as_json:
        print_json(entries)
    else:
        for entry, text in zip(entries, texts, strict=True):
            out.print(f"{entry['file']}: {entry['bytes']:,} bytes{text}")
    return int(any(failed))


def _entry(path: Path) -> dict[str, Any]:
    return {"file": str(path), "bytes": path.stat().st_size, "failed": False, "text": ""}


def _export_quantized(
    model: str, output: Path, form: Form, one_token: bool, check: int, stage: Stages,
) -> Iterator[dict[str, Any]]:
    """Write and compare the graph; yield its report entries."""
    from sterna.export.forms.forms import check_graph_name, export_onnx
    from sterna.export.runtime.check import check_close, check_exact
    check_file(output)
    loaded = load_model(model)
    steps = _steps(loaded, check)
    check_graph_name(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    stage(f"write the form {form}", quick=True)
    path = export_onnx(loaded, output, form=form, one_token=one_token)
    entry = _entry(path)
    if steps is not None:
        stage(f"compare {path} with the reference over {check} {loaded.entry.name}")
    if steps is not None and form.exact:
        report = check_exact(loaded, path, steps)
        entry |= _compared(report.total, report.tokens)
    elif steps is not None:
        decibels = round(check_close(loaded, path, steps), 1)
        entry |= {"tokens": check, "decibels": decibels,
                  "text": f"; logits {decibels:.1f} dB from the reference"}
    yield entry


def _steps(model: QuantizedModel, check: int) -> np.ndarray | None:
    """Held-out tokens to compare, or frames, ``[1, check, ...]``; None for no comparison."""
    from sterna.export.forms.selftest import sample_steps
    if not check:
        return None
    if model.is_network:
        return sample_steps(model.entry, 1, whole_number("--check", check, 1, _MOST_TOKENS))
    return tokens_of(None, check, model, "--check")[None, :]


def _compared(total: Comparison, tokens: int, text: str = "") -> dict[str, Any]:
    """The report entries of a comparison; its text follows ``text``."""
    first = str(total.first) if total.first else None
    return {"tokens": tokens, "values": total.values, "mismatches": total.mismatches,
            "first": first, "failed": total.mismatches > 0,
            "text": f"{text}; {total.values:,} values compared, {total.mismatches} mismatches"
                    + (f"\n  first mismatch: {first}" if first else "")}


def _export_c(
    model: str, folder: Path, name: str, blob: bool, ram: int | None, flash: int | None,
    check: int, stage: Stages,
) -> Iterator[dict[str, Any]]:
    """The same for C."""
    from sterna.export.c.folder import export_c
    from sterna.export.c.library import check_c
    check_folder(folder)
    loaded = load_model(model)
    steps = _steps(loaded, check)
    stage(f"write {folder}", quick=True)
    facts = export_c(loaded, folder, name=name, blob=blob, ram=ram, flash=flash)
    text = f" of weights, {facts['state']:,} of state and {facts['scratch']:,} of scratch"
    entry = {"file": str(folder), "bytes": facts["weights"], "state": facts["state"],
             "scratch": facts["scratch"], "failed": False, "text": text}
    if steps is not None:
        stage(f"compile {folder}, and compare {check} {loaded.entry.name} with the reference")
        entry |= _compared(check_c(loaded, folder, steps), check, text)
    yield entry


def _export_checkpoint(
    path: str, folder: Path, graphs: Sequence[str], check: int, use_linear_attention: bool,
    stage: Stages,
) -> Iterator[dict[str, Any]]:
    """The same for a checkpoint, compared with torch."""
    whole_number("--check", check, 0, _MOST_TOKENS)
    if folder.suffix == ".onnx":
        raise ValueError(f"--output of a checkpoint is a folder, for step.onnx and sequence.onnx; "
                         f"got {folder}")
    check_folder(folder)
    stage(f"load {path}", quick=True)
    from sterna.model.torch.onnx_float.check import LARGEST_DIFFERENCE, check_float
    from sterna.model.torch.onnx_float.writer import export_float
    from sterna.model.torch.training.checkpoint import load_checkpoint
    model = load_checkpoint(path).model()
    stage(f"trace {model.config.mixer} in float32")
    for file in export_float(
            model, folder, graphs=graphs, use_linear_attention=use_linear_attention):
        entry = _entry(file)
        if check:
            stage(f"compare {file} with torch")
            report = check_float(model, file, tokens=check)
            entry |= {**asdict(report), "allowed": LARGEST_DIFFERENCE, "failed": not report.close}
            entry["text"] = _compared_with_torch(entry)
            if entry["difference"] == math.inf:
                entry["difference"] = None
        yield entry


def _compared_with_torch(entry: dict[str, Any]) -> str:
    if entry["difference"] == math.inf:
        return f"; not what torch computes: {entry['where']}"
    text = f"; {entry['difference']:.1e} from torch at most"
    if entry["where"]:      # empty if nothing differs
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


def _form(name: str, option: str = "--form") -> Form:
    from sterna.export.graph.metadata import Form
    return Form(choose(option, name, Form))


def open_model(
    model: str, *, form: str | None = None, option: str = "--form", threads: int = 1,
    ops: Path | None = None,
) -> Session:
    """Load ``model``: an ONNX file unchanged, or a quantised model in a form; ``option`` is its
    name in messages."""
    from sterna.export.forms.forms import build
    from sterna.export.runtime.session import Session
    if model.endswith(".onnx"):
        if form is not None:
            raise ValueError(f"{option} goes with a quantised model; {model} has its form already")
        return Session(model, threads=threads, ops=ops)
    kind = _form("exact" if form is None else form, option)
    return Session(build(load_model(model), kind), threads=threads, ops=ops)


def generate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, a graph (.onnx), or a checkpoint (.pt) or its "
                              "folder, which is the float model.")],
    prompt: Annotated[list[str] | None, typer.Option(
        help="Text to continue; several are continued in parallel. [default: 'The ']")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(
        metavar="K", help="Draw only from the K most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(
        metavar="P",
        help="Draw only from the most likely tokens whose probabilities add up to P.")] = None,
    stop: Annotated[list[str] | None, typer.Option(
        help="Stop before this string; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    form: Annotated[str | None, typer.Option(
        help=f"Form of a quantised model: {_FORMS}. [default: exact]")] = None,
    ops: Annotated[bool, typer.Option(
        "--ops", help="Use compiled operators; the first use compiles them.")] = False,
    ops_library: Annotated[Path | None, typer.Option(
        help="Use the operators that sterna build-ops compiled to this file.")] = None,
    threads: Annotated[int, typer.Option(help="Threads per operator.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the text alone.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Continue a text with an ONNX graph or a checkpoint.

    Example: sterna generate tiny --prompt "The for statement" --tokens 300
    """
    from sterna.export.runtime.generate import seed_of, stop_strings
    from sterna.export.runtime.runtime import thread_count
    prompts = prompt or ["The "]
    whole_number("--tokens", tokens, 1)
    thread_count(threads)
    stop_strings(stop or ())
    seeds = [seed, *(seed_of(seed, index) for index in range(1, len(prompts)))]
    samplers = [Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=each)
                for each in seeds]
    if is_checkpoint(model):
        refuse(f"goes with a quantised model or a graph; {model} is a checkpoint, whose float "
               f"model torch runs", form=form, ops=ops, ops_library=ops_library, stop=stop,
               threads=threads != 1)
        pieces = _pieces_of_checkpoint(model, prompts, tokens, samplers, quiet)
    else:
        library = _library(ops, ops_library, quiet, model, form, prompts)
        with Stages(quiet) as stage:
            stage(f"load {model}", quick=True)
            session = open_model(model, form=form, threads=threads, ops=library)
        check_prompts(prompts, session.info.tokenizer)
        pieces = session.generate(
            prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            stop=stop or (), seed=seed)
    started = time.perf_counter()
    if as_json or len(prompts) > 1:
        with progress_bar("writing", quiet) as move:
            texts, drawn = _collect(pieces, len(prompts), tokens, move)
    else:
        write(prompts[0])
        texts, drawn = _collect(_as_written(pieces), 1, tokens)
        write("\n")
    seconds = time.perf_counter() - started
    if as_json:
        results = [{"prompt": text, "text": after, "tokens": row, "temperature": temperature,
                    "seed": each} for text, after, row, each in zip(
                        prompts, texts, drawn, seeds, strict=True)]
        print_json(results[0] if len(results) == 1 else results)
        return 0
    if len(prompts) > 1:
        for text, after in zip(prompts, texts, strict=True):
            write(f"{text}{after}\n\n")
    written = sum(map(len, drawn))
    say(f"{written} tokens in {seconds:.2f} s, {written / seconds:,.0f} tokens/s", quiet)
    return 0


def _library(
    built: bool, path: Path | None, quiet: bool, model: str, form: str | None,
    prompts: Sequence[str],
) -> Path | None:
    """The library of operators: the file at ``path``, or one built here on request."""
    if path is not None or not built:
        return path
    from sterna.export.graph.file import OnnxFile
    from sterna.export.runtime.runtime import check_ops_form
    # Refuse unusable arguments before the operators are compiled.
    if model.endswith(".onnx"):
        info = OnnxFile.read(model).info
        kind, entry, tokenizer = info.form, info.entry, info.tokenizer
    else:
        loaded = load_model(model)
        kind = _form("exact" if form is None else form)
        entry, tokenizer = loaded.entry, loaded.tokenizer
    check_ops_form(kind, entry, model)
    check_prompts(prompts, tokenizer)
    from sterna.export.native.ops import build_ops
    with progress_bar("compiling the operators", quiet) as move:
        return build_ops(progress=move)


def _collect(
    pieces: Iterable[Piece], count: int, tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[str], list[list[int]]]:
    """The text and the tokens after each of ``count`` prompts, at most ``tokens`` each."""
    texts = [""] * count
    drawn: list[list[int]] = [[] for _ in range(count)]
    for piece in pieces:
        texts[piece.prompt] += piece.text
        drawn[piece.prompt].append(piece.token)
        progress(sum(map(len, drawn)), tokens * count)
    return texts, drawn


def _as_written(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        write(piece.text)
        yield piece


def _pieces_of_checkpoint(
    path: str, prompts: Sequence[str], tokens: int, samplers: Sequence[Sampler], quiet: bool,
) -> Iterator[Piece]:
    """Continue the prompts one after the other; errors in any are raised before the first."""
    from sterna.export.runtime.generate import Piece, prompt_tokens
    with Stages(quiet) as stage:
        stage(f"load {path}", quick=True)
        from sterna.model.torch.stack.evaluate import sample_tokens
        from sterna.model.torch.training.checkpoint import load_checkpoint
        checkpoint = load_checkpoint(path)
        model = checkpoint.model()
        tokenizer = fitted(checkpoint.tokenizer, model.config.vocab)
    check_prompts(prompts, tokenizer)
    rows = [prompt_tokens(prompt, tokenizer) for prompt in prompts]
    for block in model.blocks():
        block.mixer.check_length(max(row.size for row in rows))

    def write_all() -> Iterator[Piece]:
        for index, (row, sampler) in enumerate(zip(rows, samplers, strict=True)):
            stream = TextStream(tokenizer)
            last: Piece | None = None
            for token in sample_tokens(model, row, tokens=tokens, sampler=sampler,
                                       end_of_text=tokenizer.end_of_text):
                if last is not None:
                    yield last
                last = Piece(index, token, stream.add([token]))
            if last is not None:
                yield replace(last, text=last.text + stream.end())

    return write_all()


def web(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page's params.json.")] = False,
) -> int:
    """Write a web page in which a model runs.

    A language model writes text; a network runs over a series that you draw, type or open. The page
    is a folder for any static web server, and opens without a network after one visit.

    Example: sterna web tiny -o build/page
    """
    from sterna.export.web.page import write_page
    check_folder(output)
    with Stages(quiet) as stage:
        stage(f"write {output}", quick=True)
        params = write_page(load_model(model), output)
    if as_json:
        print_json(dict(params))
        return 0
    print_files(sorted(output.iterdir()))
    say(f"to see it: python -m http.server 8000 -d {output}, then open http://localhost:8000",
        quiet)
    return 0


def build_ops(
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR",
        help="Folder for the library. Default: a folder in your cache.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compile the fast operators for onnxruntime.

    They are optional, and need g++.

    Example: sterna build-ops
    """
    from sterna.export.native.ops import build_ops as build
    from sterna.export.native.ops import kernel_name
    check_folder(output)
    with progress_bar("compiling the operators", quiet) as move:
        library = build(output, progress=move)
    kernel = kernel_name(library)
    if as_json:
        print_json({"library": str(library), "kernel": kernel})
    else:
        out.print(f"{library}\nkernel: {kernel}")
    return 0


COMMANDS = (export, generate, web, build_ops)
