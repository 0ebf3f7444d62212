"""Processes from the operating system: command, user, container, parent, use of the processor.

Linux is read from ``/proc`` directly (a few small files a process, nothing imported); elsewhere with psutil.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpuwise.machine.devices.control_groups import find_container
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.machine.telemetry.small_files import read_small
from gpuwise.text import printable

PEGGED = 0.95
"""Share of a core that counts as full: the kernel counts in ticks of 10 ms, so a thread that never rests reads 0.98 to 1 over
0.5 s."""
SHORTEST_SPAN_S = 0.2
"""Shares over less than this would be mostly the rounding of the kernel's 10 ms ticks."""
LOOK_EVERY_S = 2.0
"""Threads and children are looked at this often, and threads only where a process uses most of a core: a training
process has a hundred of them."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h."""
OTHERS_NAMESPACE = "the driver gives the host's process numbers; this container numbers its own"


class ProcessReader(Protocol):
    """Interface for information on processes by number."""

    def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
        """Data of each of ``pids``; ``now_s`` is of a monotonic clock. Never raises: a process that has ended, or is not
        visible, has ``unknown`` set."""
        ...


@dataclass(slots=True)
class _ProcessState:
    """One process between two readings."""

    started_ticks: int
    fixed: HostProcess
    at_s: float
    ticks: int
    cpu_share: float | None = None
    looked_s: float | None = None
    threads: dict[int, int] = field(default_factory=dict[int, int])
    workers: dict[int, int] = field(default_factory=dict[int, int])
    seen: dict[str, Any] = field(default_factory=dict[str, Any])


class ProcReader:
    """``/proc`` of Linux. ``root`` is another place to read from in tests."""

    def __init__(self, root: Path = Path("/proc"), *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._root, self._root_text, self._look_every_s = root, str(root), look_every_s
        self._known: dict[int, _ProcessState] = {}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._users: dict[int, str] = {}
        self._own_namespace = _link(root / "self/ns/pid")

    def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
        """Same as :meth:`ProcessReader.read`."""
        for pid in [p for p in self._known if p not in pids]:
            del self._known[pid]
        return {pid: self._one(pid, now_s) for pid in pids}

    def _one(self, pid: int, now_s: float) -> HostProcess:
        stat = self._stat(pid)
        if stat is None:
            self._known.pop(pid, None)
            return HostProcess(pid, unknown={"name": self._why_not(pid)})
        name, values = stat
        ticks, started = int(values[11]) + int(values[12]), int(values[19])
        state = self._known.get(pid)
        if state is None or state.started_ticks != started:
            if not self._is_same(pid):
                return HostProcess(pid, unknown={"name": OTHERS_NAMESPACE})
            state = self._known[pid] = _ProcessState(started, self._fixed(pid, name, started), now_s, ticks)
        span_s = now_s - state.at_s
        if span_s >= SHORTEST_SPAN_S:
            state.cpu_share = (ticks - state.ticks) / self._ticks_per_s / span_s
            state.at_s, state.ticks = now_s, ticks
        if state.looked_s is None or now_s - state.looked_s >= self._look_every_s or not state.seen:
            self._look(pid, state, now_s)
        fixed = state.fixed
        return HostProcess(
            pid,
            fixed.name,
            fixed.command,
            fixed.user,
            fixed.container,
            int(values[1]),
            fixed.started_s,
            values[0],
            int(values[21]) * self._page,
            state.cpu_share,
            **state.seen,
            unknown=fixed.unknown,
        )

    def _is_same(self, pid: int) -> bool:
        """Whether our process of this number is the one the driver means: in a container with separate process numbers, only
        one that has the driver open can be."""
        if self._own_namespace in (None, INITIAL_PID_NAMESPACE):
            return True
        try:
            links = [_link(f) or "" for f in (self._root / str(pid) / "fd").iterdir()]
        except OSError:
            return False
        return any(h.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg")) for h in links)

    def _why_not(self, pid: int) -> str:
        if self._own_namespace not in (None, INITIAL_PID_NAMESPACE):
            return OTHERS_NAMESPACE
        # with hidepid other users' processes are invisible; without it, a missing process has ended
        hidden = not (self._root / "1").exists()
        return "no permission" if hidden or (self._root / str(pid)).exists() else "ended"

    def _stat(self, pid: int, thread: int | None = None) -> tuple[str, list[str]] | None:
        """Name, and the fields from the state on (``man 5 proc``, field 3 is [0])."""
        at = f"{self._root_text}/{pid}/stat" if thread is None else f"{self._root_text}/{pid}/task/{thread}/stat"
        try:
            raw = read_small(at)
        except OSError:
            return None
        head, _, tail = raw.rpartition(b")")
        values = tail.decode("ascii", "replace").split()
        return (show_bytes(head.partition(b"(")[2]), values) if len(values) >= 22 else None

    def _fixed(self, pid: int, name: str, started_ticks: int) -> HostProcess:
        at, unknown = self._root / str(pid), dict[str, str]()
        command = user = container = None
        try:
            command = show_bytes(b" ".join((at / "cmdline").read_bytes().rstrip(b"\0").split(b"\0"))) or f"[{name}]"
        except OSError as error:
            unknown["command"] = _why(error)
        try:
            user = self._user(at.stat().st_uid)
        except OSError as error:
            unknown["user"] = _why(error)
        try:
            container = find_container((at / "cgroup").read_text("utf-8", "replace"))
        except OSError as error:
            unknown["container"] = _why(error)
        return HostProcess(pid, name, command, user, container, started_s=started_ticks / self._ticks_per_s, unknown=unknown)

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                import pwd

                self._users[uid] = pwd.getpwuid(uid).pw_name
            except (ImportError, KeyError):
                self._users[uid] = str(uid)
        return self._users[uid]

    def _look(self, pid: int, state: _ProcessState, now_s: float) -> None:
        """Threads and children, against what they were at the last look."""
        before_s, state.looked_s = state.looked_s, now_s
        span_s = None if before_s is None else now_s - before_s
        children = self._children(pid)
        stats = {c: s for c in children if (s := self._stat(c)) is not None}
        workers = {c: int(s[1][11]) + int(s[1][12]) for c, s in stats.items()}
        threads, names = dict[int, int](), dict[int, str]()
        if before_s is None or (state.cpu_share is not None and state.cpu_share >= PEGGED * 0.8):
            for tid in self._threads(pid):
                if (s := self._stat(pid, tid)) is not None:
                    threads[tid], names[tid] = int(s[1][11]) + int(s[1][12]), s[0]
        process_fields: dict[str, Any] = {
            "n_workers": len(stats),
            "n_workers_waiting": sum(s[1][0] == "D" for s in stats.values()),
        }
        if span_s is not None and span_s >= SHORTEST_SPAN_S:
            shares = self._shares(state.workers, workers, span_s)
            process_fields["workers_cpu_share"] = sum(shares.values())
            process_fields["n_workers_pegged"] = sum(s >= PEGGED for s in shares.values())
            by_thread = self._shares(state.threads, threads, span_s)
            busiest = max(by_thread, key=by_thread.__getitem__, default=None)
            if busiest is not None and by_thread[busiest] >= PEGGED:
                process_fields["pegged_thread"] = names[busiest]
        state.workers, state.threads, state.seen = workers, threads, process_fields

    def _shares(self, before: Mapping[int, int], now: Mapping[int, int], span_s: float) -> dict[int, float]:
        return {k: max(0, v - before[k]) / self._ticks_per_s / span_s for k, v in now.items() if k in before}

    def _threads(self, pid: int) -> list[int]:
        try:
            return [int(p.name) for p in (self._root / str(pid) / "task").iterdir() if p.name.isdigit()]
        except OSError:
            return []

    def _children(self, pid: int) -> list[int]:
        try:
            return [int(c) for c in read_small(f"{self._root_text}/{pid}/task/{pid}/children").split()]
        except (OSError, ValueError):
            return []


class PsutilReader:
    """Other systems, through psutil: no threads, no containers."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, float, float]] = {}

    def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
        """Same as :meth:`ProcessReader.read`."""
        return {pid: self._one(pid, now_s) for pid in pids}

    def _one(self, pid: int, now_s: float) -> HostProcess:
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                used_s, started = times.user + times.system, process.create_time()
                before = self._known.get(pid)
                self._known[pid] = (started, now_s, used_s)
                same = before is not None and before[0] == started and now_s - before[1] >= SHORTEST_SPAN_S
                share = (used_s - before[2]) / (now_s - before[1]) if same and before is not None else None
                return HostProcess(
                    pid,
                    process.name(),
                    " ".join(process.cmdline()) or process.name(),
                    process.username(),
                    None,
                    process.ppid(),
                    None,
                    None,
                    process.memory_info().rss,
                    share,
                )
        except psutil.AccessDenied:
            return HostProcess(pid, unknown={"name": "no permission"})
        except psutil.Error:
            self._known.pop(pid, None)
            return HostProcess(pid, unknown={"name": "ended"})


def default_reader() -> ProcessReader:
    """The reader for this operating system."""
    return ProcReader() if sys.platform == "linux" else PsutilReader()


def show_bytes(raw: bytes) -> str:
    """Text a terminal can show: what is no UTF-8 and control characters as ``\\xNN``."""
    return printable(raw.decode("utf-8", "backslashreplace"), keep="")


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - the target is a name, no path
    except OSError:
        return None


def _why(error: OSError) -> str:
    return "no permission" if isinstance(error, PermissionError) else "ended"
