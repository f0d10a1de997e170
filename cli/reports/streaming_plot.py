"""Bits per byte over a long text, for each form of attention: a drawing."""

from __future__ import annotations

from typing import Any

from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_of

__all__ = ["streaming_plot"]

# The later ones are thinner, so that curves that are the same are all seen.
_STYLES = {"full": (GREY, 1.4, "full attention"), "window": (PALETTE[3], 3.2, "plain window"),
           "sinks": (PALETTE[0], 1.2, "window and sinks")}


def streaming_plot(found: dict[str, Any], title: str) -> str:
    """The curves of ``StreamingResult.as_dict()`` as an SVG element."""
    plan = found["plan"]
    keys = plan["keys"]
    labels = {"full": "all keys", "window": f"the newest {keys}",
              "sinks": f"the first {plan['sinks']} and the newest {plan['size']}"}
    with drawing(9, 3.6) as figure:
        axes = figure.add_subplot()
        for each in found["forms"]:
            colour, width, name = _STYLES[each["form"]]
            curve = each["bits_per_byte"]
            places = [(at + 0.5) * keys / 1000 for at in range(len(curve))]
            axes.plot(places, curve, "-", color=colour, linewidth=width,
                      label=f"{name}: {labels[each['form']]}")
            if each["tokens"] < plan["tokens"]:
                axes.plot(places[-1:], curve[-1:], "x", color=colour, ms=6)
        axes.axvline(keys / 1000, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, plan["tokens"] / 1000)
        axes.set_xlabel("thousand tokens read")
        axes.set_ylabel("bits per byte")
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=3)
        return svg_of(figure, "streaming", "bits per byte over the tokens of a long text")
