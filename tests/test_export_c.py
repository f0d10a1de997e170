"""The form ``c``: C99 that gives the integers of the reference, its texts and its self-test."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from c_targets import TARGETS, measured
from hypothesis import given, settings
from hypothesis import strategies as st
from published_checkpoint import make_checkpoint

from sterna.cli.main import main
from sterna.export import check_c, export_c
from sterna.export.c.layers import folded
from sterna.export.c.library import CLibrary
from sterna.export.c.step import pack_groups
from sterna.export.forms.selftest import sample_steps
from sterna.model.config import ModelConfig
from sterna.model.cpp_library import CompileError, NoCompilerError
from sterna.model.folder import OutputFolderError
from sterna.model.hub.convert import convert
from sterna.model.hub.folder import HubFolder
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.hgrn_bit import WIDTHS
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.tokenizer import BYTES, Tokenizer, TokenNumbers

WARNINGS = "-Wall -Wextra -Wconversion -Wshadow -Werror -pedantic"
SANITIZERS = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"
BUNDLED = ("tiny", "tiny-c12", "micro", "tiny-bpe", "vowels")
SHAPE = ModelConfig(d=12, layers=2, dff=21, vocab=65)


def _equal(model: QuantizedModel, folder: Path, steps: np.ndarray) -> CLibrary:
    report = check_c(model, folder, steps)
    assert report.passed, report
    library = CLibrary(folder)
    assert library.passes_its_test()
    return library


def _build(folder: Path, options: str = "-O1", compiler: str = "cc") -> Path:
    """Compile the program of a folder; return it."""
    done = subprocess.run(
        ["make", "-B", "-C", folder, f"CC={compiler}", f"CFLAGS={WARNINGS} {options}"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "model"


def _run(program: Path, given: str | bytes, *arguments: str) -> tuple[int, str, str]:
    given = given.encode() if isinstance(given, str) else given
    done = subprocess.run([program, *arguments], input=given, capture_output=True, check=False,
                          cwd=program.parent, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def _text(model: QuantizedModel, prompt: str, tokens: int, sampler: Sampler) -> str:
    """What ``sterna generate`` prints, by the reference."""
    reference = IntegerModel(model)
    state = reference.start(1)
    for token in model.tokenizer.encode(prompt or "\n"):
        logits, state = reference.step(np.array([token]), state)
    drawn = []
    while len(drawn) < tokens and (token := sampler(logits[0])) != model.tokenizer.end_of_text:
        drawn.append(token)
        logits, state = reference.step(np.array([token]), state)
    return f"{prompt}{model.tokenizer.decode(drawn)}\n"


# Integers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_two_thousand_steps_are_the_reference(name, tmp_path):
    """Of two sequences in turn, so of two instances that share the scratch."""
    model = load_model(name)
    export_c(model, tmp_path / "c")
    steps = (sample_steps(model.entry, 2, 1000) if model.is_network
             else np.random.default_rng(1).integers(model.vocab, size=(2, 1000)))
    _equal(model, tmp_path / "c", steps)


@pytest.mark.parametrize(("profile", "shape", "gain"), [
    (S16, SHAPE, 1.5), (C12, replace(SHAPE, d=17, layers=3, vocab=300), 100),
    (S16, replace(SHAPE, layers=1, vocab=2), 100)])
def test_any_shape_is_the_reference(profile, shape, gain, tmp_path):
    """Also where every format saturates."""
    model = random_model(shape, profile, gain=gain)
    export_c(model, tmp_path / "c", name="own_2", blob=True)
    _equal(model, tmp_path / "c", sample_steps(model.entry, 3, 30))


@pytest.mark.parametrize("profile", WIDTHS)
def test_a_converted_checkpoint_is_the_reference(profile, tmp_path):
    """All kinds of records, in 16 to 24 bits."""
    make_checkpoint(tmp_path / "hub", vocab=256)
    model = convert(HubFolder(tmp_path / "hub"), "The moth is in the mist. " * 8, tokenizer=BYTES,
                    widths=WIDTHS[profile])
    export_c(model, tmp_path / "c")
    _equal(model, tmp_path / "c", sample_steps(model.entry, 2, 30))


@pytest.mark.parametrize("compiler", [
    "cc", pytest.param("clang", marks=pytest.mark.needs("clang"))])
@pytest.mark.parametrize("options", ["-O0", "-O2", "-Os", SANITIZERS])
def test_every_option_of_a_compiler_gives_the_same(options, compiler, tmp_path, capsys):
    """A text as of ``sterna generate``, and a table as of ``sterna run``."""
    model = load_model("micro")
    export_c(model, tmp_path / "c")
    code, out, _ = _run(_build(tmp_path / "c", options, compiler), "The ", "tokens=200", "seed=7")
    sampler = Sampler(temperature=0.7, seed=7, logit_frac=model.logit.frac)
    assert (code, out) == (0, _text(model, "The ", 200, sampler))
    export_c(load_model("vowels"), tmp_path / "v")
    rows = np.random.default_rng(0).normal(size=(40, 12)) * 3
    table = tmp_path / "frames.csv"
    table.write_text("".join(f"{','.join(map(str, row))}\n"
                             for row in [["channel"] * 12, *rows.tolist()]))
    assert main(["run", "vowels", str(table)]) == 0
    code, out, _ = _run(_build(tmp_path / "v", options, compiler), table.read_text())
    assert (code, out) == (0, capsys.readouterr().out)


def test_a_sum_of_a_row_of_your_own(tmp_path):
    """With instructions of the processor, for example."""
    export_c(load_model("micro"), tmp_path / "c")
    (tmp_path / "c" / "mine.h").write_text("""
#include <stdint.h>
static inline int32_t mine(const uint8_t *codes, const int8_t *q, int bytes)
{
    int32_t sum = 0;
    for (int j = 0; j < 4 * bytes; j++)
        sum += q[j] * (codes[j % bytes] >> 2 * (j / bytes) & 3);
    return sum PLUS;
}
""")
    for plus, code in (("", 0), ("+ 1", 1)):
        program = _build(tmp_path / "c", f"-DMODEL_DOT=mine -include mine.h '-DPLUS={plus}'")
        assert _run(program, "The ", "tokens=5")[0] == code


def test_the_example_of_the_page_compiles(tmp_path):
    export_c(load_model("micro"), tmp_path / "c")
    page = (Path(__file__).parents[1] / "docs" / "c.md").read_text()
    (tmp_path / "c" / "main.c").write_text(page.split("```c\n")[1].split("```")[0])
    _build(tmp_path / "c")


_ARDUINO = """
#include <stddef.h>
#include <stdint.h>
struct Port {
    void begin(long);
    void println(const char *);
    void print(char);
    void print(int);
    void write(const uint8_t *, size_t);
    int available();
    long parseInt();
};
extern Port Serial;
"""
"""What the sketches use of Arduino's header, as its documentation declares it."""


@pytest.mark.parametrize("name", ["micro", "vowels"])
def test_the_folder_is_a_library_for_arduino(name, tmp_path):
    """Its sketch compiles as C++; the layout is that of Arduino's library specification."""
    export_c(load_model(name), tmp_path / "c", name="moth")
    facts = dict(line.split("=", 1) for line in
                 (tmp_path / "c" / "library.properties").read_text().splitlines())
    assert facts.keys() >= {"name", "version", "author", "maintainer", "sentence", "paragraph",
                            "category", "url", "architectures"}
    assert (tmp_path / "c" / "src" / facts["includes"]).is_file()
    header = tmp_path / "Arduino.h"
    header.write_text(_ARDUINO)
    sketch = tmp_path / "c" / "examples" / "moth" / "moth.ino"
    subprocess.run(["g++", "-fsyntax-only", *WARNINGS.split(), "-x", "c++", "-include", header,
                    f"-I{tmp_path / 'c' / 'src'}", sketch], check=True)
    export_c(load_model(name), tmp_path / "c", name="moth")
    (tmp_path / "c" / "src" / "own.c").write_text("")
    with pytest.raises(OutputFolderError, match=r"did not write \(src/own\.c\)"):
        export_c(load_model(name), tmp_path / "c", name="moth")


@pytest.mark.needs("arm-none-eabi-gcc", "riscv64-unknown-elf-gcc", "qemu-system-arm",
                   "qemu-system-riscv32")
def test_microcontrollers_compute_the_same(tmp_path):
    """In QEMU, which the benchmark compares with the reference."""
    for target in TARGETS:
        row, counts = measured(load_model("micro"), target, tmp_path / target.name, steps=3)
        assert [int(each.replace(",", "")) < most
                for each, most in zip(row, (4_200, 20_000, 2_000), strict=False)] == [True] * 3
        assert counts.total() > 50_000


def test_the_same_model_gives_the_same_bytes_and_each_group_of_columns_its_bits(tmp_path):
    model = random_model(SHAPE, S16)
    for name in ("a", "b"):
        export_c(model, tmp_path / name)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    packed = pack_groups(np.array([[-1, 0, 1, -1, 1]], np.int8))
    assert packed.tolist() == [[0b01_10_10_00, 0b01_01_00_01]]


def test_layers_are_a_loop_and_other_calls_are_not():
    def layer(i: int) -> list[str]:
        return [f"f(s->x0, weights + {10 + 7 * i});", f"g(state->h[{2 * i + 1}], weights + 3);"]
    assert folded(["a();", *layer(0), *layer(1), *layer(2), "b();"]) == [
        "    a();", "    for (layer = 0; layer < 3; layer++, w += 7) {",
        "        f(s->x0, w + 10);", "        g(state->h[2 * layer + 1], weights + 3);", "    }",
        "    b();"]
    unequal = ["f(weights + 1);", "f(weights + 2);", "f(weights + 4);"]
    assert folded(unequal)[0] == "    for (layer = 0; layer < 2; layer++, w += 1) {"
    assert folded(["f(1);", "g(1);"]) == ["    f(1);", "    g(1);"]


# Text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "tiny-bpe"])
def test_every_text_is_that_of_generate(name, tmp_path):
    model = load_model(name)
    export_c(model, tmp_path / "c")
    program = _build(tmp_path / "c")
    for prompt, options, arguments in (
            ("The for  statement\n  x", {"temperature": 0}, ["temperature=0"]),
            ("", {"temperature": 0.7, "seed": 3}, ["seed=3"]),
            ("Zwölf ☂", {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 4294967295},
             ["temperature=1.5", "top_k=20", "top_p=0.9", "seed=4294967295"]),
            ("a", {"temperature": 100}, ["temperature=100"])):      # not UTF-8
        expected = _text(model, prompt, 150, Sampler(logit_frac=model.logit.frac, **options))
        code, out, error = _run(program, prompt, "tokens=150", *arguments)
        assert (code, error) == (0, "")
        assert out == (expected if prompt else "\n" + expected)


def _library(model: QuantizedModel, folder: Path) -> CLibrary:
    export_c(model, folder)
    return CLibrary(folder)


def _encoder(tokenizer: Tokenizer, folder: Path) -> Callable[[bytes], list[int] | None]:
    library = _library(replace(
        random_model(replace(SHAPE, vocab=tokenizer.vocab), S16), tokenizer=tokenizer), folder)

    def encode(text: bytes) -> list[int] | None:
        tokens = (ctypes.c_int32 * (len(text) + 1))()
        count = library.functions.model_encode(
            ctypes.c_void_p(library.weights), text, len(text), tokens)
        return None if count < 0 else tokens[:count]
    return encode


def test_byte_pairs_are_those_of_the_tokenizer(tmp_path):
    tokenizer = BytePairTokenizer(
        [(116, 104), (256, 101), (32, 257), (97, 97), (259, 97), (97, 259), (10, 10), (32, 32),
         (49, 50)], end_of_text=True)
    encode = _encoder(tokenizer, tmp_path / "c")

    @settings(max_examples=300, deadline=None)
    @given(st.text(alphabet=" \n\tathe12.é", max_size=20).map(str.encode) | st.binary(max_size=8))
    def same(text: bytes) -> None:
        assert encode(text) == tokenizer.encode(text).tolist()
    same()


def test_without_a_tokenizer_a_text_is_numbers_of_tokens(tmp_path):
    encode = _encoder(TokenNumbers(65), tmp_path / "c")
    for text in (b" 3 17", b"64\n0", b"", b"65", b"x", b"1234567890", b"-1"):
        try:
            expected = TokenNumbers(65).encode(text).tolist() if text else []
        except ValueError:
            expected = None
        assert encode(text) == expected, text


def test_the_sampler_draws_what_the_reference_draws(tmp_path):
    library = _library(random_model(replace(SHAPE, vocab=9), S16), tmp_path / "c")
    draw = library.functions.model_sample

    @settings(max_examples=400, deadline=None)
    @given(st.lists(st.sampled_from([-32768, -400, -30, 0, 25, 26, 200, 32767]), min_size=9,
                    max_size=9),
           st.sampled_from([0, 0.01, 0.3, 1, 100]), st.integers(1, 2**32 - 1),
           st.none() | st.integers(1, 12), st.none() | st.floats(1e-6, 1))
    def same(logits, temperature, seed, top_k, top_p) -> None:
        sampler = Sampler(temperature=temperature, seed=seed, top_k=top_k, top_p=top_p)
        share = 0 if top_p is None else max(1, int(top_p * 65536 + 0.5))
        own = (ctypes.c_uint32 * 4)(sampler.beta, seed, top_k or 0, share)
        for _ in range(3):
            assert draw(own, (ctypes.c_int16 * 9)(*logits)) == sampler(np.array(logits))
    same()


# What is wrong ------------------------------------------------------------------------


FAULTS = {
    "shift": ("src/model.c", "shift = weights[3]", "shift = weights[3] + 1"),
    "rounding": ("src/model.c", "(x + ((wide)1 << (shift - 1))) >> shift", "x >> shift"),
    "gate": ("src/model.c", "sigmoid(s->x6, s->x4", "sigmoid(s->x6, s->x3"),
    "forget": ("src/model.c", "const wide f = keeps ? gate[i] : ((wide)1 << frac) - gate[i]",
               "const wide f = !keeps ? gate[i] : ((wide)1 << frac) - gate[i]"),
    "bit": ("src/model_weights.c", "128, ", "129, ")}
"""In the C of ``micro``: file, right and wrong."""


def plant(folder: Path, fault: str) -> None:
    file, right, wrong = FAULTS[fault]
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong, 1))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_self_test(fault, tmp_path):
    export_c(load_model("micro"), tmp_path / "c")
    plant(tmp_path / "c", fault)
    program = tmp_path / "c" / "model"
    subprocess.run(["make", "-C", program.parent, "-s"], check=True)
    code, out, error = _run(program, "The ")
    assert (code, out) == (1, "")
    assert error == ("model: the self-test failed: the weights, the compiler or the processor is "
                     "wrong\n")


def test_weights_in_a_file_are_checked(tmp_path):
    export_c(load_model("micro"), tmp_path / "c", blob=True)
    program = _build(tmp_path / "c")
    blob = tmp_path / "c" / "model.bin"
    content = blob.read_bytes()
    assert _run(program, "The ", "tokens=3")[0] == 0
    for wrong, code, said in (
            (content[:-1], 2, "model.bin: not the weights of this model: another number of bytes"),
            (content + b"\0", 2, "model.bin: not the weights of this model"),
            (b"", 2, "model.bin: empty"), (None, 2, "model.bin: cannot read the weights"),
            (content[:5000] + bytes([content[5000] ^ 1]) + content[5001:], 1, "self-test failed")):
        blob.unlink(missing_ok=True)
        if wrong is not None:
            blob.write_bytes(wrong)
        found = _run(program, "The ", "tokens=3")
        assert found[:2] == (code, "")
        assert said in found[2]


def test_the_program_refuses_bad_input(tmp_path):
    export_c(random_model(replace(SHAPE, vocab=128), S16), tmp_path / "c")
    program = _build(tmp_path / "c")
    for argument in ("tokens=2.5", "tokens=0", "tokens=", "temperature=0.001", "temperature=nan",
                     "top_p=0", "top_p=1.1", "seed=0", "seed=4294967296", "top_k=x", "200"):
        code, out, error = _run(program, "a", argument)
        assert (code, out) == (2, ""), argument
        assert error.startswith("model: expected tokens=N, ")
        assert error.endswith(f"got {argument}\n")
    assert _run(program, "é") == (2, "", "model: the model lacks a character of the prompt\n")
    assert _run(program, "a" * 70000)[0] == 2
    numbers = replace(random_model(SHAPE, S16), tokenizer=TokenNumbers(SHAPE.vocab))
    export_c(numbers, tmp_path / "n")
    assert _run(_build(tmp_path / "n"), " ") == (2, "", "model: the prompt has no tokens\n")
    export_c(load_model("vowels"), tmp_path / "v")
    frames = _build(tmp_path / "v")
    for table, line in (("1,2\n", 1), (",".join("1" * 12) + "\n1,x\n", 2),
                        (",".join("1" * 13), 1), ("nan" + ",1" * 11, 1)):
        code, _, error = _run(frames, table)
        assert (code, error) == (2, f"model: line {line}: expected 12 numbers\n")
    token = CLibrary(tmp_path / "c")
    token.functions.model_step.restype = ctypes.c_void_p
    for wrong in (-1, 128):
        assert token.functions.model_step(
            ctypes.c_void_p(token.weights), bytes(1000), bytes(10000), wrong) is None


@pytest.mark.parametrize(("options", "said"), [
    (("--ram", "987"), "the state and the scratch take 988 bytes, and 987 are allowed"),
    (("--flash", "7000"), "the weights take 7,178 bytes, and 7,000 are allowed"),
    (("--name", "2d"), "a name in C must be a lower-case letter, then up to 30 of these, digits "
                       "or underscores, got '2d'"),
    (("--one-token",), "--one-token goes with an ONNX graph"),
    (("--check", "0", "--form", "exact", "--blob"), "--blob goes with --form c"),
])
def test_the_command_refuses(options, said, tmp_path, capsys):
    command = ("export", "vowels", "-o", tmp_path / "c", "--form", "c", *options)
    assert main([str(each) for each in command]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"sterna: {said}"
    assert not (tmp_path / "c").exists()


def test_the_command_writes_compares_and_names_a_missing_compiler(tmp_path, capsys, monkeypatch):
    command = ["export", "vowels", "-o", str(tmp_path / "c"), "--form", "c", "--quiet"]
    assert main([*command, "--check", "20"]) == 0
    assert capsys.readouterr().out.endswith(
        "7,178 bytes of weights, 128 of state and 860 of scratch; 244 values compared, 0 "
        "mismatches\n")
    monkeypatch.setenv("CC", "no-cc")
    assert main(command) == 2
    assert "there is no C compiler no-cc" in capsys.readouterr().err
    with pytest.raises(NoCompilerError):
        CLibrary(tmp_path / "c")
    assert main([*command, "--check", "0"]) == 0
    monkeypatch.setenv("CC", shutil.which("cc") or "cc")
    (tmp_path / "c" / "src" / "model.c").write_text("nothing")
    with pytest.raises(CompileError):
        CLibrary(tmp_path / "c")
    (tmp_path / "c" / "notes.txt").write_text("mine")
    assert main(command) == 2
    assert os.listdir(tmp_path) == ["c"]
