"""Building the compiled operators: once, without half-made files, with clear errors."""

import shutil

import onnxruntime
import pytest
from conftest import ODD
from native_graphs import planted_sources

from sterna.export import Session
from sterna.export.forms.forms import build
from sterna.export.forms.selftest import SelfTestError
from sterna.export.native.ops import MissingCompilerError, OpsError, build_ops, register_ops
from sterna.model.profile import S16
from sterna.model.quantized.synthetic import random_model


def test_a_library_is_built_once(native_ops):
    before = native_ops.stat().st_mtime_ns
    told: list[int] = []
    assert build_ops(
        str(native_ops.parent), progress=lambda done, total: told.append(done)) == native_ops
    assert not told
    assert native_ops.stat().st_mtime_ns == before


def test_without_a_compiler_a_library_that_is_there_will_do(native_ops, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
            MissingCompilerError, match=r"g\+\+ is not installed.*apt-get install g\+\+.*slower"):
        build_ops(tmp_path)
    shutil.copy(native_ops, tmp_path)
    assert build_ops(tmp_path) == tmp_path / native_ops.name


def test_sources_that_do_not_compile_leave_nothing(tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "broken.cpp").write_text("int main( { return 0; }")
    with pytest.raises(OpsError, match=r"g\+\+ failed on the operators \(broken\.cpp\): .*error"):
        build_ops(tmp_path / "out", sources=sources)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(OpsError, match=r"holds no C\+\+ sources"):
        build_ops(tmp_path / "out", sources=tmp_path / "out")


@pytest.mark.usefixtures("native_ops", "quick_ops")
def test_an_onnxruntime_without_the_interface_is_named(tmp_path):
    library = build_ops(tmp_path, sources=planted_sources(
        tmp_path / "native", "ort_abi.hpp", "kApiVersion = 18", "kApiVersion = 999"))
    with pytest.raises(OpsError, match=r"cannot load the operators \(.*lacks version 999 of its"):
        register_ops(onnxruntime.SessionOptions(), library)


@pytest.mark.slow
@pytest.mark.usefixtures("native_ops", "quick_ops")
def test_a_library_that_fails_at_work_fails_the_self_test(tmp_path):
    library = build_ops(tmp_path, sources=planted_sources(
        tmp_path / "native", "ops.cpp", "kernel.run(model,",
        'throw std::runtime_error("planted"); kernel.run(model,'))
    proto = build(random_model(ODD, S16, 4))
    with pytest.raises(SelfTestError, match=(
            r"the ONNX graph: the test in the file did not run \(.*Records: planted.*\); the "
            r"library .*\.so is wrong")):
        Session(proto, ops=library)
