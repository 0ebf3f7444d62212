"""The processor and what a process may use of it: cores, clocks, memory, NUMA nodes, limits of control groups."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.machine.devices.control_groups import Read, read_limits
from gpuwise.machine.devices.memory import HostMemory, read_memory
from gpuwise.machine.devices.sysfs import Files
from gpuwise.units import KILO

_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NAME_KEYS = ("model name", "cpu model", "Model")
"""x86 and others name the model, MIPS and Loongson the second; small Arm boards name themselves after the last core. Arm
servers give numbers only."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Linux's readings of its processors; None with a reason in ``unknown``."""

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
    """Governor of the first core; ``mixed`` if the cores differ."""
    numa_nodes: int | None
    memory: HostMemory
    cgroup: int | None
    """Version of the control groups, 1 or 2."""
    cpu_limit: float | None
    """Processors' worth of time this process's group may use; None: no limit."""
    memory_limit_bytes: int | None
    """Memory limit of its group; None: no limit."""
    memory_limit_used_bytes: int | None
    fact_id: str | None
    """In the catalogue of processors."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


def read_cpu(root: Path = Path("/"), *, usable: int | None = None) -> CpuReading:
    """Everything from ``/proc`` and ``/sys`` under ``root``; ``usable`` is this process's own count where not given."""
    every = _cpuinfo(root)
    blocks = [block for block in every if "processor" in block] or every
    first: Mapping[str, str] = blocks[0] if blocks else {}
    system = Files(root / "sys/devices/system")
    online = _count(system.text("cpu/online"))
    threads = online if online is not None else len(blocks) or None
    topology = _topology(root)
    sockets, cores = topology if topology is not None else _from_cpuinfo(blocks)
    model = _model(every)
    governors = {g for g in (_core_text(root, "scaling_governor")) if g}
    most = [float(v) for v in _core_text(root, "cpuinfo_max_freq") if v and v.isdigit()]
    limits = read_limits(_reader(root))
    unknown = {
        name: reason
        for name, value, reason in (
            ("model", model, "/proc/cpuinfo names none"),
            ("cores", cores, "the topology is not reported"),
            ("governor", governors, "no frequency driver (as in most virtual machines)"),
            ("clock_max_hz", most, "no frequency driver (as in most virtual machines)"),
        )
        if not value
    }
    return CpuReading(
        model,
        first.get("vendor_id"),
        sockets,
        cores,
        threads,
        usable if usable is not None else affinity_cores(),
        _clock_hz(root, blocks),
        max(most) * KILO if most else None,
        next(iter(governors)) if len(governors) == 1 else "mixed" if governors else None,
        _count(system.text("node/online")),
        read_memory(root),
        limits.version,
        limits.cpus,
        limits.memory_bytes,
        limits.memory_used_bytes,
        _fact_id(model),
        unknown,
    )


def affinity_cores() -> int | None:
    """Logical processors this process may run on; None if the system does not report them."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def usable_cores(root: Path = Path("/"), *, affinity: int | None = None) -> int:
    """Processors' worth of work this process can do at once: those it may run on (``affinity``, its own where not given),
    or fewer where a control group's quota, the tightest up the tree, allows less; 1 at least."""
    cores = affinity if affinity is not None else affinity_cores() or 1
    quota = read_limits(_reader(root)).cpus
    return cores if quota is None else max(1, min(cores, round(quota)))


def processor_name(root: Path = Path("/")) -> str | None:
    """The processor's name from the system; None without one."""
    model_name = _model(_cpuinfo(root))
    return " ".join(model_name.split()) if model_name else None


def core_numbers(root: Path = Path("/")) -> tuple[str, int, int, int | None] | None:
    """Vendor, family, model and stepping of the first core; on Arm implementer, architecture and part. None where they are not
    reported."""
    for block in _cpuinfo(root):
        with suppress(KeyError, ValueError):
            if "CPU part" in block:
                return block["CPU implementer"], int(block["CPU architecture"]), int(block["CPU part"], 16), None
            stepping = int(block["stepping"]) if block.get("stepping", "").isdigit() else None
            return block["vendor_id"], int(block["cpu family"]), int(block["model"]), stepping
    return None


def physical_cores(root: Path = Path("/")) -> int:
    """Cores that this process can keep busy: those it may run on, without the second threads of each."""
    usable, topology = usable_cores(root), _topology(root) or _from_cpuinfo(_cpuinfo(root))
    return min(usable, topology[1] or usable)


def _reader(root: Path) -> Read:
    """Files by their paths, under ``root``."""
    return lambda path: Files(root).text(path.lstrip("/"))


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """The blocks of ``/proc/cpuinfo``: one a logical processor, and on some systems one of the machine."""
    text = Files(root / "proc").text("cpuinfo") or ""
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in text.split("\n\n")
    ]
    return [block for block in blocks if block]


def _model(blocks: list[dict[str, str]]) -> str | None:
    """The first name that any block gives, else what Python knows (other systems than Linux)."""
    for key in _NAME_KEYS:
        for block in blocks:
            if block.get(key):
                return block[key]
    return platform.processor() or None if not blocks else None


def _count(ranges: str | None) -> int | None:
    """``0-3,8`` is 5."""
    if not ranges:
        return None
    total = 0
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
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


def _fact_id(model: str | None) -> str | None:
    """Id in the catalogue, if it has the name."""
    from gpuwise.errors import GpuwiseError
    from gpuwise.facts.hardware.cpus import find_cpu

    try:
        return find_cpu(model).id if model else None
    except GpuwiseError:
        return None
