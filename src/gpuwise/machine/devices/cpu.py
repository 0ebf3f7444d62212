"""The processor and what a process may use of it: cores, clocks, memory, NUMA nodes, limits of control groups."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.machine.devices.memory import HostMemory, read_memory
from gpuwise.machine.devices.sysfs import Files
from gpuwise.units import KILO

_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NO_LIMIT_V1 = 2**62
"""Control groups of version 1 tell no limit as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """What Linux tells of its processors; None with a reason in ``unknown``."""

    model: str | None
    vendor: str | None
    sockets: int | None
    cores: int | None
    """Physical, of all sockets, online."""
    threads: int | None
    """Logical processors, online."""
    usable: int | None
    """Logical processors this process may run on."""
    clock_hz: float | None
    """Mean of the cores now."""
    clock_max_hz: float | None
    governor: str | None
    """Of the first core; ``mixed`` where the cores differ."""
    numa_nodes: int | None
    memory: HostMemory
    cgroup: int | None
    """Version of the control groups, 1 or 2."""
    cpu_limit: float | None
    """Processors' worth of time this process's group may use; None: no limit."""
    memory_limit_bytes: int | None
    """Of its group; None: no limit."""
    memory_limit_used_bytes: int | None
    fact_id: str | None
    """In the catalogue of processors."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


def read_cpu(root: Path = Path("/"), *, usable: int | None = None) -> CpuReading:
    """Everything from ``/proc`` and ``/sys`` under ``root``; ``usable`` is this process's own count where not given."""
    blocks = _cpuinfo(root)
    first: Mapping[str, str] = blocks[0] if blocks else {}
    system = Files(root / "sys/devices/system")
    online = _count(system.text("cpu/online"))
    threads = online if online is not None else len(blocks) or None
    topology = _topology(root)
    sockets, cores = topology if topology is not None else _from_cpuinfo(blocks)
    model = _model(first)
    governors = {g for g in (_core_text(root, "scaling_governor")) if g}
    most = [float(v) for v in _core_text(root, "cpuinfo_max_freq") if v and v.isdigit()]
    limits = _limits(root)
    unknown = {
        name: reason for name, value, reason in (
            ("model", model, "/proc/cpuinfo names none"), ("cores", cores, "the topology is not told"),
            ("governor", governors, "no frequency driver (as in most virtual machines)"),
            ("clock_max_hz", most, "no frequency driver (as in most virtual machines)"),
        ) if not value
    }  # fmt: skip
    return CpuReading(
        model, first.get("vendor_id"), sockets, cores, threads, usable if usable is not None else _usable(),
        _clock_hz(root, blocks),
        max(most) * KILO if most else None, next(iter(governors)) if len(governors) == 1 else "mixed" if governors else None,
        _count(system.text("node/online")), read_memory(root), *limits, _fact_id(model), unknown,
    )  # fmt: skip


def _usable() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """The blocks of ``/proc/cpuinfo``, one a logical processor."""
    text = Files(root / "proc").text("cpuinfo") or ""
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in text.split("\n\n")
    ]  # fmt: skip
    return [block for block in blocks if "processor" in block] or [b for b in blocks if b]


def _model(block: Mapping[str, str]) -> str | None:
    """x86 names the model; Arm gives numbers, so that the machine's own name has to do."""
    return block.get("model name") or block.get("Model") or (platform.processor() or None if not block else None)


def _count(ranges: str | None) -> int | None:
    """``0-3,8`` is 5."""
    if not ranges:
        return None
    total = 0
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            return None
        total += int(found[2] or found[1]) - int(found[1]) + 1
    return total


def _core_folders(root: Path) -> list[Path]:
    try:
        return [p for p in (root / "sys/devices/system/cpu").iterdir() if re.fullmatch(r"cpu\d+", p.name)]
    except OSError:
        return []


def _topology(root: Path) -> tuple[int, int] | None:
    """Sockets and cores from the numbers every logical processor has."""
    pairs: set[tuple[int, int]] = set()
    for folder in _core_folders(root):
        files = Files(folder / "topology")
        package, core = files.number("physical_package_id"), files.number("core_id")
        if package is not None and core is not None:
            pairs.add((package, core))
    return (len({p for p, _ in pairs}), len(pairs)) if pairs else None


def _from_cpuinfo(blocks: list[dict[str, str]]) -> tuple[int | None, int | None]:
    pairs = {(b["physical id"], b["core id"]) for b in blocks if "physical id" in b and "core id" in b}
    return (len({p for p, _ in pairs}), len(pairs)) if pairs else (None, None)


def _core_text(root: Path, name: str) -> list[str | None]:
    return [Files(folder / "cpufreq").text(name) for folder in _core_folders(root)]


def _clock_hz(root: Path, blocks: list[dict[str, str]]) -> float | None:
    now = [float(v) * KILO for v in _core_text(root, "scaling_cur_freq") if v and v.isdigit()]
    if not now:
        for block in blocks:
            try:
                now.append(float(block["cpu MHz"]) * KILO * KILO)
            except (KeyError, ValueError):
                continue
    return sum(now) / len(now) if now else None


def _limits(root: Path) -> tuple[int | None, float | None, int | None, int | None]:
    """Version of the control groups, limit of processors, limit and use of memory: the tightest up the tree."""
    lines = (Files(root / "proc/self").text("cgroup") or "").splitlines()
    groups = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    base = root / "sys/fs/cgroup"
    if "" in groups and (base / "cgroup.controllers").exists():
        folders = _up(base, groups[""])
        cpus = [c for f in folders if (c := _cpu_max(Files(f).text("cpu.max"))) is not None]
        memory = [(limit, f) for f in folders if (limit := Files(f).number("memory.max")) is not None]
        tight = min(memory, default=None, key=lambda m: m[0])
        used = None if tight is None else Files(tight[1]).number("memory.current")
        return 2, min(cpus, default=None), None if tight is None else tight[0], used
    if not groups:
        return None, None, None, None
    return 1, *_limits_v1(base, groups)


def _limits_v1(base: Path, groups: Mapping[str, str]) -> tuple[float | None, int | None, int | None]:
    cpu_path = next((path for names, path in groups.items() if "cpu" in names.split(",")), "/")
    cpus: list[float] = []
    for folder in (f for name in ("cpu", "cpu,cpuacct") for f in _up(base / name, cpu_path)):
        quota, period = Files(folder).number("cpu.cfs_quota_us"), Files(folder).number("cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            cpus.append(quota / period)
    memory: list[tuple[int, Path]] = []
    for folder in _up(base / "memory", groups.get("memory", "/")):
        limit = Files(folder).number("memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT_V1:
            memory.append((limit, folder))
    tight = min(memory, default=None, key=lambda m: m[0])
    if tight is None:
        return min(cpus, default=None), None, None
    return min(cpus, default=None), tight[0], Files(tight[1]).number("memory.usage_in_bytes")


def _up(base: Path, path: str) -> list[Path]:
    """A group's folder and those above it; in a container the path is often that of the host, and its own is the base."""
    parts = [p for p in path.split("/") if p not in ("", ".", "..")]
    return [base.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _cpu_max(text: str | None) -> float | None:
    """``50000 100000`` is half a processor; ``max 100000`` is no limit."""
    quota, _, period = (text or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None


def _fact_id(model: str | None) -> str | None:
    """Of the catalogue, where it knows the name."""
    from gpuwise.errors import GpuwiseError
    from gpuwise.facts.cpus import find_cpu

    try:
        return find_cpu(model).id if model else None
    except GpuwiseError:
        return None
