"""The image of a core: behind a port, in ROMs of one Verilog for many models, packed and back."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator as AmaranthSimulator
from hypothesis import given, settings
from hypothesis import strategies as st
from native_graphs import random_hgrn_bit
from simulated_cores import SHAPES, SMALL, assert_same_model, params_of, requests

from sterna.cli.main import main
from sterna.hw.catalog import emit_verilog
from sterna.hw.core.compute.core import Core, logit_layout
from sterna.hw.core.compute.request import Request
from sterna.hw.core.compute.sequences import prompt_layout, token_layout
from sterna.hw.core.cycles.report import shape_stages
from sterna.hw.core.image.core_image import CoreImage, build_image, unpack_image
from sterna.hw.core.image.linear import pack_image, read_image
from sterna.hw.core.image.reader import ImageReader, ImageStatus
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.core_product import core_design
from sterna.hw.emit.folder import emit_component
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.hgrn_bit import WIDTHS, HgrnBitShape
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.memory import ImageMemory, behind_memory
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

LIMITS = Limits.of_stages(S16, [shape_stages(ModelConfig(16, 2, 20, 40), S16)], (1, 40), 16)
pytestmark = pytest.mark.usefixtures("quick_build")
STYLES = [ArrayStyle.GENERIC, ArrayStyle.ECP5_CHAIN, ArrayStyle.XC7_PAIR]


def test_one_verilog_runs_every_model_within_its_limits(tmp_path: Path) -> None:
    models = [random_model(ModelConfig(*shape), S16, seed=number) for number, shape in enumerate((
        (12, 2, 20, 40), (5, 3, 30, 33), (16, 1, 8, 7),
        (3, 1, 2, 256)))]   # nothing for the second cluster: its weights are zeros
    params = CoreParams(Limits.of(*models), sequences=2, **SMALL)
    cores = [verilog_files(Core(build_image(model, params)), "core") for model in models]
    # But for the names of the files of their contents.
    assert len({re.sub(r"_[0-9a-f]{8}\.mem", ".mem", files["core.v"]) for files in cores}) == 1
    other = random_hgrn_bit(HgrnBitShape(d=12, layers=1, dff=20, vocab=40), WIDTHS["S16"])
    with pytest.raises(ValueError, match="such as hgrn_bit of a converted checkpoint"):
        build_image(other, params)
    for number, model in enumerate(models):
        emitted = emit_component(model, core_design(model, params), tmp_path / str(number))
        report, = run_core_phases(model, emitted, [
            CorePhase("cut", ((0, Request((0,), 9)), (1, Request((0,), 9))), cut_after=150),
            CorePhase("text", tuple(requests(params, model)), reset=True)], work=tmp_path)
        assert (report.checks.passed, report.timing.mismatches) == (True, 0), report


@given(
    d=st.integers(1, 40), layers=st.integers(1, 3), dff=st.integers(1, 60),
    vocab=st.integers(2, 90), seed=st.integers(0, 99), profile=st.sampled_from([S16, C12]),
    style=st.sampled_from(STYLES), rows=st.sampled_from([2, 4, 16]),
    port=st.sampled_from([16, 64, 512]))
@settings(max_examples=40)
def test_any_model_unpacks_to_itself(
    d, layers, dff, vocab, seed, profile, style, rows, port,
) -> None:
    model = random_model(ModelConfig(d, layers, dff, vocab), profile, seed=seed)
    larger = random_model(ModelConfig(d + 3, layers + 1, dff, vocab), profile, seed=seed)
    params = CoreParams(Limits.of(model, larger), **SMALL | {"rows": rows}, style=style)
    image = build_image(model, params)
    assert_same_model(unpack_image(image, model.tokenizer), model)
    behind = build_image(model, replace(
        params, port_bits=port, phases=0, style=ArrayStyle.GENERIC))
    assert read_image(pack_image(behind), behind.params) == behind


WISHBONE = """
module bench (
  input clk, input rst, input pauses,
  input [{prompt}:0] prompts__payload, input prompts__valid, output prompts__ready,
  output [{token}:0] tokens__payload, output tokens__valid, input tokens__ready,
  output [{logits}:0] logits__payload, output logits__valid, input logits__ready);
  wire cyc, stb;
  wire [{address}:0] adr;
  reg [63:0] image [0:{words}];
  initial $readmemh("image.mem", image);
  reg stall = 0, ack = 0;
  reg [63:0] dat;
  reg [30:0] random = 1;
  // One answer is on its way at most.
  reg waiting = 0;
  reg [{address}:0] place;
  wire answers = waiting && random[3];
  always @(posedge clk) begin
    random <= {{random[29:0], random[27] ^ random[30]}};
    stall <= pauses && random[0];
    ack <= answers && !rst;
    dat <= image[place];
    if (answers || rst) waiting <= 0;
    if (cyc && stb && !busy && !rst) begin
      waiting <= 1;
      place <= adr;
    end
  end
  wire busy = stall || (waiting && !answers);
  core_on_wishbone #(.PORT(64), .ADDRESS({address} + 1), .PROMPT({prompt} + 1),
    .TOKEN({token} + 1), .LOGITS({logits} + 1)) dut (
    .clk(clk), .rst(rst), .prompts__payload(prompts__payload), .prompts__valid(prompts__valid),
    .prompts__ready(prompts__ready), .tokens__payload(tokens__payload),
    .tokens__valid(tokens__valid), .tokens__ready(tokens__ready),
    .logits__payload(logits__payload), .logits__valid(logits__valid),
    .logits__ready(logits__ready), .wb_cyc(cyc), .wb_stb(stb), .wb_adr(adr), .wb_stall(busy),
    .wb_ack(ack), .wb_err(1'b0), .wb_dat_r(dat));
endmodule
"""


@pytest.mark.long
def test_the_example_takes_the_image_from_a_wishbone_bus(tmp_path: Path) -> None:
    model = SHAPES[0].model()
    core = emit_verilog(
        model, "core", tmp_path / "core", name="core", port_bits=64, sequences=2, **SMALL)
    params = core.params
    image = pack_image(build_image(model, params))
    words = np.frombuffer(image, dtype="<u8")
    (tmp_path / "image.mem").write_text("".join(f"{word:016x}\n" for word in words))
    (tmp_path / "bench.v").write_text(WISHBONE.format(
        prompt=prompt_layout(params).size - 1, token=token_layout(params).size - 1,
        logits=logit_layout(params).size - 1, address=params.address_bits - 1,
        words=len(words) - 1))
    example = Path(__file__).parent / "verilog" / "core_on_wishbone.v"
    asked = tuple((number, Request((3 + number,), tokens=4)) for number in range(2))
    # The bench takes the place of another memory, with the same ports.
    bench = replace(
        behind_memory(core, ImageMemory(params, image), tmp_path / "ports"), module="bench",
        texts={"filelist.f": "\n".join(map(str, [*core.sources, example, tmp_path / "bench.v"]))})
    for report in run_core_phases(model, bench, [
            CorePhase("plain", asked), CorePhase("paused", asked, random_pauses=True)],
            work=tmp_path):
        assert report.checks.passed, report


def boot(
    params: CoreParams, images: list[bytes], *, last: int | None = None, fails: bool = False,
) -> list[ImageStatus]:
    """What an image reader says of each image, one after the other; a cut one is read as zeros.

    The memory answers no more after ``last`` words, or with an error.
    """
    reader = ImageReader(params)
    contents: list[int] = []
    found = []

    async def memory(ctx):
        ctx.set(reader.reads.ready, 1)
        place = left = 0
        while (status := ctx.get(reader.status)) == ImageStatus.LOADING:
            answers = last is None or place < last
            ctx.set(reader.data.valid, left > 0 and (answers or fails))
            ctx.set(reader.failed, not answers and fails)
            ctx.set(reader.data.payload, contents[place] if place < len(contents) else 0)
            *_, asks, read, takes = await ctx.tick().sample(
                reader.reads.valid, reader.reads.payload, reader.data.valid & reader.data.ready)
            if asks:
                place, left = read.address, read.count
            place, left = place + takes, left - takes
        found.append(status)

    simulator = AmaranthSimulator(reader)
    simulator.add_clock(1e-6)
    simulator.add_testbench(memory)
    for image in images:
        size = params.port_bits // 8
        contents[:] = [int.from_bytes(image[at:at + size], "little")
                       for at in range(0, len(image), size)]
        if found:
            simulator.reset()
        simulator.run()
    return found


def with_word(image: bytes, index: int, value: int) -> bytes:
    """An image with another word of 32 bits, and a CRC-32 that is right."""
    changed = image[:4 * index] + value.to_bytes(4, "little") + image[4 * index + 4:-4]
    return changed + zlib.crc32(changed).to_bytes(4, "little")


@pytest.mark.parametrize("port", [16, 64, 512])
def test_a_reader_runs_a_whole_image_and_no_other(port: int) -> None:
    model = random_model(ModelConfig(6, 1, 9, 11), S16, seed=4)
    params = params_of(model, port_bits=port)
    image = pack_image(build_image(model, params))
    rng = np.random.default_rng(port)
    flipped = [bytes(image[:at]) + bytes([image[at] ^ 1 << int(bit)]) + bytes(image[at + 1:])
               for at, bit in zip(rng.integers(64, len(image), size=6), rng.integers(0, 8, size=6),
                                  strict=True)]
    cases = [
        (image, ImageStatus.RUNNING, None),
        (with_word(image, 0, 0x46554747), ImageStatus.NO_IMAGE, "the magic of the image is 0x4655"),
        (with_word(image, 1, 1), ImageStatus.VERSION, "the version of the image is 0x1, not 0x2"),
        (pack_image(build_image(model, replace(
            params, limits=replace(params.limits, shifts=(0, 40))))),
         ImageStatus.OTHER_CORE, "for a core of other limits"),
        (with_word(image, 3, 0), ImageStatus.DAMAGED, "its header says 0"),
        (image[:len(image) // 2], ImageStatus.DAMAGED, "its header says"),
        *((each, ImageStatus.DAMAGED, "the image is damaged") for each in flipped),
    ]
    assert boot(params, [each for each, _, _ in cases]) == [status for _, status, _ in cases]
    for each, _, message in cases[1:]:
        with pytest.raises(ValueError, match=message):
            read_image(each, params)
    with pytest.raises(ValueError, match="64 bytes at least, got 10"):
        read_image(image[:10], params)


@pytest.mark.parametrize("last", [0, 20])
def test_a_memory_that_fails_or_is_silent_stops_the_reader(last: int) -> None:
    model = random_model(ModelConfig(6, 1, 9, 11), S16, seed=4)
    params = params_of(model, port_bits=64, patience=100)
    image = pack_image(build_image(model, params))
    assert boot(params, [image], last=last) == [ImageStatus.SILENT]
    assert boot(params, [image], last=last, fails=True) == [ImageStatus.FAILED]


@pytest.mark.long
def test_nothing_comes_out_after_a_wrong_word() -> None:
    model = random_model(ModelConfig(6, 1, 9, 11), S16, seed=4)
    params = params_of(model, port_bits=64)
    image = build_image(model, params)
    core, memory = Core(image), ImageMemory(params, pack_image(image))
    m = Module()
    m.submodules.core, m.submodules.memory = core, memory
    for name in ("reads", "data"):
        wiring.connect(m, getattr(core, name), getattr(memory, name))

    async def bench(ctx) -> None:
        ctx.set(core.logits.ready, 1)
        ctx.set(core.tokens.ready, 1)
        ctx.set(core.prompts.valid, 1)
        ctx.set(core.prompts.payload, {"predict": 1, "start": 1, "limit": 3})
        await ctx.tick().until(core.prompts.ready)
        ctx.set(core.prompts.valid, 0)
        await ctx.tick().until(core.logits.valid)
        ctx.set(core.failed, 1)
        await ctx.tick()
        assert ctx.get(core.status) == ImageStatus.FAILED
        ctx.set(core.failed, 0)
        for _ in range(300):
            assert not ctx.get(core.logits.valid | core.tokens.valid | core.prompts.ready)
            await ctx.tick()

    simulator = AmaranthSimulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(("config", "profile", "message"), [
    (ModelConfig(17, 1, 8, 8), S16, "has 17 x 17 weights, the core takes 16 x 16 there"),
    (ModelConfig(8, 1, 24, 8), S16, "glu.down has 8 x 24 weights, the core takes 16 x 20 there"),
    (ModelConfig(8, 3, 8, 8), S16, "the model has 3 stages of kind MLGRU, the core takes 2"),
    (ModelConfig(8, 1, 8, 99), S16, "head has 99 x 8 weights, the core takes 40 x 16 there"),
    (ModelConfig(8, 1, 8, 8), C12, "in the formats of S16, the model has those of C12"),
])
def test_a_model_beyond_the_limits_is_refused(config, profile, message: str) -> None:
    params = CoreParams(LIMITS, **SMALL)
    with pytest.raises(ValueError, match=message):
        build_image(random_model(config, profile, seed=1), params)


def test_a_shift_beyond_the_limits_is_refused() -> None:
    model = random_model(ModelConfig(8, 1, 8, 8), S16, seed=1)
    low = min(each.shift for each in model.projections.values())
    params = CoreParams(replace(Limits.of(model), shifts=(low + 1, 40)), **SMALL)
    with pytest.raises(ValueError, match=f"has a shift of {low}, the core takes {low + 1} to"):
        build_image(model, params)


@pytest.mark.parametrize(("changes", "message"), [
    ({"rows": 6}, "rows must be a power of two, got 6"),
    ({"sequences": 3}, "sequences must be a power of two"),
    ({"sequences": 1, "phases": 2}, "two phases take two sequences or more"),
    ({"cell_lanes": 4}, "cell_lanes must be a whole number from 1 to 2, got 4"),
    ({"cols": 20}, "must be a multiple of clusters"),
    ({"port_bits": 64, "style": "xc7-pair"}, "the codes of xc7-pair cannot come through a port"),
    ({"port_bits": 64, "sequences": 2, "phases": 2}, "with a port there is one"),
    ({"port_bits": 24}, "port_bits must be a power of two, got 24"),
    ({"port_bits": 8}, "port_bits must be a whole number from 16 to 4096, got 8"),
    ({"port_bits": 64, "ring": 4}, "ring must be a whole number from 6 to 65536, got 4"),
])
def test_impossible_sizes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoreParams(LIMITS, **SMALL | changes)


def test_formats_of_two_kinds_have_no_core() -> None:
    models = [random_model(ModelConfig(8, 1, 8, 8), profile, seed=1) for profile in (S16, C12)]
    with pytest.raises(ValueError, match="one set of formats, got models of C12, S16"):
        Limits.of(*models)


def test_a_damaged_image_is_noticed() -> None:
    model = random_model(ModelConfig(8, 1, 8, 8), S16, seed=1)
    image = build_image(model, CoreParams(Limits.of(model), **SMALL))
    for changed, message in (
        (replace(image, weights=[2, *image.weights[1:]]), "code 2 is none of 0, 1, 3"),
        (replace(image, headers=[image.headers[0] ^ 1 << 17, *image.headers[1:]]),
         "a number of -1 weights is wrong"),
        (replace(image, test=image.test ^ 1), "writes another text than that of its test"),
    ):
        assert isinstance(changed, CoreImage)
        with pytest.raises(ValueError, match=message):
            unpack_image(changed)


def test_any_model_within_the_limits_is_packed_for_an_emitted_core(tmp_path, capsys) -> None:
    made_for, other = (random_model(ModelConfig(8, 2, 12, 20), S16, seed=seed) for seed in (1, 2))
    small = random_model(ModelConfig(5, 1, 7, 9), S16, seed=3)
    limits = Limits.of(made_for, other, small)
    params = CoreParams(limits, **SMALL, port_bits=32)
    emit_component(made_for, core_design(made_for, params), tmp_path / "core")
    rom = emit_component(
        made_for, core_design(made_for, replace(params, port_bits=0)), tmp_path / "rom")
    with pytest.raises(ValueError, match="has its model in ROMs: no memory goes with it"):
        run_core_phases(made_for, rom, [], memory=object())
    assert CoreParams.of_folder(tmp_path / "core") == params

    def pack(model: QuantizedModel, folder: str) -> tuple[int, str]:
        model.save(tmp_path / "model.safetensors")
        code = main(["pack", str(tmp_path / "model.safetensors"), str(tmp_path / folder),
                     "-o", str(tmp_path / "image.bin"), "--quiet"])
        return code, capsys.readouterr().err

    for model in (other, small):
        assert pack(model, "core") == (0, "")
        image = read_image((tmp_path / "image.bin").read_bytes(), params)
        assert_same_model(unpack_image(image, model.tokenizer), model)
    (tmp_path / "image.bin").unlink()
    (tmp_path / "glu").mkdir()
    (tmp_path / "glu" / "params.json").write_text('{"params": {"lanes": 8}}')
    large = random_model(ModelConfig(8, 3, 12, 20), S16, seed=1)
    for model, folder, message in (
        (large, "core", "the model has 3 stages of kind MLGRU, the core takes 2"),
        (small, "rom", "has its model in ROMs: it takes no image"),
        (small, "glu", "glu/params.json is not of a core"),
        (small, "nowhere", "nowhere is no folder of a unit: it has no params.json"),
    ):
        code, error = pack(model, folder)
        assert (code, error.count("\n")) == (2, 1)
        assert message in error
    assert not (tmp_path / "image.bin").exists()
