"""Every form of every Triton kernel is compiled for two GPUs, without one.

`make test-triton` runs these; without Triton, or in its interpreter, they are skipped.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is in the extra triton")

from triton_aot import ARCHITECTURES, KERNELS, Compiled, Sizes, compile_form

from sterna.model.torch.triton_kernels.kernel import INTERPRETED, Form, Kernel

if INTERPRETED:
    pytest.skip("the interpreter has no compiler", allow_module_level=True)

SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes that a program may have (CUDA C++ Programming Guide, technical specifications)."""
FORMS = [(kernel, form) for kernel in KERNELS for form in kernel.forms]


@pytest.fixture(scope="session", autouse=True)
def new_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was compiled before is compiled again, but once for all tests and processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:     # each has a folder in one of the run
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        yield


def instructions(made: Compiled) -> list[str]:
    """The lines of PTX, without their registers."""
    return [line.split("//")[0].strip() for line in made.ptx.splitlines()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("kernel", "form"), FORMS, ids=[f"{kernel.name}-{form}" for kernel, form in FORMS])
def test_every_form_is_compiled(kernel: Kernel, form: Form, architecture: int) -> None:
    for sizes in Sizes:
        made = compile_form(kernel, form, architecture, sizes)
        assert re.search(rf"^\.target sm_{architecture}", made.ptx, re.M)
        assert made.cubin_bytes > 1000
        assert 0 < made.registers <= 255
        assert made.shared_bytes <= SHARED[architecture]
        assert made.spilled_bytes == 0 or sizes is not Sizes.MULTIPLES_OF_16
        # No product is fused with a sum.
        assert "fma.rn.f32" not in made.ptx


def test_the_page_lists_every_kernel_and_its_number_of_forms() -> None:
    page = (Path(__file__).parents[1] / "docs" / "triton.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.M)
    assert {name: int(forms) for name, forms in rows} == Counter(
        kernel.name.lstrip("_") for kernel, _ in FORMS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["_absmax_forward", "_ternary_codes"])
def test_rounding_survives_the_compiler(name: str, architecture: int) -> None:
    kernel = next(each for each in KERNELS if each.name == name)
    lines = instructions(compile_form(kernel, kernel.forms[0], architecture))
    up, down = (f"0f{code}" for code in ("4B400000", "CB400000"))   # ±12582912
    added = [line for line in lines if line.startswith("add.rn.f32") and up in line]
    assert added
    for line in added:
        result = line.split()[1].rstrip(",")
        taken = [each for each in lines if re.search(rf"[ \t]{result},? ", each + " ")
                 and each != line]
        assert len(taken) == 1, taken
        assert taken[0].startswith("add.rn.f32")
        assert down in taken[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_codes_are_multiplied_as_whole_numbers(architecture: int) -> None:
    kernel = next(each for each in KERNELS if each.name == "_product")
    for form in kernel.forms:
        made = compile_form(kernel, form, architecture)
        assert re.search(r"mma.*\.s32\.s8\.s8", made.ptx)
        large = form.constants["VECTORS"] >= 64
        assert ("wgmma" in made.ptx) == (large and architecture == 90)
