"""The comparison of mixers as tables of at most 80 characters, and its findings in sentences."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from sterna.cli.terminal.tables import Table

__all__ = ["Found", "findings", "order", "recall_bounds", "study_tables"]

Found: TypeAlias = dict[str, Any]
"""The result of :func:`sterna.model.torch.study.plan.summarize`."""

_COUNTED_AT = "1024"
"""The token to count where there is room for only one."""


def study_tables(found: Found) -> dict[str, Table]:
    """All non-empty tables by name: quality, distance, digits, cost, decode, state, core, sweep."""
    tables = {"quality": _quality(found), "distance": _distance(found),
              "digits": _digits(found), "cost": _cost(found),
              "decode": _by_length(found, "microseconds of a step, of all layers", "decode_us"),
              "state": _by_length(found, "bytes of state in float32, of all layers",
                                  "state_bytes"),
              "core": _core(found), "sweep": _sweep(found)}
    return {name: table for name, table in tables.items() if table.rows}


def order(found: Found, task: str, budget: str = "tokens") -> list[dict[str, Any]]:
    """The rows of a task, best first; those without a figure last."""
    figure = found["tasks"].get(task, {}).get("figure", "")
    sign = 1 if figure == "bpb" else -1

    def key(row: dict[str, Any]) -> float:
        mean = _mean(row, task, budget, figure)
        return float("inf") if mean is None else sign * mean

    return sorted((row for row in found["rows"] if task in row["tasks"]), key=key)


def findings(found: Found) -> list[str]:
    """Findings on MLGRU, the hybrid and the float Transformer, and on all rows."""
    said = []
    for task, figure, unit in (("text", "bpb", "bits per byte"),
                               ("recall", "accuracy", "of the answers right")):
        for budget in ("tokens", "seconds"):
            ours, base, hybrid = (_figures_of(found, name, task, budget, figure)
                                  for name in ("mlgru", "transformer", "hybrid"))
            if ours is None or base is None:
                continue
            more = "" if hybrid is None else f", hybrid {_number(figure, hybrid['mean'])}"
            said.append(
                f"At equal {budget} mlgru has {_number(figure, ours['mean'])}{more} and "
                f"transformer {_number(figure, base['mean'])} {unit}: "
                f"{_verdict(figure, ours, base)}.")
    edges = [f"{each['row']} on {each['task']}" for each in found["sweep"]
             if each["by_lr"] and not each["inside"]]
    if edges:
        said.append("The best learning rate is the lowest or highest of those that were tried: "
                    + ", ".join(edges) + ".")
    above = [row["name"] for row in order(found, "text") if row["below_unigram"] is False]
    measured = [row for row in found["rows"] if row["below_unigram"] is not None]
    if measured:
        entropy = f"{found['tasks']['text']['facts']['unigram']:.3f} bits per byte"
        said.append(f"Not below the unigram entropy of the text, {entropy}: {', '.join(above)}."
                    if above else f"All {len(measured)} models of text are below its unigram "
                    f"entropy, {entropy}.")
    return said


def _verdict(figure: str, ours: dict[str, Any], base: dict[str, Any]) -> str:
    """The better of two rows, if the means differ by more than twice the standard error of their
    difference."""
    if min(len(ours["values"]), len(base["values"])) < 2:
        return "one seed says nothing about which is ahead"
    error = math.hypot(*(each["deviation"] / math.sqrt(len(each["values"]))
                         for each in (ours, base)))
    gap = ours["mean"] - base["mean"]
    if abs(gap) <= 2 * error:
        return f"the difference is within twice its standard error, {_gap(figure, 2 * error)}"
    side = "ahead of" if (gap < 0) == (figure == "bpb") else "behind"
    return (f"mlgru is {_gap(figure, abs(gap))} {side} it (twice the standard error: "
            f"{_gap(figure, 2 * error)})")


def _quality(found: Found) -> Table:
    columns = (("text", "tokens", "bpb"), ("text", "seconds", "bpb"),
               ("text", "tokens", "bpb_carried"), ("recall", "tokens", "accuracy"),
               ("recall", "seconds", "accuracy"))
    rows: list[tuple[object, ...]] = [
        (row["name"], *(_cell(row, *column) for column in columns))
        for row in order(found, "text" if "text" in found["tasks"] else "recall")]
    return Table(
        "bits per byte and recall in percent, at equal tokens and equal seconds",
        ("mixer", "bpb, tokens", "bpb, seconds", "carried", "recall, tokens", "recall, seconds"),
        rows)


def _distance(found: Found) -> Table:
    bounds = recall_bounds(found)
    return Table(
        "recall in percent by tokens since the answer, at equal tokens",
        ("mixer", *(f"to {bound}" for bound in bounds)),
        [(row["name"], *(_cell(row, "recall", "tokens", f"accuracy_{bound}") for bound in bounds))
         for row in order(found, "recall")])


def recall_bounds(found: Found) -> list[int]:
    """Upper bounds of the distances, in tokens, at which recall was measured."""
    return sorted({int(name.removeprefix("accuracy_")) for row in found["rows"]
                   for name in row["tasks"].get("recall", {}).get("tokens", {})
                   if name.startswith("accuracy_")})


def _digits(found: Found) -> Table:
    return Table(
        "digits read, in percent, at equal tokens and equal seconds",
        ("mixer", "tokens", "seconds", "parameters", "train tokens/s"),
        [(row["name"], *(_cell(row, "digits", budget, "accuracy")
                         for budget in ("tokens", "seconds")),
          row["tasks"]["digits"]["tokens"].get("parameters", ""), _speed(row, "digits"))
         for row in order(found, "digits")])


def _cost(found: Found) -> Table:
    rows: list[tuple[object, ...]] = []
    for row in order(found, "text"):
        costs = row["costs"].get(_COUNTED_AT)
        if costs:
            rows.append((row["name"], row["tasks"]["text"]["tokens"].get("parameters", ""),
                         _speed(row, "text"), costs["macs"], costs["multiplies"],
                         "exact" if row["integer_form"] else ""))
    return Table(
        "model of text; blocks at token 1,024: ternary MACs, true multiplications",
        ("mixer", "parameters", "train tokens/s", "MACs", "multiplies", "integers"), rows)


def _by_length(found: Found, title: str, name: str) -> Table:
    """A cost of the predicting rows, at each length."""
    rows = [row for row in order(found, "text") if row["causal"] and row["costs"]]
    lengths = list(dict.fromkeys(length for row in rows for length in row["costs"]))
    return Table(title, ("mixer", *(f"at {int(length):,}" for length in lengths)), [
        (row["name"], *(f"{row['costs'][length][name]:,.0f}" if length in row["costs"] else ""
                        for length in lengths)) for row in rows])


def _core(found: Found) -> Table:
    core = found.get("core", {})
    return Table(
        "in gateware, by the cycle model; state of the exact integers",
        ("mixer", "array", "cycles per token", "state, bits", "all memory, bits"),
        [(name, each["array"], f"{each['cycles_per_token']:,.0f}", each["state_bits"],
          each["memory_bits"]) for name, each in core.items()])


def _sweep(found: Found) -> Table:
    return Table(
        "learning rates tried with seed 0 at equal tokens; each row has its best",
        ("mixer", "task", "figure by learning rate"),
        [(each["row"], each["task"], "  ".join(
            f"{lr}: {'diverged' if value is None else _number(each['figure'], value)}"
            for lr, value in each["by_lr"].items()))
         for each in found["sweep"]])


def _mean(row: dict[str, Any], task: str, budget: str, figure: str) -> float | None:
    found = row["tasks"].get(task, {}).get(budget, {}).get(figure)
    return None if found is None else float(found["mean"])


def _figures_of(
    found: Found, name: str, task: str, budget: str, figure: str,
) -> dict[str, Any] | None:
    """Mean, deviation and values of the row called ``name``, None if it has none."""
    row: dict[str, Any] = next(
        (row for row in found["rows"] if row["name"] == name), {"tasks": {}})
    return row["tasks"].get(task, {}).get(budget, {}).get(figure)


def _number(figure: str, value: float) -> str:
    return f"{value:.3f}" if figure.startswith("bpb") else f"{100 * value:.1f} %"


def _gap(figure: str, value: float) -> str:
    return f"{value:.3f}" if figure.startswith("bpb") else f"{100 * value:.1f} points"


def _cell(row: dict[str, Any], task: str, budget: str, figure: str) -> str:
    """Mean and deviation; accuracy in percent."""
    figures = row["tasks"].get(task, {}).get(budget, {})
    if figure not in figures:
        return "diverged" if figures.get("diverged") else ""
    mean, deviation = figures[figure]["mean"], figures[figure]["deviation"]
    if figure.startswith("accuracy"):
        return f"{100 * mean:.1f}" + ("" if deviation is None else f"±{100 * deviation:.1f}")
    return f"{mean:.3f}" + ("" if deviation is None else f"±{deviation:.3f}".replace("0.", ".", 1))


def _speed(row: dict[str, Any], task: str) -> str:
    figures = row["tasks"][task]["tokens"]
    if "train_seconds" not in figures:
        return ""
    return f"{figures['train_tokens']['mean'] / figures['train_seconds']['mean']:,.0f}"
