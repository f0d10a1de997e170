"""Matrix, Verilog, a cocotb test of your own: in Verilator and Icarus, by cocotb's own runner."""

import os

from cocotb_tools.runner import get_results, get_runner
from my_cocotb_test import WEIGHTS  # the test, and the weights it expects

from sterna import emit_matrix
from sterna.sim import build_options, simulator_environment

unit = emit_matrix(WEIGHTS, "matrix", rows=2, cols=8)
for name in ("verilator", "icarus"):
    os.environ.update(simulator_environment(unit.folder, name))
    runner, place = get_runner(name), f"sim_build/{name}"
    runner.build(**build_options(unit.folder, name, build_dir=place))
    tests, failures = get_results(runner.test(
        hdl_toplevel=unit.module, hdl_toplevel_lang="verilog", test_module="my_cocotb_test",
        build_dir=place))
    print(f"{name}: {tests - failures} of {tests} tests passed")
    assert (tests, failures) == (1, 0)
