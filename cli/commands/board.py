"""``sterna build`` and ``sterna chat``: a bitstream for a board; a conversation with it."""

from __future__ import annotations

import codecs
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.terminal.console import out, print_json, print_table, say
from sterna.hw.board.names import BoardName
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel, load_model

if TYPE_CHECKING:
    from sterna.hw.board.boards import Board
    from sterna.hw.board.conversation import Conversation, SerialPort
    from sterna.hw.board.emit_board import BoardDesign
    from sterna.hw.board.top import BoardParams
    from sterna.hw.flow.pnr_progress import Step
    from sterna.hw.units.spec import Sizes
    from sterna.sim.board_reference import ConversationReference

__all__ = ["COMMANDS", "build", "chat"]

_SIMULATED = "sim"
_PATIENCE_S = 10.0
_USUAL_TEMPERATURE = 0.7
_HELP = "/r begins anew, /? shows this, Ctrl-D ends; a line that begins with // is a text with /"

BoardOption = Annotated[BoardName, typer.Option(help="Which board.")]
ClockOption = Annotated[float | None, typer.Option(
    help="Clock of the core in MHz; default: the board's usual one.")]
BaudOption = Annotated[int, typer.Option(
    help="Bits per second of the serial line; 0 takes the board's usual speed.")]
RowsOption = Annotated[int, typer.Option(help="Rows of the array; 0 takes the board's usual.")]
ColsOption = Annotated[int, typer.Option(help="Columns of it; 0 takes the board's usual.")]
QuantLanesOption = Annotated[int, typer.Option(
    help="Elements quantised per cycle; 0 takes the board's usual, or chooses for other rows "
         "and columns.")]
StyleOption = Annotated[str, typer.Option(
    help="What the array is built of: auto, or a style that suits the board.")]


def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")],
    board: Annotated[BoardName, typer.Option(help="Which board.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    clock: ClockOption = None,
    baud: BaudOption = 0,
    tokens: Annotated[int, typer.Option(
        help="Tokens (bytes) to write after a line, until a user says otherwise.")] = 64,
    temperature: Annotated[float | None, typer.Option(
        help="Temperature until a user says otherwise; 0 takes the most likely token. "
             "Default: 0.7, or 0 on a board without sampling.")] = None,
    rows: RowsOption = 0,
    cols: ColsOption = 0,
    quant_lanes: QuantLanesOption = 0,
    style: StyleOption = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the placer, from 1.")] = 1,
    seeds: Annotated[int, typer.Option(
        help="Seeds to try, from --seed on, until one meets the clock.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Make a bitstream of a model for a board: synthesise, place, route, pack.

    The tools come from pip. Writes the bitstream, report.json and, in source, the Verilog and
    the constraints. Nothing here was tried on a physical board. Exits with 1 if the clock is
    not met.

    Example: sterna build micro --board icebreaker -o build/icebreaker
    """
    from sterna.hw.board.bitstream import TimingError, build_bitstream
    from sterna.hw.board.emit_board import write_sources
    from sterna.hw.core.unit import CORE
    from sterna.hw.flow.fit import check_memories
    if seed < 1 or seeds < 1:
        raise ValueError(f"--seed and --seeds must be at least 1, got {seed} and {seeds}")
    loaded = load_model(model)
    params = _params(board, clock, baud, tokens, _temperature(board, temperature))
    sizes = _sizes(params.board, rows, cols, quant_lanes, style)
    core = CORE.params_for(loaded, sizes)
    check_memories(loaded, CORE, core, params.board.target, advice=[
        f"of the bundled models {params.board.fitting} fits the {board}"])
    design = _design(loaded, params, sizes, quiet)
    write_sources(design, output / "source")
    last = ""

    def show(text: str, step: Step | None) -> None:
        nonlocal last
        line = text if step is None else f"{text}: {step.phase}"
        if line != last:
            say(line, quiet)
        last = line

    try:
        made = build_bitstream(design, seeds=range(seed, seed + seeds), progress=show)
    except TimingError as error:
        say(f"sterna: {error}")
        return 1
    report = {
        **design.summary, "bitstream": made.name,
        "used": {name.value: {"needed": needed, "available": available}
                 for name, (needed, available) in made.used.items()},
        "seed": made.seed, "fmax_mhz": made.fmax_mhz, "attempts": made.attempts,
        "passes": made.passes, "tokens_per_second": design.tokens_per_second,
        "tools": made.tools,
    }
    path = write_atomically(output / made.name, made.data)
    write_atomically(output / "report.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json(report)
        return 0
    print_table(
        f"{params.board.description}, clock {params.clock_hz / 1e6:g} MHz",
        ("resource", "used", "available"),
        [(name.value, *counts) for name, counts in made.used.items()])
    out.print(f"fmax {made.fmax_mhz:.1f} MHz (nextpnr, seed {made.seed}); "
              f"{design.tokens_per_second:,.0f} tokens/s by the cycle model, at most "
              f"{params.baud // 10:,} over the serial line")
    out.print(f"{path}: {len(made.data):,} bytes; not tried on a physical board")
    return 0


def chat(
    port: Annotated[str, typer.Option(
        help="Serial port of the board, /dev/ttyUSB0 for example; sim simulates the board.")],
    model: Annotated[str, typer.Option(
        metavar="MODEL", help="Quantised file, or tiny: what to simulate, or to check by.")
        ] = "tiny",
    board: BoardOption = BoardName.ULX3S_85F,
    prompt: Annotated[list[str] | None, typer.Option(
        help="A line to say, instead of reading lines; several are turns of a conversation.")
        ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens (bytes) to write after a line.")] = 64,
    temperature: Annotated[float | None, typer.Option(
        help="0 takes the most likely token. Default: 0.7, or 0 on a board without sampling.")
        ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler, from 1.")] = 1,
    line_ends: Annotated[bool, typer.Option(
        "--line-ends", help="Let the model read a line end after each line.")] = False,
    check: Annotated[bool, typer.Option(
        "--check", help="Compare each token with onnxruntime's.")] = False,
    clock: ClockOption = None,
    baud: BaudOption = 0,
    rows: RowsOption = 0,
    cols: ColsOption = 0,
    quant_lanes: QuantLanesOption = 0,
    style: StyleOption = "auto",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="sim: keep what is compiled in this folder, and use it again.")
        ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="The text alone.")] = False,
) -> int:
    """Talk to a model on a board, or to the same top module in simulation.

    Each line goes on where the last text ended, in one state of the model; --check exits
    with 1 if a token is not onnxruntime's.

    Example: sterna chat --port sim --prompt "The for statement" --tokens 40 --check
    """
    from sterna.hw.board.conversation import Conversation, ConversationError, check_tokens
    from sterna.model.quantized.sampling import Sampler
    check_tokens(tokens)
    warmth = _temperature(board, temperature)
    sampler = Sampler(temperature=warmth, seed=seed)
    simulated = port == _SIMULATED
    loaded = load_model(model) if simulated or check else None
    params = _params(board, clock, baud)
    with ExitStack() as stack:
        if simulated:
            assert loaded is not None
            design = _design(
                loaded, params, _sizes(params.board, rows, cols, quant_lanes, style), quiet)
            line: SerialPort = _simulation(design, stack, output, quiet)
        else:
            line = stack.enter_context(_serial_port(port, params.baud))
        conversation = Conversation(line)
        try:
            conversation.meet()
            conversation.set_sampling(sampler.beta, seed)
            conversation.set_line_ends(line_ends)
            conversation.forget()
            reference = _reference(loaded, warmth, seed) if check and loaded else None
            talk = _Talk(conversation, tokens, loaded, reference, line_ends)
            return talk.turns(prompt) if prompt else talk.read_lines()
        except ConversationError as error:
            say(f"sterna: {port}: {error}")
            return 1
        except KeyboardInterrupt:
            line.write(b"\x03")
            raise


class _Talk:
    """The turns of a conversation, printed as they come."""

    def __init__(
        self, conversation: Conversation, tokens: int, model: QuantizedModel | None,
        reference: ConversationReference | None, line_ends: bool,
    ) -> None:
        self._conversation, self._tokens = conversation, tokens
        self._vocab = 256 if model is None else model.config.vocab
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
        """Say what is typed, up to its end; return the exit code."""
        say(_HELP)
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
        """Say a line and print what comes; return whether it is as it must be."""
        from sterna.hw.board.conversation import check_line
        text = line.encode()
        check_line(text, self._vocab)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        out.print(line, end="", style="bold")
        written: list[int] = []
        for token in self._conversation.say(text, self._tokens):
            written.append(token)
            sys.stdout.write(decoder.decode(bytes([token])))
            sys.stdout.flush()
        sys.stdout.write(decoder.decode(b"", final=True) + "\n")
        sys.stdout.flush()
        if self._reference is None:
            return True
        expected = self._reference.say(text, self._tokens, line_end=self._line_ends)
        for position, (token, right) in enumerate(zip(written, expected, strict=True)):
            if token != right:
                say(f"MISMATCH at token {position} of the text: the board wrote {token}, "
                    f"onnxruntime {right}")
                return False
        self._compared += len(written)
        return True

    def _tell(self) -> None:
        if self._reference is not None:
            say(f"{self._compared} tokens, all equal to onnxruntime's")


def _temperature(board: BoardName, wanted: float | None) -> float:
    """The temperature asked for, or the usual one of a board."""
    from sterna.hw.board.boards import BOARDS
    sampled = BOARDS[board].sampled
    if wanted and not sampled:
        raise ValueError(
            f"the core on {board} has no sampling: the temperature must be 0, got {wanted:g}")
    return (_USUAL_TEMPERATURE if sampled else 0.0) if wanted is None else wanted


def _params(
    board: BoardName, clock: float | None, baud: int, tokens: int = 64,
    temperature: float = 0.0,
) -> BoardParams:
    from sterna.hw.board.boards import BOARDS
    from sterna.hw.board.line_settings import LineDefaults
    from sterna.hw.board.top import BoardParams
    from sterna.model.quantized.sampling import Sampler
    hz = 0 if clock is None else round(clock * 1e6)
    defaults = LineDefaults(tokens, Sampler(temperature=temperature).beta)
    return BoardParams(BOARDS[board], hz, baud, defaults)


def _sizes(board: Board, rows: int, cols: int, quant_lanes: int, style: str) -> Sizes:
    """The usual sizes of a board, but for those that were given."""
    from sterna.hw.flow.target import style_for
    given = {"rows": rows, "cols": cols, "quant_lanes": quant_lanes}
    usual = dict(board.sizes)
    if rows or cols:
        del usual["quant_lanes"]      # it would be that of another array
    return {**usual, **{name: value for name, value in given.items() if value},
            "style": style_for(board.target, style)}


def _design(
    model: QuantizedModel, params: BoardParams, sizes: Sizes, quiet: bool,
) -> BoardDesign:
    from sterna.hw.board.emit_board import board_design
    say(f"emit the Verilog of {params.board.name}", quiet)
    return board_design(model, params, sizes)


def _simulation(
    design: BoardDesign, stack: ExitStack, folder: Path | None, quiet: bool,
) -> SerialPort:
    from sterna.sim.board import BoardSimulation
    if folder is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-")))
    say("compile with Verilator and g++", quiet)
    return BoardSimulation(design, folder)


def _reference(model: QuantizedModel, temperature: float, seed: int) -> ConversationReference:
    from sterna.export.exact.traced import build_step
    from sterna.export.runtime.runtime import OnnxStep
    from sterna.sim.board_reference import ConversationReference
    return ConversationReference(OnnxStep(build_step(model)), temperature=temperature, seed=seed)


@contextmanager
def _serial_port(name: str, baud: int) -> Iterator[SerialPort]:
    """Open a serial port."""
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
