"""A board whose model is in its SDRAM: one bitstream, and images of several models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.board.boards import board_named
from sterna.hw.board.conversation import Conversation, ConversationError
from sterna.hw.board.serial_protocol import BLOCK_BYTES
from sterna.hw.board.top import BoardParams, board_design, write_sources
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.linear import pack_image
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.sim.board import BoardSimulation, ConversationReference

ULX3S = BoardParams(board_named("ulx3s-85f"), 80_000_000, 4_000_000)
SIZES = {"rows": 4, "cols": 16}
LARGE, SMALL = (random_model(ModelConfig(*shape, vocab=128), S16, seed=seed)
                for seed, shape in enumerate(((16, 2, 24), (12, 1, 20))))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_bitstream_talks_as_each_model_that_is_loaded(tmp_path: Path) -> None:
    design = board_design(LARGE, ULX3S, SIZES, sdram=True)
    conversation = Conversation(BoardSimulation(design, tmp_path))
    conversation.meet()
    conversation.boot()

    def talks_as(model: QuantizedModel) -> None:
        reference = ConversationReference(OnnxModel(model), temperature=0.7, seed=3)
        conversation.set_sampling(Sampler(temperature=0.7).beta, 3)
        conversation.forget()
        for line in ([5, 6, 7], [], [8]):
            assert list(conversation.say(line, 5)) == reference.say(line, 5)

    talks_as(LARGE)
    image = pack_image(build_image(SMALL, design.core))
    conversation.load(image)
    talks_as(SMALL)
    with pytest.raises(ConversationError, match="it is damaged, or for other limits"):
        conversation.load(image[:200] + bytes([image[200] ^ 1]) + image[201:])
    with pytest.raises(ConversationError, match=r"does not do FEED \d+: it says REFUSED"):
        list(conversation.say([10, 11], 1))

    def interrupt(done: int) -> None:
        if done > 2 * BLOCK_BYTES + 300:
            raise KeyboardInterrupt

    # A load that was interrupted goes on; if it was of another image, all is written again.
    told: list[int] = []
    for begun in (design.image, image):
        with pytest.raises(KeyboardInterrupt):
            conversation.load(begun, interrupt)
        told.clear()
        conversation.load(design.image, told.append)
        assert told[0] == 2 * BLOCK_BYTES
        assert told[-1] == len(design.image)
        assert (told == sorted(told)) == (begun is design.image)
        talks_as(LARGE)


def test_the_folder_has_what_is_synthesised_and_all_pins(tmp_path: Path) -> None:
    design = board_design(SMALL, ULX3S, SIZES, sdram=True)
    write_sources(design, tmp_path / "source")
    text = (tmp_path / "source" / "board_top.v").read_text()
    assert text == design.verilog["board_top.v"]
    assert "BB dq [15:0]" in text
    assert "sdram_model" not in text
    pins = (tmp_path / "source" / "ulx3s-85f.lpf").read_text()
    for name in ("sdram_clk", "sdram_a[12]", "sdram_ba[1]", "sdram_dq[15]", "sdram_dqm[0]"):
        assert f'LOCATE COMP "{name}" SITE' in pins


def test_an_sdram_that_is_not_there_or_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="the icebreaker has no SDRAM"):
        board_design(SMALL, BoardParams(board_named("icebreaker")), sdram=True)
    board = replace(board_named("icebreaker"), memory=("sdram", 0))
    with pytest.raises(ValueError, match="no pads for an SDRAM on Lattice iCE40"):
        board_design(SMALL, BoardParams(board), sdram=True)
    with pytest.raises(ValueError, match="over a serial line the vocabulary must be from 128"):
        board_design(random_model(ModelConfig(8, 1, 8, 64), S16, seed=1), ULX3S, SIZES, sdram=True)
