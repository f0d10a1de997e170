"""Conversations with simulated boards, over their serial lines, equal onnxruntime's."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import threading
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from wave_names import declared_signals, shown_signals

from sterna.cli.commands.chat import _Talk
from sterna.cli.main import main
from sterna.export.exact.traced import build_step
from sterna.export.runtime.generate import generate_tokens
from sterna.export.runtime.runtime import OnnxStep
from sterna.hw.board import BoardName
from sterna.hw.board.boards import BOARDS
from sterna.hw.board.conversation import Conversation
from sterna.hw.board.serial_protocol import Order, order_bytes
from sterna.hw.board.top import BoardDesign, BoardParams, board_design
from sterna.hw.units.spec import Sizes
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_path
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.sim.board import BoardSimulation, ConversationReference

pytestmark = pytest.mark.usefixtures("quick_build")

# Lines for a model, and whether it reads a line end after each.
TURNS = [(b"Hello", False), (b"/a path", False), (b"", False), (b"\x41" * 300, True),
         (b"a\ttab", True), (b"", True), (b"and so on", False)]
GREEDY, SAMPLED = (0.0, 1), (0.9, 0xC0FFEE)
FAST_BAUD = 3_000_000


@dataclass(frozen=True)
class Built:
    """A board that was compiled."""

    model: QuantizedModel
    graph: OnnxStep
    design: BoardDesign
    folder: Path

    def simulation(self) -> BoardSimulation:
        return BoardSimulation(self.design, self.folder)


def ulx3s_small() -> tuple[QuantizedModel, BoardParams, Sizes]:
    model = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=256), C12, seed=3)
    params = BoardParams(BOARDS[BoardName.ULX3S_85F], baud=FAST_BAUD)
    return model, params, {"rows": 2, "cols": 8, "logits": False}


def ulx3s_fine() -> tuple[QuantizedModel, BoardParams, Sizes]:
    model = random_model(ModelConfig(d=12, layers=2, dff=20, vocab=256), S16, seed=4)
    params = BoardParams(BOARDS[BoardName.ULX3S_85F], baud=FAST_BAUD)
    return model, params, {"rows": 2, "cols": 8}


def letters() -> tuple[QuantizedModel, BoardParams, Sizes]:
    """A board whose tokens are more than bytes have values."""
    model = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=300), C12, seed=6)
    params = BoardParams(BOARDS[BoardName.ULX3S_85F], baud=FAST_BAUD)
    return model, params, {"rows": 2, "cols": 8, "logits": False}


def icebreaker() -> tuple[QuantizedModel, BoardParams, Sizes]:
    board = BOARDS[BoardName.ICEBREAKER]
    model = random_model(ModelConfig(d=16, layers=1, dff=32, vocab=128), C12, seed=5)
    return model, BoardParams(board), board.sizes


BUILDS = {"ulx3s": ulx3s_small, "two layers of S16": ulx3s_fine, "icebreaker": icebreaker,
          "letters": letters}


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Boards by name, each compiled once."""
    @functools.cache
    def build(name: str) -> Built:
        model, params, sizes = BUILDS[name]()
        return Built(model, OnnxStep(build_step(model)), board_design(model, params, sizes),
                     tmp_path_factory.mktemp("board"))
    return build


def hold(
    conversation: Conversation, reference: ConversationReference,
    turns: Sequence[tuple[bytes, bool]], tokens: int,
) -> None:
    """Say the lines to both, and compare."""
    for text, line_end in turns:
        conversation.set_line_ends(line_end)
        written = list(conversation.say(text, tokens))
        assert written == reference.say(text, tokens, line_end=line_end), text


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDS)
def test_conversation_equals_onnxruntime(boards, name):
    built = boards(name)
    board = built.simulation()
    conversation = Conversation(board)
    conversation.meet()
    for temperature, seed in (GREEDY, SAMPLED) if built.design.params.board.sampled else (GREEDY,):
        conversation.set_sampling(Sampler(temperature=temperature).beta, seed)
        conversation.forget()
        hold(conversation, ConversationReference(
            built.graph, temperature=temperature, seed=seed), TURNS, 12)
    assert board.framing_errors == 0
    assert 0 < board.busy_cycles < board.cycles


@pytest.mark.long
def test_first_turn_is_what_generate_writes(boards):
    built = boards("ulx3s")
    conversation = Conversation(built.simulation())
    conversation.meet()
    for temperature, seed in (GREEDY, SAMPLED):
        conversation.set_sampling(Sampler(temperature=temperature).beta, seed)
        for prompt in ("The text", ""):
            conversation.forget()
            assert list(conversation.say(prompt.encode(), 30)) == list(generate_tokens(
                built.graph, prompt, tokens=30, temperature=temperature, seed=seed))


@pytest.mark.long
def test_stop_ends_a_text_and_drops_what_is_queued(boards):
    built = boards("ulx3s")
    board = built.simulation()
    conversation = Conversation(board)
    conversation.meet()
    reference = ConversationReference(built.graph)
    written = conversation.say(b"On and on", 5000)
    some = [next(written) for _ in range(20)]
    board.write(b"".join(order_bytes(Order.FEED, token) for token in b"queued"))
    rest = conversation.stop()
    assert len(rest) < 50
    assert some + rest == reference.say(b"On and on", 20 + len(rest))
    # What follows is what the model makes of all that was written, no more.
    assert list(conversation.say(b"!", 10)) == reference.say(b"!", 10)


@pytest.mark.long
@pytest.mark.parametrize("speed", [0.98, 1.02])
def test_a_host_two_percent_off_is_understood(boards, speed):
    built = boards("icebreaker")
    baud = speed * built.design.params.baud
    board = BoardSimulation(built.design, built.folder, host_baud=baud)
    conversation = Conversation(board)
    conversation.meet()
    conversation.forget()
    reference = ConversationReference(built.graph)
    hold(conversation, reference, [(b"Is this right?", False), (b"Or left", False)], 10)
    assert board.framing_errors == 0


@pytest.mark.long
def test_the_same_board_is_compiled_once(boards):
    built = boards("ulx3s")
    built.simulation()
    libraries = sorted(built.folder.glob("*.so"))
    built.simulation()
    assert sorted(built.folder.glob("*.so")) == libraries
    assert len(libraries) == 1


# The command ------------------------------------------------------------------------


class PortOnTerminal:
    """A simulated board behind a pseudo-terminal, in a thread."""

    def __init__(self, board: BoardSimulation) -> None:
        self._board = board
        self._ours, theirs = os.openpty()
        tty.setraw(theirs)
        os.set_blocking(self._ours, False)
        self.name = os.ttyname(theirs)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> PortOnTerminal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(BlockingIOError):
                self._board.write(os.read(self._ours, 4096))
            if data := self._board.run(5000):
                os.write(self._ours, data)


@pytest.fixture
def model_file(boards, tmp_path) -> Path:
    return boards("ulx3s").model.save(tmp_path / "model.safetensors")


def chat(*arguments: object) -> int:
    return main(["chat", *map(str, arguments)])


SMALL = ("--rows", 2, "--cols", 8, "--baud", FAST_BAUD)


@pytest.mark.long
def test_chat_with_a_simulated_board_checks_each_token(boards, model_file, tmp_path, capsys):
    built = boards("ulx3s")
    options = (model_file, "--port", "sim", *SMALL, "-o", built.folder,
               "--tokens", 20, "--temperature", 0.9, "--seed", 7, "--check")
    assert chat(*options, "--prompt", "Hello", "--prompt", "ß and /") == 0
    printed = capsys.readouterr()
    reference = ConversationReference(built.graph, temperature=0.9, seed=7)
    for text in ("Hello", "ß and /"):
        written = bytes(reference.say(text.encode(), 20)).decode(errors="replace")
        assert (text + written).replace("\r", "\n") in printed.out.replace("\r", "\n")
    assert "40 tokens, all equal to onnxruntime's" in printed.err


@pytest.mark.long
def test_chat_over_a_serial_port(boards, model_file, capsys):
    with PortOnTerminal(boards("ulx3s").simulation()) as port:
        assert chat(model_file, "--port", port.name, "--tokens", 8, "--prompt", "abc",
                    "--prompt", "", "--check", "--baud", 1_000_000) == 0
    assert "16 tokens, all equal to onnxruntime's" in capsys.readouterr().err


@pytest.mark.long
def test_chat_tells_a_board_with_another_model(boards, tmp_path, capsys):
    other = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=256), C12, seed=99)
    path = other.save(tmp_path / "other.safetensors")
    with PortOnTerminal(boards("ulx3s").simulation()) as port:
        assert chat(path, "--port", port.name, "--tokens", 30, "--prompt", "abc",
                    "--check", "--baud", 1_000_000) == 1
    assert "MISMATCH at token" in capsys.readouterr().err


@pytest.mark.long
def test_lines_are_read_until_their_end(boards, model_file, monkeypatch, capsys):
    lines = iter(["abc", "/r", "//", "/x", "\x01", "abc"])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    with PortOnTerminal(boards("ulx3s").simulation()) as port:
        assert chat(model_file, "--port", port.name, "--tokens", 4, "--check",
                    "--baud", 1_000_000) == 0
    printed = capsys.readouterr().err
    assert "16 tokens, all equal to onnxruntime's" in printed
    assert printed.count("/r starts a new text") == 2


@pytest.mark.parametrize(("options", "message"), [
    (("micro",), "MODEL goes with --port sim or --check"),
    (("--rows", 3), "--rows goes with --port sim: a real board has its model and sizes in its"),
    (("--style", "generic"), "--style goes with"), (("-o", "x"), "--output goes with"),
])
def test_what_a_board_has_in_its_bitstream_is_not_asked_for_again(options, message, capsys):
    assert chat("--port", "/dev/ttyNONE7", *options) == 2
    assert message in capsys.readouterr().err


def test_the_default_model_fits_the_board(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("sterna.cli.commands.chat.load_model",
                        lambda name: asked.append(name) or load_model(name))
    for board in ("icebreaker", "ulx3s-85f"):
        assert chat("--port", "sim", "--board", board, "--prompt", "\udc80") == 2
    assert asked == ["micro", "tiny-c12"]


def test_a_port_that_is_missing_is_told(capsys):
    assert chat("--port", "/dev/ttyNONE7", "--prompt", "a") == 2
    message = capsys.readouterr().err
    assert "cannot open the serial port /dev/ttyNONE7" in message
    assert "--port sim needs no board" in message


@pytest.mark.parametrize(("options", "message"), [
    (("--clock", 133), "the PLL cannot make 133 MHz; the nearest it can are"),
    (("--baud", 20_000_000), "a bit must have at least 16 cycles"),
    (("--tokens", 0, "--prompt", "a"), "tokens must be from 1 to 65535, got 0"),
    (("--temperature", -1), "temperature must be 0 or from 0.01 to 100"),
    (("gone",), "gone"),
    (("--board", "icebreaker", "--temperature", 0.5),
     "--temperature must be 0 on icebreaker, whose core has no sampling, got 0.5"),
    (("micro", "--board", "icebreaker", "--prompt", "héllo"),
     "--prompt 'héllo' has the character 'é', and this model knows only ASCII characters"),
    (("--style", "xc7-pair"), "xc7"),
])
def test_what_cannot_be_is_refused(options, message, capsys):
    assert chat("--port", "sim", *options) == 2
    assert message in capsys.readouterr().err


def test_a_typed_line_that_the_model_cannot_read_is_told_and_ends_nothing(monkeypatch, capsys):
    lines = iter(["héllo"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, None) or end_of_input())

    def end_of_input():
        raise EOFError

    talk = _Talk(None, 4, load_model("micro").tokenizer, None, False, True)
    assert talk.read_lines() == 0
    assert "this model knows only ASCII characters" in capsys.readouterr().err


# The bundled model --------------------------------------------------------------------


@pytest.mark.long
def test_micro_on_an_icebreaker_talks_as_under_onnxruntime(tmp_path, capsys) -> None:
    lines = ("The for statement", " and the", "", "class")
    assert chat("micro", "--board", "icebreaker", "--port", "sim", "-o", tmp_path,
                "--tokens", 60, "--check", *(each for line in lines for each in ("--prompt", line))
                ) == 0
    printed = capsys.readouterr()
    reference = ConversationReference(OnnxStep(build_step(load_model("micro"))))
    for line in lines:
        written = bytes(reference.say(line.encode(), 60)).decode()
        assert (line + written).replace("\r", "\n") in printed.out.replace("\r", "\n")
    assert "240 tokens, all equal to onnxruntime's" in printed.err


@pytest.mark.long
def test_waves_of_a_board_show_its_pins(tmp_path, capsys) -> None:
    waves = tmp_path / "board.vcd"
    assert chat("micro", "--board", "icebreaker", "--port", "sim", "-o", tmp_path, "--tokens", 2,
                "--prompt", "The", "--waves", waves) == 0
    capsys.readouterr()
    gc.collect()        # the file is complete now
    text = waves.read_text()
    code = re.search(r"\$var wire 1 (\S+) tx ", text)
    assert code
    assert len(re.findall(rf"^[01]{re.escape(code[1])}$", text, re.M)) > 8
    shown = shown_signals(waves)
    assert "board_top.tx" in shown
    assert shown <= declared_signals(waves)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_bundled_model_talks_as_under_onnxruntime(tmp_path) -> None:
    model = load_model(str(bundled_path("tiny")))
    board = BOARDS[BoardName.ULX3S_85F]
    params = BoardParams(board)
    simulation = BoardSimulation(board_design(model, params, board.sizes), tmp_path)
    conversation = Conversation(simulation)
    conversation.meet()
    for temperature, seed, text in ((0.0, 1, b"The for statement"), (0.7, 5, b"class")):
        conversation.set_sampling(Sampler(temperature=temperature).beta, seed)
        conversation.forget()
        hold(conversation, ConversationReference(
            OnnxStep(build_step(model)), temperature=temperature, seed=seed),
            [(text, False), (b"", False)], 12)
    assert simulation.framing_errors == 0
