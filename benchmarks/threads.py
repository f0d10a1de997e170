"""Does a second thread pay off? One step of the forms at several sizes, with 1 and N threads.

    python benchmarks/threads.py --threads 2

Prints medians in microseconds of wall time, and the median ratio within a round.
"""

from __future__ import annotations

import argparse
import platform
import time
from functools import partial

import numpy as np
import onnx
import onnxruntime
from timing import measure, summarise

from sterna.cli.terminal.tables import Table
from sterna.export.forms.forms import Form, build
from sterna.export.graph.file import OnnxFile
from sterna.export.runtime.runtime import open_session
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.synthetic import random_model

SIZES = ((128, 352, 300), (256, 704, 300), (512, 1408, 150), (1024, 2816, 60))
FORMS = (Form.EXACT, Form.FAST)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    rows = []
    for d, dff, rounds in SIZES:
        model = random_model(ModelConfig(d=d, layers=2, dff=dff), S16)
        for form in FORMS:
            proto = build(model, form)
            sessions = [open_session(OnnxFile(proto, form.value), count) for count in (1, threads)]
            state = np.zeros((2, 1, d), np.int32 if form.exact else np.float32)
            feed = {"tokens": np.array([[65]]), "state": state, "logits_from": np.array([0])}
            found = summarise(measure(
                {count: partial(session.run, None, feed)
                 for count, session in zip(("one", "more"), sessions, strict=True)},
                rounds=rounds, clock=time.perf_counter), ["one"])
            rows.append((d, form.value, *(f"{each['us'][1]:.0f}" for each in found.values()),
                         f"{found['more']['speed']['one'][1]:.2f}"))
    Table(
        f"one step, 2 layers, S16; onnxruntime {onnxruntime.__version__}, onnx "
        f"{onnx.__version__}, {platform.machine()}",
        ("d", "form", "1 thread, us", f"{threads} threads, us", "ratio"), rows).print()


if __name__ == "__main__":
    main()
