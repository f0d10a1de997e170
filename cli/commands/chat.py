"""``sterna chat``: a conversation with a model on a board, or in simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.commands import board as board_options
from sterna.cli.terminal.console import Stages, out, say, write
from sterna.cli.terminal.options import MODEL_HELP, WavesOption, check_folder, refuse
from sterna.cli.terminal.texts import check_prompts
from sterna.hw.board import BoardName
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.tokens.tokenizer import BYTES, TextStream, Tokenizer

if TYPE_CHECKING:
    from sterna.hw.board.conversation import Conversation, SerialPort
    from sterna.hw.board.top import BoardParams
    from sterna.sim.board import ConversationReference

__all__ = ["COMMANDS", "chat"]

_SIMULATED = "sim"
_PATIENCE_S = 10.0
_USUAL_TEMPERATURE = 0.7
_HELP = ("/r starts a new text, /? shows this line, Ctrl-D ends; begin a line with // to say "
         "a text that begins with /")


def chat(
    port: Annotated[str, typer.Option(
        help="Serial port of the board, for example /dev/ttyUSB0; sim simulates the board.")],
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}: to simulate, to check against, or for its "
                              "tokenizer. Default: a bundled model that fits the board.")] = None,
    board: Annotated[BoardName, typer.Option(help="Which board.")] = BoardName.ULX3S_85F,
    prompt: Annotated[list[str] | None, typer.Option(
        help="Say this line instead of reading lines; several are turns of a conversation.")
        ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to write after each line.")] = 64,
    temperature: Annotated[float | None, typer.Option(
        help="0 takes the most likely token. Default: 0.7, or 0 on a board without sampling.")
        ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    line_ends: Annotated[bool, typer.Option(
        "--line-ends", help="Send the model a line end after each line.")] = False,
    check: Annotated[bool, typer.Option(
        "--check", help="Compare each token with onnxruntime.")] = False,
    clock: board_options.ClockOption = None,
    baud: board_options.BaudOption = 0,
    rows: board_options.RowsOption = 0,
    cols: board_options.ColsOption = 0,
    quant_lanes: board_options.QuantLanesOption = 0,
    style: board_options.StyleOption = "auto",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output",
        help="With --port sim: keep the compiled simulation in this folder for reuse.")] = None,
    waves: WavesOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the text alone.")] = False,
) -> int:
    """Talk to a model on a board, or in simulation.

    Each line continues from where the last text ended, in one state of the model. With --port sim
    the top module that build puts on the board is simulated. With --check it exits with 1 if a
    token differs from onnxruntime's.

    Example: sterna chat tiny --port sim --prompt "The for statement" --tokens 40 --check
    """
    from sterna.hw.board.conversation import Conversation, ConversationError, check_tokens
    from sterna.hw.board.serial_protocol import Order, order_bytes
    from sterna.model.quantized.sampling import Sampler
    check_tokens(tokens)
    simulated = port == _SIMULATED
    core = board_options.BoardCore(rows, cols, quant_lanes, style)
    wanted = load_model(model) if model is not None else None
    tokenizer = BYTES if wanted is None else wanted.tokenizer
    if not simulated:
        of_bytes = tokenizer.kind == BYTES.kind
        in_bitstream = "a real board has its model and sizes in its bitstream"
        if wanted is not None and of_bytes and not check:
            raise ValueError(f"MODEL goes with --port {_SIMULATED} or --check: {in_bitstream}")
        refuse(f"goes with --port {_SIMULATED}: {in_bitstream}", rows=rows, cols=cols,
               quant_lanes=quant_lanes, style=style != "auto", output=output, waves=waves)
    check_folder(output)
    warmth = _temperature(board, temperature)
    sampler = Sampler(temperature=warmth, seed=seed)
    params = board_options.board_params(board, clock, baud)
    loaded = (wanted or load_model(params.board.fitting)) if simulated or check else wanted
    tokenizer = BYTES if loaded is None else loaded.tokenizer
    if loaded is not None and loaded.config.vocab > tokenizer.vocab:
        raise ValueError(f"the model has {loaded.config.vocab} tokens, and its tokenizer spells "
                         f"only {tokenizer.vocab}: there is no talking to it")
    check_prompts(prompt or (), tokenizer.vocab)
    for text in prompt or ():
        tokenizer.encode(text)
    with ExitStack() as stack:
        if simulated:
            assert loaded is not None
            line = _simulation(loaded, core, params, stack, output, waves, quiet)
        else:
            line = stack.enter_context(_serial_port(port, params.baud))
        conversation = Conversation(line)
        try:
            conversation.meet()
            conversation.set_sampling(sampler.beta, seed)
            conversation.set_line_ends(line_ends)
            conversation.forget()
            reference = _reference(loaded, warmth, seed) if check and loaded else None
            talk = _Talk(conversation, tokens, tokenizer, reference, line_ends, quiet)
            return talk.turns(prompt) if prompt else talk.read_lines()
        except ConversationError as error:
            say(f"sterna: {port}: {error}")
            return 1
        except KeyboardInterrupt:
            line.write(order_bytes(Order.STOP))
            raise


class _Talk:
    """The turns of a conversation, printed as they come."""

    def __init__(
        self, conversation: Conversation, tokens: int, tokenizer: Tokenizer,
        reference: ConversationReference | None, line_ends: bool, quiet: bool,
    ) -> None:
        self._conversation, self._tokens = conversation, tokens
        self._tokenizer, self._quiet = tokenizer, quiet
        self._reference, self._line_ends = reference, line_ends
        self._compared = 0

    def turns(self, lines: Sequence[str]) -> int:
        """Say lines; return the exit code."""
        for line in lines:
            if not self._say(line):
                return 1
        self._tell()
        return 0

    def read_lines(self) -> int:
        """Say what is typed until the input ends; return the exit code."""
        say(_HELP, self._quiet)
        while True:
            try:
                line = input("> ")
            except EOFError:
                print()
                self._tell()
                return 0
            if line == "/r":
                self._conversation.forget()
                if self._reference is not None:
                    self._reference.forget()
            elif line.startswith("/") and not line.startswith("//"):
                say(_HELP)
            else:
                try:
                    if not self._say(line.removeprefix("/") if line[:2] == "//" else line):
                        return 1
                except ValueError as error:
                    say(str(error))

    def _say(self, line: str) -> bool:
        """Say a line and print the answer; return whether it is what it must be."""
        said = self._tokenizer.encode(line).tolist()
        stream = TextStream(self._tokenizer)
        out.print(line, end="", style="bold")
        written: list[int] = []
        for token in self._conversation.say(said, self._tokens):
            written.append(token)
            write(stream.add([token]))
        write(stream.end() + "\n")
        if self._reference is None:
            return True
        expected = self._reference.say(said, self._tokens, line_end=self._line_ends)
        for position, (token, right) in enumerate(zip(written, expected, strict=True)):
            if token != right:
                say(f"MISMATCH at token {position} of the text: the board wrote {token}, "
                    f"onnxruntime {right}")
                return False
        self._compared += len(written)
        return True

    def _tell(self) -> None:
        if self._reference is not None:
            say(f"{self._compared} tokens, all equal to onnxruntime's", self._quiet)


def _temperature(board: BoardName, wanted: float | None) -> float:
    """The temperature asked for, or the usual one of a board."""
    from sterna.hw.board.boards import BOARDS
    sampled = BOARDS[board].sampled
    if wanted and not sampled:
        raise ValueError(
            f"--temperature must be 0 on {board}, whose core has no sampling, got {wanted:g}")
    return (_USUAL_TEMPERATURE if sampled else 0.0) if wanted is None else wanted


def _simulation(
    model: QuantizedModel, core: board_options.BoardCore, params: BoardParams, stack: ExitStack,
    folder: Path | None, waves: Path | None, quiet: bool,
) -> SerialPort:
    from sterna.sim.bench.runner import work_folder
    from sterna.sim.board import BoardSimulation
    with Stages(quiet) as stage:
        design = core.design(model, params, stage)
        stage("compile with Verilator and g++")
        return BoardSimulation(
            design, stack.enter_context(work_folder(folder)), waves=waves)


def _reference(model: QuantizedModel, temperature: float, seed: int) -> ConversationReference:
    from sterna.export.exact.traced import build_step
    from sterna.export.runtime.runtime import OnnxStep
    from sterna.sim.board import ConversationReference
    return ConversationReference(OnnxStep(build_step(model)), temperature=temperature, seed=seed)


@contextmanager
def _serial_port(name: str, baud: int) -> Iterator[SerialPort]:
    import serial
    from serial.tools.list_ports import comports
    try:
        port = serial.Serial(name, baud, timeout=_PATIENCE_S)
    except serial.SerialException as error:
        present = ", ".join(sorted(each.device for each in comports())) or "none"
        raise ValueError(
            f"cannot open the serial port {name} ({error}); ports here: {present}; "
            f"--port sim needs no board") from error
    with port:
        yield port


COMMANDS = (chat,)
