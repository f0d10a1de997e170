"""The bench's look at a port that has no handshake: the trace of a core."""

from __future__ import annotations

import re
from typing import Any

from sterna.hw.testbench.job import MonitoredBits

__all__ = ["PortMonitor"]


class PortMonitor:
    """Looks at an output port in every cycle, and keeps the bits that are valid."""

    def __init__(self, dut: Any, port: str, monitored: list[MonitoredBits]) -> None:
        self._port = getattr(dut, port)
        self._fields = [
            (bits.name, bits.low, (1 << bits.width) - 1) for bits in monitored]
        self._any = sum(1 << bits.low for bits in monitored)
        self.seen: dict[str, list[int]] = {name: [] for name, _, _ in self._fields}
        self.seen_at: dict[str, list[int]] = {name: [] for name, _, _ in self._fields}

    def sample(self, cycle: int) -> None:
        """Keep what is valid. Other fields may be unknown, as registers without a reset are
        in a simulator of four states."""
        value = self._port.value
        try:
            word, unknown = int(value), 0
        except ValueError:
            bits = str(value)
            word = int(re.sub("[^1]", "0", bits), 2)
            unknown = int(re.sub("[^01]", "1", bits.replace("1", "0")), 2)
        if not (word | unknown) & self._any:
            return
        for name, low, mask in self._fields:
            if (word | unknown) >> low & 1:
                if unknown >> low & mask:
                    raise AssertionError(f"{name} has unknown bits in cycle {cycle}")
                self.seen[name].append(word >> low & mask)
                self.seen_at[name].append(cycle)
