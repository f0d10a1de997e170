"""Where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_machine", "describe_versions", "now"]

_PACKAGES = ("sterna", "onnxruntime", "onnx", "numpy", "torch")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory and system; nothing that names the machine or its user."""
    found: dict[str, object] = {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}"}
    try:
        text = Path("/proc/cpuinfo").read_text()
        found |= {key: value for key, name in (("processor", "model name"),)
                  if (value := _field(text, name))}
        flags = set(_field(text, "flags").split())
        found["vector units"] = [
            flag for flag in ("avx2", "avx_vnni", "avx512_vnni", "asimddp") if flag in flags
            or flag in _field(text, "Features").split()]
        found["memory GiB"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))
        caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
        found["caches"] = [
            f"L{(each / 'level').read_text().strip()} {(each / 'size').read_text().strip()}"
            for each in caches if (each / "type").read_text().strip() != "Instruction"]
    except (OSError, ValueError):
        pass  # Not Linux: what Python knows must do.
    return found


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def describe_versions(ggml: str | None) -> dict[str, str]:
    """Versions of Python and of every package that is measured; ``ggml`` if it was found."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found if ggml is None else found | {"ggml": ggml}


def now() -> str:
    """Today, as ``2026-11-22``."""
    return datetime.now(UTC).date().isoformat()
