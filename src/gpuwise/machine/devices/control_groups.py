"""Control groups of Linux, versions 1 and 2: limits of a process, and the container that a group belongs to.

Files are read by a given function (path -> text, None if unreadable), so a real tree, a test folder and a scripted machine
follow the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Read = Callable[[str], str | None]
_BASE = "/sys/fs/cgroup"
_NO_LIMIT_V1 = 2**60
"""Version 1 reports no limit as the largest whole page below 2**63; no machine has 2**60 bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The tightest limits of this process's group and all above it."""

    version: int | None = None
    """Version of the control groups, 1 or 2; None without any."""
    cpus: float | None = None
    """Processors' worth of time; None: no limit."""
    memory_bytes: int | None = None
    """None: no limit."""
    memory_used_bytes: int | None = None
    """Memory use of the group with that limit."""


def read_limits(read: Read) -> Limits:
    """Limits of the current process. Invalid text counts as no limit."""
    lines = (read("/proc/self/cgroup") or "").splitlines()
    groups = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    if "" in groups and read(f"{_BASE}/cgroup.controllers") is not None:
        folders = _up(_BASE, groups[""])
        cpus = [c for f in folders if (c := _cpu_max(read(f"{f}/cpu.max"))) is not None]
        memory = [(limit, f"{f}/memory.current") for f in folders if (limit := _number(read(f"{f}/memory.max"))) is not None]
        return Limits(2, min(cpus, default=None), *_tightest(read, memory))
    if not set(groups) - {""}:
        return Limits()
    return _limits_v1(read, groups)


def _limits_v1(read: Read, groups: Mapping[str, str]) -> Limits:
    cpu_path = next((path for names, path in groups.items() if "cpu" in names.split(",")), "/")
    cpus: list[float] = []
    for folder in (f for name in ("cpu", "cpu,cpuacct") for f in _up(f"{_BASE}/{name}", cpu_path)):
        quota, period = _number(read(f"{folder}/cpu.cfs_quota_us")), _number(read(f"{folder}/cpu.cfs_period_us"))
        if quota is not None and quota > 0 and period:
            cpus.append(quota / period)
    memory: list[tuple[int, str]] = []
    for folder in _up(f"{_BASE}/memory", groups.get("memory", "/")):
        limit = _number(read(f"{folder}/memory.limit_in_bytes"))
        if limit is not None and limit < _NO_LIMIT_V1:
            memory.append((limit, f"{folder}/memory.usage_in_bytes"))
    return Limits(1, min(cpus, default=None), *_tightest(read, memory))


def _tightest(read: Read, limits: list[tuple[int, str]]) -> tuple[int | None, int | None]:
    """The lowest limit, and the use reported with it."""
    if not limits:
        return None, None
    limit, use_file = min(limits)
    return limit, _number(read(use_file))


def _up(base: str, path: str) -> list[str]:
    """A group's folder and those above it; in a container the path is often that of the host, and its own is the base."""
    parts = [p for p in path.split("/") if p not in ("", ".", "..")]
    return ["/".join((base, *parts[:n])) for n in range(len(parts), -1, -1)]


def _cpu_max(text: str | None) -> float | None:
    """``50000 100000`` is half a processor; ``max 100000`` is no limit."""
    quota, _, period = (text or "").strip().partition(" ")
    allowed, of = _number(quota), _number(period)
    return allowed / of if allowed is not None and of else None


def _number(text: str | None) -> int | None:
    """A whole number within the kernel's length, else None; -1 counts as None."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


# --- containers ---

_ENGINES = (
    ("docker", "docker"),
    ("libpod", "podman"),
    ("crio", "cri-o"),
    ("cri-containerd", "containerd"),
    ("kubepods", "kubernetes"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("machine.slice", "nspawn"),
)
"""Part of a group's path -> container engine, the most specific first."""
_DAEMON = re.compile(r"/(docker|containerd|crio|lxcfs|lxc(-\w+)?)\.(service|socket)(?=/|$)")
"""The engines' own services, which run outside any container."""
_ID = re.compile(r"(?<![0-9a-z])[0-9a-f]{64}(?![0-9a-z])")


def engines_of(cgroup: str) -> tuple[str, ...]:
    """The engines that the first container's group in a text of ``/proc/PID/cgroup`` names, the most telling first; empty
    where it names no container."""
    return next((engines for engines, _ in _containers(cgroup)), ())


def find_container(cgroup: str) -> str | None:
    """Engine and short id from the text of ``/proc/PID/cgroup``; None where it names no container."""
    for engines, path in _containers(cgroup):
        ids = _ID.findall(path)
        return f"{engines[0]} {ids[-1][:12]}" if ids else engines[0]
    return None


def _containers(cgroup: str) -> list[tuple[tuple[str, ...], str]]:
    paths = [_DAEMON.sub("", line.rpartition(":")[2]) for line in cgroup.splitlines()]
    engines_by_path = [(tuple(dict.fromkeys(engine for mark, engine in _ENGINES if mark in path)), path) for path in paths]
    return [(engines, path) for engines, path in engines_by_path if engines]
