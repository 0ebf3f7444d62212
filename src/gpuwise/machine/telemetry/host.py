"""The machine around the cards: use of its cores and its memory, from ``/proc`` on Linux, else psutil."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from gpuwise.machine.devices.memory import memory_of
from gpuwise.machine.telemetry.frames import Host
from gpuwise.machine.telemetry.small_files import read_small


class HostMeter:
    """Reads the host; shares are since the reading before."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root_text = str(root)
        self._before: tuple[float, float] | None = None
        self._name, self._n_cores = socket.gethostname(), os.cpu_count()

    def read(self) -> Host:
        """The host now; unreadable values are None."""
        if sys.platform != "linux":
            return self._portable()
        return Host(self._name, self._n_cores, self._cpu_share(), *self._memory(), self._load())

    def _share_of(self, now: tuple[float, float] | None) -> float | None:
        before, self._before = self._before, now
        if before is None or now is None or now[1] <= before[1]:
            return None
        return min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))

    def _cpu_share(self) -> float | None:
        try:
            ticks = [int(v) for v in read_small(f"{self._root_text}/stat", 512).partition(b"\n")[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        if len(ticks) < 5:
            return None
        idle = ticks[3] + ticks[4]
        return self._share_of((float(sum(ticks) - idle), float(sum(ticks))))

    def _memory(self) -> tuple[int | None, int | None]:
        try:
            # both values are in the first lines of some fifty
            memory = memory_of(b"\n".join(read_small(f"{self._root_text}/meminfo").split(b"\n", 8)[:8]))
        except OSError:
            return None, None
        return memory.total_bytes, memory.available_bytes

    def _load(self) -> float | None:
        try:
            return os.getloadavg()[0]
        except (OSError, AttributeError):  # Windows has none
            return None

    def _portable(self) -> Host:
        import psutil

        times, memory = psutil.cpu_times(), psutil.virtual_memory()
        total = float(sum(times))
        share = self._share_of((total - times.idle, total))
        return Host(self._name, self._n_cores, share, memory.total, memory.available, self._load())
