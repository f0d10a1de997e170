"""The list of onnxruntime's entries: a wrong one is refused by name, and nothing crashes.

The faults are planted in this process: had one of them gone through, the run would end here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ODD
from native_graphs import graph, head_tensors, planted_sources, session

from sterna.export import Session
from sterna.export.forms.forms import build
from sterna.export.forms.selftest import SelfTestError
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.profile_numbers import profile_numbers
from sterna.export.native.build import OPS_SOURCES, OpsError
from sterna.export.native.ops import register_ops
from sterna.model.profile import S16
from sterna.model.quantized.synthetic import random_model

LIST = "ort_entries.hpp"
CALLERS = ("ops.cpp", "ort_trial.cpp")
"""The sources that know the list."""
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")

Plant = Callable[[str, str, str], Path]


def _compile(source: Path, folder: Path) -> str:
    made = folder / f"{source.stem}.o"
    subprocess.run(["g++", *FLAGS, "-c", str(source), "-o", str(made)], check=True)
    return str(made)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of the sources without the list, compiled once, quickly."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("others")
    return [_compile(source, folder) for source in sorted(OPS_SOURCES.glob("*.cpp"))
            if source.name not in CALLERS]


@pytest.fixture
def plant(others: list[str], tmp_path: Path) -> Plant:
    """Replace a text of one source; return the library that comes of it."""
    def build(name: str, right: str, wrong: str) -> Path:
        sources = planted_sources(tmp_path / "native", name, right, wrong)
        objects = [_compile(sources / each, tmp_path) for each in CALLERS]
        library = tmp_path / "ops.so"
        subprocess.run(["g++", "-shared", *objects, *others, "-o", str(library)], check=True)
        return library

    return build


def _swapped(plant: Plant, first: str, second: str) -> Path:
    """A library whose list has two neighbours in the wrong order."""
    text = (OPS_SOURCES / LIST).read_text()
    start = text.index(f"X({first})")
    right = text[start:text.index(f"X({second})") + len(f"X({second})")]
    assert right.replace("\\", " ").split() == [f"X({first})", f"X({second})"]
    return plant(LIST, right, f"X({second}) X({first})")


def _head() -> onnx.ModelProto:
    return graph("Head", ["x"], ["logits"], head_tensors(random_model(ODD, S16, 4)),
                 profile_numbers(S16))


def _run(library: Path) -> np.ndarray:
    logits: np.ndarray = session(_head(), library).run(None, {"x": np.full((1, ODD.d), 9.0)})[0]
    return logits


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right", "wrong"), [
    (LIST, "X(CreateEnv)", "X(CreateEnvironment)"),
    ("ort_trial.cpp", "fork()", "pid_t{-1}"),
    ("ort_trial.cpp", "        check(Trial(", "        alarm(1); pause(); check(Trial("),
], ids=["unused entry renamed", "no child to be had", "child is late"])
def test_what_is_not_known_to_be_wrong_is_taken(
    plant: Plant, native_ops: Path, name: str, right: str, wrong: str,
) -> None:
    np.testing.assert_array_equal(_run(plant(name, right, wrong)), _run(native_ops))


@pytest.mark.parametrize(("first", "second"), [
    ("CreateStatus", "GetErrorCode"), ("GetDimensionsCount", "GetDimensions"),
    ("ReleaseSession", "ReleaseValue"),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        ("CustomOpDomain_Add", "AddCustomOpDomain"), ("IsTensor", "GetTensorMutableData"))),
])
def test_entries_in_the_wrong_order_are_refused_on_loading(
    plant: Plant, first: str, second: str,
) -> None:
    library = _swapped(plant, first, second)
    for _ in range(2):      # as clearly the second time
        with pytest.raises(
                OpsError, match=rf"ops\.so: .*onnxruntime.*entry \d+ .* is not ({first}|{second})"):
            register_ops(onnxruntime.SessionOptions(), library)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "expected"), [
    ("KernelInfoGetConstantInput_tensor", "CastTypeInfoToOptionalTypeInfo",
     "entry 250 .* is not KernelInfoGetConstantInput_tensor"),
    ("KernelInfoGetAttribute_int64", "KernelInfoGetAttribute_string",
     "attribute x_bits must be a whole number"),
    ("KernelContext_GetInput", "KernelContext_GetOutput",
     "entry 91 .* is not KernelContext_GetInput"),
])
def test_entries_that_need_a_node_are_refused_before_their_first_use(
    plant: Plant, first: str, second: str, expected: str,
) -> None:
    library = _swapped(plant, first, second)
    with pytest.raises(Exception, match=f"sterna::Head: {expected}"):
        _run(library)


def test_a_table_of_another_order_is_refused(plant: Plant) -> None:
    library = plant("ort_abi.hpp", "entries[static_cast<size_t>(entry)]",
                    "entries[static_cast<size_t>(entry) + 1]")
    with pytest.raises(OpsError, match=r"not fit onnxruntime .*entry 0 .* is not CreateStatus"):
        register_ops(onnxruntime.SessionOptions(), library)


def test_an_onnxruntime_without_the_interface_is_named(plant: Plant) -> None:
    library = plant("ort_abi.hpp", "kApiVersion = 18", "kApiVersion = 999")
    with pytest.raises(OpsError, match=r"not fit onnxruntime .*\(it lacks version 999 of its"):
        register_ops(onnxruntime.SessionOptions(), library)


def test_a_library_that_fails_at_work_fails_the_self_test(plant: Plant) -> None:
    library = plant("ops.cpp", "kernel.head(layer,",
                    'throw std::runtime_error("planted"); kernel.head(layer,')
    proto = build(random_model(ODD, S16, 4), "exact", GraphKind.STEP)
    with pytest.raises(SelfTestError, match=(
            r"the ONNX graph: the test in the file did not run \(.*Head: planted.*\); the library "
            r".*ops\.so is wrong")):
        Session(proto, ops=library)


@pytest.mark.parametrize("wrong", ["", "X(GetErrorCode) X(GetErrorText)"], ids=["fewer", "more"])
def test_an_entry_too_many_or_too_few_does_not_compile(tmp_path: Path, wrong: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    sources = planted_sources(tmp_path / "native", LIST, "X(GetErrorCode)", wrong)
    done = subprocess.run(["g++", *FLAGS, "-fsyntax-only", str(sources / CALLERS[1])],
                          capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ort_entries.hpp: version 1 is wrong" in done.stderr
