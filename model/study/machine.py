"""Where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_machine"]


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory, threads, versions and date; nothing that names the machine."""
    found: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "system": f"{platform.system()} {platform.machine()}"}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                found["processor"] = value.strip()
                break
        found["memory_gb"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, ValueError, AttributeError):
        pass    # not Linux: what Python knows must do
    if torch.device(device).type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    return found | {"torch": version("torch"), "sterna": version("sterna"),
                    "date": datetime.now(UTC).date().isoformat()}
