"""``sterna evaluate`` and ``sterna info``: the quality of a model, and its file's contents."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sterna.cli.terminal.console import Stages, out, print_json, progress_bar, say
from sterna.cli.terminal.options import MODEL_HELP, JsonOption, QuietOption, is_checkpoint, refuse
from sterna.cli.terminal.tables import Table
from sterna.cli.terminal.texts import beginning, recordings_of, text_of
from sterna.model.corpus import BUILTIN_NAME
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.records import records_to_json
from sterna.model.tokens.files import fitted
from sterna.model.tokens.tokenizer import BYTES, NUMBERS

if TYPE_CHECKING:
    from sterna.export.graph.metadata import GraphInfo
    from sterna.model.quantized.recordings import Runs

__all__ = ["COMMANDS", "evaluate", "info"]

_BUNDLED_TEXT = "the bundled held-out text"


def evaluate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, a step graph (.onnx), or a checkpoint (.pt) or its "
                              "folder, which is the float model.")],
    onnx: Annotated[str | None, typer.Option(
        "--onnx", metavar="FORM", help="Use the model's ONNX graph of this form instead of the "
                                       "integer reference.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text. Default: for a checkpoint the held-out part of its training text, if "
             "available, else the held-out text of the bundled models.")] = None,
    limit: Annotated[int | None, typer.Option(
        "--bytes", metavar="N", help="Use only the first N bytes of the text.")] = None,
    sequences: Annotated[int, typer.Option(
        help="Parts of the text to read in parallel, each with its own state.")] = 16,
    recordings: Annotated[Path | None, typer.Option(
        "--data", metavar="DATA.npz",
        help="For a network: labelled recordings. Default: those held out of the training of the "
             "bundled network.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Measure a model on held-out text, or a network on recordings.

    Prints bits per byte, or how many recordings are right, computed by the integer reference, by an
    ONNX graph or by the float model of a checkpoint, and names the text.

    Example: sterna evaluate tiny --bytes 4096
    """
    from sterna.model.quantized.evaluate import evaluate as run_evaluation
    from sterna.model.quantized.evaluate import evaluate_steps
    if limit is not None and limit < 2:
        raise ValueError(f"--bytes must be at least 2, got {limit}")
    if sequences < 1:
        raise ValueError(f"--sequences must be at least 1, got {sequences}")
    measured, trained_on = _BUNDLED_TEXT if text is None else str(text), None
    network = None if is_checkpoint(model) else _network(model)
    if network is not None:
        refuse(f"goes with a language model; {model} is a network", text=text, bytes=limit)
        return _evaluate_network(model, network, onnx, recordings, quiet, as_json)
    refuse(f"goes with a network; {model} is a language model", data=recordings)
    if is_checkpoint(model):
        if onnx is not None:
            raise ValueError(
                "--onnx goes with a quantised model: quantise the checkpoint first, with "
                "sterna quantize")
        with Stages(quiet) as stage:
            stage("load torch", quick=True)
            from sterna.model.torch.training.checkpoint import load_checkpoint
            from sterna.model.torch.training.heldout import heldout_of_run
            from sterna.model.torch.training.quantize import evaluate_checkpoint
            checkpoint = load_checkpoint(model)
            tokenizer = fitted(checkpoint.tokenizer, checkpoint.config.vocab)
            own = None if text is not None else heldout_of_run(checkpoint)
            if own is not None:
                data = beginning(own, limit, tokenizer)
                measured = f"the held-out part of {checkpoint.corpus_name}"
            else:
                data = text_of(text, tokenizer, limit)
                trained_on = checkpoint.corpus_name
            stage("evaluating")
            result = evaluate_checkpoint(
                checkpoint, data, sequences=sequences,
                progress=lambda done, total: stage.detail(f"{done / total:.0%}"))
        name = "float"
    elif onnx is not None or model.endswith(".onnx"):
        from sterna.cli.commands.graphs import open_model
        with Stages(quiet) as stage:
            stage(f"load {model}", quick=True)
            session = open_model(model, form=onnx, option="--onnx")
        tokenizer = session.info.tokenizer
        data = text_of(text, tokenizer, limit)
        frac = session.info.logit.frac if session.info.exact else 0
        with progress_bar("evaluating", quiet) as move:
            result = evaluate_steps(
                session, data, frac=frac, sequences=sequences, progress=move,
                tokenizer=tokenizer)
        name = f"{session.info.profile}, ONNX form {session.info.form}"
    else:
        loaded = load_model(model)
        tokenizer = loaded.tokenizer
        data = text_of(text, tokenizer, limit)
        with progress_bar("evaluating", quiet) as move:
            result = run_evaluation(loaded, data, sequences=sequences, progress=move)
        name = loaded.profile_name
        trained_on = _trained_on(loaded)
        if result.saturated and not loaded.is_own:
            most = max(result.saturated, key=lambda each: result.saturated[each])
            say(f"{sum(result.saturated.values()):,} values left their formats, most of them in "
                f"{most}: convert with a --calibrate text that is more like this one")
    if trained_on is not None and text is None:
        say(f"{model} was trained on another text, {trained_on}: --text names one to measure on")
    if as_json:
        print_json({"bits_per_byte": result.bits_per_byte, "predictions": result.predictions,
                    "saturated": dict(result.saturated), "text": measured})
    else:
        unit = "token" if tokenizer.kind == NUMBERS.kind else "byte"
        out.print(f"{result.bits_per_byte:.4f} bits per {unit} over {result.predictions:,} "
                  f"predictions of {measured} ({name})")
    return 0


def _network(model: str) -> QuantizedModel | GraphInfo | None:
    """The network, or the metadata of its graph; None for a language model."""
    if model.endswith(".onnx"):
        from sterna.export.graph.file import OnnxFile
        found: QuantizedModel | GraphInfo = OnnxFile.read(model).info
    else:
        found = load_model(model)
    return found if found.is_network else None


def _evaluate_network(
    name: str, network: QuantizedModel | GraphInfo, onnx: str | None, data: Path | None,
    quiet: bool, as_json: bool,
) -> int:
    """Print the number of correct recordings; return the exit code."""
    from sterna.cli.commands.graphs import open_model
    from sterna.model.quantized.integer import IntegerModel
    from sterna.model.quantized.recordings import accuracy
    with Stages(quiet) as stage:
        stage("read the recordings", quick=True)
        recordings = recordings_of(name, data)
        runs: Runs
        if onnx is None and isinstance(network, QuantizedModel):
            runs, by = IntegerModel(network), "integer reference"
        else:
            runs, by = open_model(name, form=onnx, option="--onnx"), "ONNX form exact"
        stage(f"run {len(recordings.labels)} recordings")
        found = accuracy(runs, recordings, network.integers)
    if found.clipped:
        say(f"{found.clipped} numbers are beyond the range of the network's input, and were "
            f"clipped")
    measured = "the bundled held-out recordings" if data is None else str(data)
    if as_json:
        print_json({"accuracy": found.share, **asdict(found), "data": measured})
    else:
        out.print(f"{found.share:.1%} right, {found.right} of {found.recordings} recordings of "
                  f"{measured} ({by})")
    return 0


def _trained_on(model: QuantizedModel) -> str | None:
    """The name of the text that a model was trained on, if known and not the built-in one."""
    training = model.provenance.get("training")
    corpus = training.get("corpus") if isinstance(training, dict) else None
    return corpus if isinstance(corpus, str) and not corpus.startswith(BUILTIN_NAME) else None


def info(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}, or an ONNX file from sterna export.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Show what is in a model file.

    For a quantised model its shape, number formats, matrices and provenance; for an ONNX file
    its metadata.

    Example: sterna info tiny
    """
    if model.endswith(".onnx"):
        return _graph_info(model, as_json)
    loaded = load_model(model)
    facts = _facts(loaded)
    if as_json:
        print_json(facts)
        return 0
    out.print(f"{model}: d {loaded.states[0].width}, {len(loaded.states)} layers, {loaded.entry}; "
              f"{facts['ternary_weights']:,} ternary weights; {facts['bytes']:,} bytes")
    out.print(f"sha256 {facts['sha256']}")
    if loaded.is_network:
        out.print(f"fraction bits of a frame: {', '.join(map(str, loaded.fraction_bits))}")
    elif loaded.tokenizer.kind != BYTES.kind:
        out.print(f"tokenizer: {loaded.tokenizer.kind}, sha256 {loaded.tokenizer.sha256}")
    if loaded.is_own:
        _print_profile(loaded.profile)
    Table("matrices", ("name", "rows", "columns", "non-zero", "k", "shift"), [
        (name, m["rows"], m["columns"], f"{m['nonzero']:.0%}", m["k"], m["shift"])
        for name, m in facts["projections"].items()]).print()
    for topic, entries in loaded.provenance.items():
        out.print(f"{topic}: {json.dumps(entries, indent=2)}")
    return 0


def _graph_info(path: str, as_json: bool) -> int:
    from sterna.export.graph.file import OnnxFile
    file = OnnxFile.read(path)
    found = file.info
    size = Path(path).stat().st_size
    if as_json:
        print_json({
            "one_token": found.one_token, "form": found.form.value, "exact": found.exact,
            "bytes": size, "nodes": len(file.proto.graph.node),
            **({"channels": found.entry.shape[0], "fraction_bits": found.fraction_bits}
               if found.is_network else {"vocab": found.vocab}),
            "state_shape": found.shape, "profile": found.profile, "logit": asdict(found.logit),
            "model_sha256": found.model_sha256, "sterna_version": found.sterna_version})
        return 0
    layers, d = found.shape
    out.print(f"{path}: d {d}, {layers} layers, {found.entry}; {size:,} bytes")
    step = found.entry.name
    length = f"one {step[:-1]}" if found.one_token else f"any number of {step}"
    out.print(f"graph of the form {found.form} for {length} a call, {len(file.proto.graph.node):,} "
              f"nodes, by Sterna {found.sterna_version}")
    out.print(f"of the quantised model with sha256 {found.model_sha256}")
    out.print(f"profile {found.profile}: {found.entry.result} with {found.logit.frac} fraction "
              f"bits, states of {found.state_format.bits} bits")
    return 0


def _print_profile(profile: NumericProfile) -> None:
    Table(f"profile {profile.name}", ("signal", "bits", "fraction bits", "range"), [
        (name, fmt.bits, fmt.frac, f"-{fmt.limit:g} to {fmt.limit:g}")
        for name, fmt in (
            ("residual x", profile.x), ("pre-activation z", profile.z), ("state h", profile.h),
            ("MLGRU output o", profile.o), ("GLU product p", profile.p),
            ("logits", profile.logit))]).print()


def _facts(model: QuantizedModel) -> dict[str, Any]:
    weights = [p.weight for p in model.projections.values()]
    return {
        "sha256": model.sha256, "bytes": len(model.to_bytes()),
        "ternary_weights": sum(weight.size for weight in weights),
        **({"fraction_bits": model.fraction_bits.tolist()} if model.is_network else
           {"tokenizer": {"kind": model.tokenizer.kind, "sha256": model.tokenizer.sha256}}),
        "profile": model.profile_name, "records": records_to_json(model.records),
        "projections": {
            name: {"rows": p.weight.shape[0], "columns": p.weight.shape[1],
                   "nonzero": float(np.mean(p.weight != 0)), "k": p.k, "shift": p.shift}
            for name, p in model.projections.items()},
        "provenance": model.provenance,
    }


COMMANDS = (evaluate, info)
