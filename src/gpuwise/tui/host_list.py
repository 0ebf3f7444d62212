"""Processes of the host that use no GPU: the busiest, and the ancestors of a process tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuwise.machine.telemetry.frames import Frame, HostProcess
from gpuwise.machine.telemetry.host_processes import SHORTEST_SPAN_S, default_reader

N_BUSIEST = 48
EVERY_S = 2.0
"""The list of all processes is read this often: a machine has hundreds of them."""


class HostList:
    """Reads host processes on request and remembers their last readings."""

    def __init__(self) -> None:
        self._reader, self._above_reader = default_reader(), default_reader()
        self._ticks: dict[int, int] = {}
        self._chosen: list[int] = []
        self._read_s: float | None = None

    def busiest(self, now_s: float) -> tuple[HostProcess, ...]:
        """The processes with most processor time lately, and those with most memory."""
        if self._read_s is None or now_s - self._read_s >= EVERY_S:
            self._chosen, self._read_s = self._choose(), now_s
        by_pid = self._reader.read(self._chosen, now_s)
        return tuple(h for h in by_pid.values() if "name" not in h.unknown)

    def above(self, frame: Frame, depth: int) -> Mapping[int, HostProcess]:
        """The ancestors of the GPU processes, by process number."""
        gpu_pids = {r.pid for c in frame.cards for r in c.processes or ()}
        parent_pids = {r.host.parent_pid for c in frame.cards for r in c.processes or ()}
        parents: dict[int, HostProcess] = {}
        for _ in range(depth):
            missing_pids = {p for p in parent_pids if p is not None and p > 1 and p not in gpu_pids and p not in parents}
            if not missing_pids:
                break
            # one reader for all of them: it forgets processes that are not requested
            by_pid = self._above_reader.read(missing_pids | set(parents), frame.at_s)
            parents.update({p: h for p, h in by_pid.items() if "name" not in h.unknown})
            parent_pids = {by_pid[p].parent_pid for p in missing_pids if p in parents}
        return parents

    def _choose(self) -> list[int]:
        used, memory = self._all()
        if not used:
            return []
        spent = {p: t - self._ticks.get(p, t) for p, t in used.items()}
        self._ticks = used
        by_cpu = sorted(spent, key=lambda p: spent[p], reverse=True)[: N_BUSIEST // 2]
        by_memory = sorted(memory, key=lambda p: memory[p], reverse=True)[: N_BUSIEST // 2]
        return list(dict.fromkeys([*by_cpu, *by_memory]))

    def _all(self) -> tuple[dict[int, int], dict[int, int]]:
        """Processor time (ticks) and memory (pages) of every process to be seen."""
        used, memory = dict[int, int](), dict[int, int]()
        if not Path("/proc/self/stat").exists():
            return self._portable()
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are enough, and it is five times as quick
            if not name.isdigit():
                continue
            try:
                raw = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:
                continue
            values = raw.rpartition(b")")[2].split()
            if len(values) > 21:
                used[int(name)], memory[int(name)] = int(values[11]) + int(values[12]), int(values[21])
        return used, memory

    def _portable(self) -> tuple[dict[int, int], dict[int, int]]:
        import psutil

        used, memory = dict[int, int](), dict[int, int]()
        for p in psutil.process_iter(["cpu_times", "memory_info"]):
            times, memory_info = p.info["cpu_times"], p.info["memory_info"]
            if times is not None and memory_info is not None:
                used[p.pid], memory[p.pid] = int((times.user + times.system) / SHORTEST_SPAN_S), memory_info.rss
        return used, memory
