"""Conversations with simulated boards, over their serial lines, equal onnxruntime's."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import refusal
from wave_names import declared_signals, shown_signals

from sterna.cli.commands.board import _Talk
from sterna.cli.main import main
from sterna.export.runtime.generate import generate_tokens
from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.board.boards import board_named
from sterna.hw.board.conversation import Conversation
from sterna.hw.board.serial_protocol import Order, order_bytes
from sterna.hw.board.top import BoardDesign, BoardParams, board_design
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.sim.board import BoardSimulation, ConversationReference

pytestmark = pytest.mark.usefixtures("quick_build")

# Lines for a model, and whether it reads a line end after each.
TURNS = [(b"Hello", False), (b"/a path", False), (b"", False), (b"\x41" * 300, True),
         (b"a\ttab", True), (b"", True), (b"and so on", False)]
GREEDY, SAMPLED = (0.0, 1), (0.9, 0xC0FFEE)
FAST_BAUD = 3_000_000

# Shape, profile and seed of a model, and a board: one with small sizes, one with its own.
BUILDS: dict[str, tuple[ModelConfig, NumericProfile, int, str]] = {
    "ulx3s": (ModelConfig(d=16, layers=1, dff=24, vocab=256), C12, 3, "ulx3s-85f"),
    "two layers of S16": (
        ModelConfig(d=12, layers=2, dff=20, vocab=256), S16, 4, "ulx3s-85f"),
    "icebreaker": (ModelConfig(d=16, layers=1, dff=32, vocab=128), C12, 5, "icebreaker"),
    # More tokens than bytes have values.
    "letters": (ModelConfig(d=16, layers=1, dff=24, vocab=300), C12, 6, "ulx3s-85f")}


@dataclass(frozen=True)
class Built:
    """A board that was compiled."""

    model: QuantizedModel
    graph: OnnxModel
    design: BoardDesign
    folder: Path

    def simulation(self) -> BoardSimulation:
        return BoardSimulation(self.design, self.folder)


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Boards by name, each compiled once."""
    @functools.cache
    def build(name: str) -> Built:
        config, profile, seed, board = BUILDS[name]
        model = random_model(config, profile, seed=seed)
        if board == "icebreaker":
            params, sizes = BoardParams(board_named(board)), board_named(board).sizes
        else:
            params = BoardParams(board_named(board), baud=FAST_BAUD)
            sizes = {"rows": 2, "cols": 8}
        return Built(model, OnnxModel(model), board_design(model, params, sizes),
                     tmp_path_factory.mktemp("board"))
    return build


def met(board: BoardSimulation) -> Conversation:
    conversation = Conversation(board)
    conversation.meet()
    return conversation


def begin(conversation: Conversation, temperature: float, seed: int) -> None:
    conversation.set_sampling(Sampler(temperature=temperature).beta, seed)
    conversation.forget()


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
    conversation = met(board)
    for temperature, seed in (GREEDY, SAMPLED) if built.design.params.board.sampled else (GREEDY,):
        begin(conversation, temperature, seed)
        hold(conversation, ConversationReference(
            built.graph, temperature=temperature, seed=seed), TURNS, 12)
    assert board.framing_errors == 0
    assert 0 < board.busy_cycles < board.cycles


@pytest.mark.long
def test_first_turn_is_what_generate_writes(boards):
    built = boards("ulx3s")
    conversation = met(built.simulation())
    for temperature, seed in (GREEDY, SAMPLED):
        for prompt in ("The text", ""):
            begin(conversation, temperature, seed)
            assert list(conversation.say(prompt.encode(), 30)) == list(generate_tokens(
                built.graph, prompt, tokens=30, temperature=temperature, seed=seed))
    libraries = sorted(built.folder.glob("*.so"))
    built.simulation()      # the same board is compiled once
    assert sorted(built.folder.glob("*.so")) == libraries
    assert len(libraries) == 1


@pytest.mark.long
def test_stop_ends_a_text_and_drops_what_is_queued(boards):
    built = boards("ulx3s")
    board = built.simulation()
    conversation = met(board)
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
    conversation = met(board)
    conversation.forget()
    reference = ConversationReference(built.graph)
    hold(conversation, reference, [(b"Is this right?", False), (b"Or left", False)], 10)
    assert board.framing_errors == 0


# The command ------------------------------------------------------------------------


@contextlib.contextmanager
def on_terminal(board: BoardSimulation) -> Iterator[str]:
    """A simulated board behind a pseudo-terminal, in a thread; its name."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    os.set_blocking(ours, False)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with contextlib.suppress(BlockingIOError):
                board.write(os.read(ours, 4096))
            if data := board.run(5000):
                os.write(ours, data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield os.ttyname(theirs)
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def model_file(boards, tmp_path) -> Path:
    return boards("ulx3s").model.save(tmp_path / "model.safetensors")


def chat(*arguments: object) -> int:
    return main(["chat", *map(str, arguments)])


@pytest.mark.long
def test_chat_with_a_simulated_board_checks_each_token(boards, model_file, tmp_path, capsys):
    built = boards("ulx3s")
    assert chat(model_file, "--port", "sim", "--rows", 2, "--cols", 8, "--baud", FAST_BAUD, "-o",
                built.folder, "--tokens", 20, "--temperature", 0.9, "--seed", 7, "--check",
                "--prompt", "Hello", "--prompt", "ß and /") == 0
    printed = capsys.readouterr()
    reference = ConversationReference(built.graph, temperature=0.9, seed=7)
    for text in ("Hello", "ß and /"):
        written = bytes(reference.say(text.encode(), 20)).decode(errors="replace")
        assert (text + written).replace("\r", "\n") in printed.out.replace("\r", "\n")
    assert "40 tokens, all equal to onnxruntime's" in printed.err


@pytest.mark.long
def test_chat_over_a_serial_port(boards, model_file, capsys):
    with on_terminal(boards("ulx3s").simulation()) as port:
        assert chat(model_file, "--port", port, "--tokens", 8, "--prompt", "abc",
                    "--prompt", "", "--check", "--baud", 1_000_000) == 0
    assert "16 tokens, all equal to onnxruntime's" in capsys.readouterr().err


@pytest.mark.long
def test_chat_tells_a_board_with_another_model(boards, tmp_path, capsys):
    other = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=256), C12, seed=99)
    path = other.save(tmp_path / "other.safetensors")
    with on_terminal(boards("ulx3s").simulation()) as port:
        assert chat(path, "--port", port, "--tokens", 30, "--prompt", "abc",
                    "--check", "--baud", 1_000_000) == 1
    assert "MISMATCH at token" in capsys.readouterr().err


def type_lines(monkeypatch, *lines: str) -> None:
    def typed() -> Iterator[str]:
        yield from lines
        raise EOFError

    left = typed()
    monkeypatch.setattr("builtins.input", lambda prompt: next(left))


@pytest.mark.long
def test_lines_are_read_until_their_end(boards, model_file, monkeypatch, capsys):
    type_lines(monkeypatch, "abc", "/r", "//", "/x", "\x01", "abc")
    with on_terminal(boards("ulx3s").simulation()) as port:
        assert chat(model_file, "--port", port, "--tokens", 4, "--check", "--baud", 1_000_000) == 0
    printed = capsys.readouterr().err
    assert "16 tokens, all equal to onnxruntime's" in printed
    assert printed.count("/r starts a new text") == 2


@pytest.mark.parametrize(("port", "options", "message"), [
    # What a board has in its bitstream is not asked for again.
    ("/dev/ttyNONE7", "micro", "MODEL goes with --port sim or --check"),
    ("/dev/ttyNONE7", "--rows 3",
     "--rows goes with --port sim: a real board has its model and sizes in its"),
    ("/dev/ttyNONE7", "--style generic", "--style goes with"),
    ("/dev/ttyNONE7", "-o x", "--output goes with"),
    ("/dev/ttyNONE7", "--sdram", "--sdram goes with"),
    ("sim", "--load gone.bin", "gone.bin"),
    ("sim", "micro --board icebreaker --sdram", "the icebreaker has no SDRAM"),
    ("/dev/ttyNONE7", "--prompt a", "cannot open the serial port /dev/ttyNONE7"),
    ("/dev/ttyNONE7", "--prompt a", "--port sim needs no board"),
    ("sim", "--clock 133", "the PLL cannot make 133 MHz; the nearest it can are"),
    ("sim", "--baud 20000000", "a bit must have at least 16 cycles"),
    ("sim", "--tokens 0 --prompt a", "tokens must be from 1 to 65535, got 0"),
    ("sim", "--temperature -1", "temperature must be 0 or from 0.01 to 100"),
    ("sim", "gone", "gone"),
    ("sim", "--board icebreaker --temperature 0.5",
     "--temperature must be 0 on icebreaker, whose core has no sampling, got 0.5"),
    ("sim", "--style xc7-pair", "xc7"),
])
def test_what_cannot_be_is_refused(port, options, message, capsys):
    assert message in refusal(capsys, "chat", "--port", port, *options.split())


def test_the_default_model_fits_the_board(monkeypatch):
    asked = []

    def ask(name: str) -> None:
        asked.append(name)
        raise ValueError("that is all")

    monkeypatch.setattr("sterna.cli.commands.board.load_language_model", ask)
    for board in ("icebreaker", "ulx3s-85f"):
        assert chat("--port", "sim", "--board", board) == 2
    assert asked == ["micro", "tiny-c12"]


def test_a_typed_line_that_the_model_cannot_read_is_told_and_ends_nothing(monkeypatch, capsys):
    type_lines(monkeypatch, "héllo")
    assert _Talk(None, 4, load_model("micro").tokenizer, None, False, True).read_lines() == 0
    assert "this model knows only ASCII characters" in capsys.readouterr().err


# Bundled models -----------------------------------------------------------------------


@pytest.mark.long
def test_waves_of_a_board_show_its_pins(tmp_path, capsys) -> None:
    waves = tmp_path / "board.vcd"
    assert chat("micro", "--board", "icebreaker", "--port", "sim", "-o", tmp_path, "--tokens", 2,
                "--prompt", "The", "--check", "--waves", waves) == 0
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
    model = load_model("tiny")
    board = board_named("ulx3s-85f")
    simulation = BoardSimulation(board_design(model, BoardParams(board), board.sizes), tmp_path)
    conversation = met(simulation)
    for temperature, seed, text in ((0.0, 1, b"The for statement"), (0.7, 5, b"class")):
        begin(conversation, temperature, seed)
        hold(conversation, ConversationReference(
            OnnxModel(model), temperature=temperature, seed=seed),
            [(text, False), (b"", False)], 12)
    assert simulation.framing_errors == 0
