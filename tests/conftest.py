"""Settings and models shared by the tests."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optional_tools
import pytest
from changes import changed_files, distances
from hypothesis import settings

from sterna.export.native import ops as native_ops_module
from sterna.export.native.ops import MissingCompilerError, OpsError, build_ops, kernel_name
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.synthetic import random_model

# Tests run side by side: more threads in each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nor shall threads that wait keep a core busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A shell starts a job in the background with Ctrl-C ignored; what is tested here would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine is slow at times; what a property test must not do is depend on it.
settings.register_profile("sterna", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("sterna")

HEAVIEST = 20
_LAST = pytest.StashKey[float]()

ODD = ModelConfig(d=12, layers=2, dff=21, vocab=65)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="of the long tests of a file, the last")
    parser.addoption("--bare", action="store_true", help="without the tools of optional_tools.py")
    parser.addoption("--rest", action="store_true", help="what the last run with --bare left out")
    parser.addoption("--changed", metavar="COMMIT",
                     help="what a change since then can break, the nearest first")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("bare"):
        optional_tools.hide(config)
    if config.getoption("rest"):
        optional_tools.read_done(config)    # an error now, not in every worker


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest first: what is begun last should not keep one of two cores waiting."""
    def keep(wanted: Callable[[pytest.Item], bool]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
        items[:] = filter(wanted, items)

    if config.getoption("sample"):
        last = {item.path: item for item in items if item.get_closest_marker("long")}
        keep(lambda item: item is last.get(item.path))
    if config.getoption("rest"):
        done = optional_tools.read_done(config)
        keep(lambda item: item.nodeid not in done)

    def order(item: pytest.Item) -> tuple[float, bool, bool]:
        allowed = item.get_closest_marker("timeout")
        return (-max(allowed.args) if allowed else 0, not item.get_closest_marker("long"),
                not item.get_closest_marker("slow"))

    items.sort(key=order)
    if commit := config.getoption("changed"):
        far = distances(config.rootpath, changed_files(config.rootpath, commit))
        steps = {item: far.get(item.path.relative_to(config.rootpath)) for item in items}
        keep(lambda item: steps[item] is not None)
        items.sort(key=lambda item: steps[item] or 0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        missing = [tool for tool in mark.args if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"{' and '.join(missing)} not installed")


def _user_seconds() -> float:
    """CPU time outside the kernel, of this process and of all that it started and has ended."""
    times = os.times()
    return times.user + times.children_user


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Each report tells the CPU seconds since the last one."""
    report = yield
    now = _user_seconds()
    report.user_seconds = now - item.config.stash.get(_LAST, now)
    item.config.stash[_LAST] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests cost, in CPU seconds: how busy the machine was does not show in them."""
    if terminalreporter.config.getoption("bare"):
        optional_tools.keep_done(terminalreporter.config, [
            report.nodeid for report in terminalreporter.stats.get("passed", ())])
    spent: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        spent[getattr(report, "nodeid", "")] += getattr(report, "user_seconds", 0)
    terminalreporter.section(f"{HEAVIEST} heaviest tests of {spent.total():.0f} CPU seconds")
    for name, seconds in spent.most_common(HEAVIEST):
        terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


@pytest.fixture(params=sorted(PROFILES))
def profile(request: pytest.FixtureRequest) -> NumericProfile:
    """Both named profiles."""
    return PROFILES[request.param]


@pytest.fixture
def no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lines that tell the seconds of a stage, which a busy machine adds."""
    monkeypatch.setattr("sterna.cli.terminal.console._REPEAT_S", 10_000)


@pytest.fixture
def odd_model(profile: NumericProfile) -> QuantizedModel:
    """A small random model whose dimensions divide by nothing."""
    return random_model(ODD, profile, seed=7)


def faulty_weight(model: QuantizedModel) -> QuantizedModel:
    """The same model but for one weight, in column 7 of row 5 of ``layer1.glu.down``."""
    name = "layer1.glu.down"
    weight = model.projections[name].weight.copy()
    weight[5, 7] = 1 if weight[5, 7] == -1 else weight[5, 7] - 1
    wrong = replace(model.projections[name], weight=weight)
    return replace(model, projections={**model.projections, name: wrong})


def replace_weights(model: QuantizedModel, value: int) -> QuantizedModel:
    """The same model with every weight of every matrix equal to ``value``."""
    return replace(model, projections={
        name: Projection(np.full_like(p.weight, value), p.bias, p.k, p.shift)
        for name, p in model.projections.items()})


@pytest.fixture(scope="module")
def quick_build() -> Iterator[None]:
    """Simulations in C++ are compiled without optimizing, which takes a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STERNA_QUICK_BUILD", "1")
        yield


@pytest.fixture(scope="session")
def native_ops() -> Path:
    """The library of compiled operators, from the cache of whoever runs the tests."""
    try:
        return build_ops()
    except MissingCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def quick_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of operators are compiled without optimizing: a planted fault shows as well."""
    flags = ["-O0" if flag == "-O3" else flag for flag in native_ops_module._FLAGS]
    assert "-O0" in flags
    monkeypatch.setattr(native_ops_module, "_FLAGS", tuple(flags))


_KERNELS = {"x86_64": ["avx2", "avx512vnni"], "aarch64": ["neon", "neon-dot"]}


@pytest.fixture(params=["portable", *_KERNELS.get(platform.machine(), [])])
def native_kernel(request: pytest.FixtureRequest, native_ops: Path) -> str:
    """Every kernel that this processor can run, by name."""
    name: str = request.param
    try:
        return kernel_name(native_ops, name)
    except OpsError as error:
        pytest.skip(str(error))


def sizes_of(unit: str, **sizes: Any) -> dict[str, Any]:
    """Those of ``sizes`` that the unit has; others it would refuse."""
    from sterna.hw.catalog import unit_named
    return {name: value for name, value in sizes.items() if name in unit_named(unit).sizes}
