"""``sterna build``: a bitstream of a model for a board; ``sterna chat``: a conversation with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.commands.unit_options import GivenSizes, size_options
from sterna.cli.terminal.console import Stages, out, print_json, progress_bar, say, write
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    ModelArgument,
    QuietOption,
    WavesOption,
    check_folder,
    choose,
    complete_board,
    refuse,
)
from sterna.cli.terminal.tables import Table
from sterna.cli.terminal.texts import check_prompts
from sterna.hw.board.boards import BOARD_NAMES
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.file import load_language_model
from sterna.model.tokens.tokenizer import BYTES, TextStream, Tokenizer

if TYPE_CHECKING:
    from sterna.hw.board.bitstream import Attempt
    from sterna.hw.board.board import Board
    from sterna.hw.board.conversation import Conversation, SerialPort
    from sterna.hw.board.top import BoardDesign, BoardParams
    from sterna.sim.board import ConversationReference

__all__ = [
    "COMMANDS",
    "SIMULATED",
    "BaudOption",
    "BoardOption",
    "ClockOption",
    "board_params",
    "build",
    "chat",
    "design_for",
    "serial_port",
]

BoardOption = Annotated[str, typer.Option(
    help=f"Target board: {' or '.join(BOARD_NAMES)}.", autocompletion=complete_board)]
ClockOption = Annotated[float | None, typer.Option(
    help="Clock of the core in MHz. Default: that of the board.")]
BaudOption = Annotated[int, typer.Option(
    help="Bits per second of the serial line; 0 takes the board's default.")]
_StyleOption = Annotated[str, typer.Option(
    help="How the array is built: auto, or a style that the board supports.")]
_SdramOption = Annotated[bool, typer.Option(
    "--sdram", help="Keep the model in the SDRAM of the board: the bitstream takes every model "
                    "that is no larger than MODEL, as an image.")]
_IMAGE = "image.bin"


def design_for(
    model: QuantizedModel, params: BoardParams, style: str, begin: Callable[[str], None],
    given: GivenSizes, *, sdram: bool,
) -> BoardDesign:
    """The top module of a board with a core of the given sizes, by default the board's.

    ``begin`` is called with the stage once the model may fit; FitError if it clearly does not.
    """
    from sterna.hw.board.top import board_core, board_design
    from sterna.hw.core.product.core_product import CORE
    from sterna.hw.flow.fit import check_memories
    from sterna.hw.fpga.families import style_for
    board = params.board
    sizes = {**given, "style": style_for(board.target, style)}
    core = board_core(model, board, sizes, sdram=sdram)
    if not sdram and not model.is_network:
        check_memories(CORE, core, board.target, advice=[
            f"of the bundled models {board.fitting} fits the {board.name}"])
    begin(f"emit the Verilog of {board.name}")
    return board_design(model, params, sizes, sdram=sdram)


def board_params(board: str, clock: float | None, baud: int) -> BoardParams:
    """The parameters of a board."""
    from sterna.hw.board.boards import board_named
    from sterna.hw.board.top import BoardParams
    choose("--board", board, BOARD_NAMES)
    if clock is not None and not 0 < clock < math.inf:
        raise ValueError(f"--clock must be a positive number of MHz, got {clock:g}")
    hz = 0 if clock is None else round(clock * 1e6)
    return BoardParams(board_named(board), hz, baud)


@size_options("rows", "cols", "quant_lanes")
def build(
    model: ModelArgument,
    board: BoardOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    clock: ClockOption = None,
    baud: BaudOption = 0,
    *,
    sizes: GivenSizes,
    style: _StyleOption = "auto",
    sdram: _SdramOption = False,
    seed: Annotated[int, typer.Option(help="Seed of the placer, from 1.")] = 1,
    seeds: Annotated[int, typer.Option(
        help="Seeds to try, counting up from --seed, until one meets the clock.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make a bitstream of a model for a board.

    Synthesises, places, routes and packs with tools from pip. Writes the bitstream, report.json
    and, in the folder source, the Verilog and the constraints; with --sdram also image.bin, which
    chat loads. No bitstream has been tried on a physical board. Exits with 1 if the design does
    not fit or the clock is not met; report.json is written even then.

    Example: sterna build micro --board icebreaker -o build/icebreaker
    """
    from sterna.cli.reports.synth_page import synth_progress
    from sterna.hw.board.bitstream import TimingError, build_bitstream
    from sterna.hw.board.top import write_sources
    from sterna.hw.flow.fit import FitError
    if seed < 1 or seeds < 1:
        raise ValueError(f"--seed and --seeds must be at least 1, got {seed} and {seeds}")
    check_folder(output)
    loaded = load_model(model)
    params = board_params(board, clock, baud)
    try:
        with synth_progress(quiet) as progress:
            design = design_for(loaded, params, style, lambda text: progress(text, None),
                                sizes, sdram=sdram)
            write_sources(design, output / "source")
            if design.image is not None:
                write_atomically(output / _IMAGE, design.image)
            made = build_bitstream(design, seeds=range(seed, seed + seeds), progress=progress)
    except (FitError, TimingError) as error:
        if error.report is None:
            raise
        # Keep the results of minutes of work.
        _show(design, error.report, {"bitstream": None, "problem": str(error)}, output, as_json)
        say(f"sterna: {error}")
        return 1
    path = write_atomically(output / made.name, made.data)
    steps, rate = ("frames" if loaded.is_network else "tokens"), design.tokens_per_second
    _show(design, made, {
        "bitstream": made.name, "problem": None, "seed": made.seed,
        "fmax_mhz": made.fmax_mhz, f"{steps}_per_second": rate,
    }, output, as_json)
    if not as_json:
        speed = (f"{design.cycles_per_token / params.clock_hz * 1e6:,.0f} microseconds a frame, "
                f"{rate:,.0f} frames/s over the serial line" if loaded.is_network else
                f"{rate:,.0f} tokens/s by the cycle model, at most {params.baud // 10:,} over the "
                f"serial line")
        out.print(f"fmax {made.fmax_mhz:.1f} MHz (nextpnr, seed {made.seed}); {speed}")
        out.print(f"{path}: {len(made.data):,} bytes; not tried on a physical board")
    return 0


def _show(
    design: BoardDesign, tried: Attempt, outcome: dict[str, Any], output: Path, as_json: bool,
) -> None:
    """Write report.json, and print it or the table of resources."""
    report = {
        **design.summary, **outcome,
        "used": {each.resource.value: {"needed": each.needed, "available": each.available}
                 for each in tried.usage},
        "attempts": tried.attempts, "passes": tried.passes, "tools": tried.tools,
    }
    write_atomically(output / "report.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json(report)
        return
    params = design.params
    Table(f"{params.board.description}, clock {params.clock_hz / 1e6:g} MHz",
          ("resource", "used", "available"),
          [
              (each.resource.value, each.needed, each.available) for each in tried.usage]).print()


SIMULATED = "sim"
"""The name of the serial port of a simulated board."""

_PATIENCE_S = 10.0
_USUAL_TEMPERATURE = 0.7
_HELP = ("/r starts a new text, /? shows this line, Ctrl-D ends; begin a line with // to say "
         "a text that begins with /")


@size_options("rows", "cols", "quant_lanes")
def chat(
    port: Annotated[str, typer.Option(
        help="Serial port of the board, for example /dev/ttyUSB0; sim simulates the board.")],
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}: to simulate, to check against, or for its "
                              "tokenizer. Default: a bundled model that fits the board.")] = None,
    board: BoardOption = "ulx3s-85f",
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
    clock: ClockOption = None,
    baud: BaudOption = 0,
    *,
    sizes: GivenSizes,
    style: _StyleOption = "auto",
    sdram: _SdramOption = False,
    load: Annotated[Path | None, typer.Option(
        help="Load this image first, of build --sdram or pack.")] = None,
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
    simulated = port == SIMULATED
    wanted = load_language_model(model) if model is not None else None
    tokenizer = BYTES if wanted is None else wanted.tokenizer
    if not simulated:
        of_bytes = tokenizer.kind == BYTES.kind
        in_bitstream = "a real board has its model and sizes in its bitstream"
        if wanted is not None and of_bytes and not check:
            raise ValueError(f"MODEL goes with --port {SIMULATED} or --check: {in_bitstream}")
        refuse(f"goes with --port {SIMULATED}: {in_bitstream}", **sizes,
               style=style != "auto", sdram=sdram, output=output, waves=waves)
    image = load.read_bytes() if load else None
    check_folder(output)
    params = board_params(board, clock, baud)
    warmth = _temperature(params.board, temperature)
    sampler = Sampler(temperature=warmth, seed=seed)
    loaded = (wanted or load_language_model(params.board.fitting)) if simulated or check else wanted
    tokenizer = BYTES if loaded is None else loaded.tokenizer
    check_prompts(prompt or (), tokenizer)
    with ExitStack() as stack:
        if simulated:
            from sterna.sim.bench.runner import work_folder
            from sterna.sim.board import BoardSimulation
            assert loaded is not None
            with Stages(quiet) as stage:
                design = design_for(loaded, params, style, stage, sizes, sdram=sdram)
                stage("compile with Verilator and g++")
                line: SerialPort = BoardSimulation(
                    design, stack.enter_context(work_folder(output)), waves=waves)
        else:
            line = stack.enter_context(serial_port(port, params.baud))
        conversation = Conversation(line)
        try:
            conversation.meet()
            if image is not None:
                with progress_bar("load the image", quiet) as move:
                    conversation.load(image, lambda done: move(done, len(image)))
            elif sdram:
                conversation.boot()
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
    """The turns of a conversation, printed as they arrive."""

    def __init__(
        self, conversation: Conversation, tokens: int, tokenizer: Tokenizer,
        reference: ConversationReference | None, line_ends: bool, quiet: bool,
    ) -> None:
        self._conversation, self._tokens = conversation, tokens
        self._tokenizer, self._quiet = tokenizer, quiet
        self._reference, self._line_ends = reference, line_ends
        self._compared = 0

    def turns(self, lines: Sequence[str]) -> int:
        """Send lines; return the exit code."""
        for line in lines:
            if not self._say(line):
                return 1
        self._tell()
        return 0

    def read_lines(self) -> int:
        """Send typed lines until the input ends; return the exit code."""
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
        """Send a line and print the answer; return whether it is correct."""
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


def _temperature(board: Board, wanted: float | None) -> float:
    """The requested temperature, or the default of a board."""
    if wanted and not board.sampled:
        raise ValueError(
            f"--temperature must be 0 on {board.name}, whose core has no sampling, got {wanted:g}")
    return (_USUAL_TEMPERATURE if board.sampled else 0.0) if wanted is None else wanted


def _reference(model: QuantizedModel, temperature: float, seed: int) -> ConversationReference:
    from sterna.export.runtime.runtime import OnnxModel
    from sterna.sim.board import ConversationReference
    return ConversationReference(OnnxModel(model), temperature=temperature, seed=seed)


@contextmanager
def serial_port(name: str, baud: int) -> Iterator[SerialPort]:
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


COMMANDS = (build, chat)
