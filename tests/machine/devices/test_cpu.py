"""The processor in fake trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.cpu import processor_name, read_cpu, usable_cores
from gpuwise.machine.devices.memory import read_memory, total_bytes

from .trees import write


def _xeon(root: Path) -> None:
    blocks = [
        f"processor : {n}\nvendor_id : GenuineIntel\nmodel name : Intel(R) Xeon(R) Platinum 8480+\ncpu MHz : 2000.0\n"
        f"physical id : {n // 2 % 2}\ncore id : {n % 2}\n"
        for n in range(8)
    ]
    files = {
        "proc/cpuinfo": "\n".join(blocks),
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\nHugePages_Total: 3\nbad line\n",
    }
    for n in range(8):
        cpu = f"sys/devices/system/cpu/cpu{n}"
        files |= {
            f"{cpu}/topology/physical_package_id": str(n // 2 % 2),
            f"{cpu}/topology/core_id": str(n % 2),
            f"{cpu}/cpufreq/scaling_governor": "powersave",
            f"{cpu}/cpufreq/scaling_cur_freq": str(1_000_000 + 200_000 * n),
            f"{cpu}/cpufreq/cpuinfo_max_freq": "3800000",
        }
    files |= {"sys/devices/system/cpu/online": "0-3,4-7", "sys/devices/system/node/online": "0-1"}
    write(root, files)  # type: ignore[arg-type]


def test_cores_clocks_nodes_and_memory(tmp_path: Path) -> None:
    _xeon(tmp_path)
    cpu = read_cpu(tmp_path, usable=6)
    assert (cpu.sockets, cpu.cores, cpu.threads, cpu.usable, cpu.numa_nodes) == (2, 4, 8, 6, 2)
    assert (cpu.clock_hz, cpu.clock_max_hz, cpu.governor) == (1.7e9, 3.8e9, "powersave")
    assert (cpu.memory.total_bytes, cpu.memory.available_bytes, cpu.memory.huge_pages_total) == (1_024_000, 409_600, 3)
    assert cpu.fact_id is not None and "8480" in cpu.fact_id
    assert (cpu.cgroup, cpu.cpu_limit, cpu.memory_limit_bytes, dict(cpu.unknown)) == (None, None, None, {})
    write(tmp_path, {"sys/devices/system/cpu/cpu3/cpufreq/scaling_governor": "performance"})
    assert read_cpu(tmp_path).governor == "mixed"


@pytest.mark.parametrize(("limit", "usable"), [("250000", 2), ("10000", 1), ("max", 6), ("900000", 6)])
def test_usable_cores_are_those_of_the_tightest_group_within_the_affinity(tmp_path: Path, limit: str, usable: int) -> None:
    base = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            f"{base}/cgroup.controllers": "cpu memory",
            f"{base}/pod/box/cpu.max": "max 100000",
            f"{base}/pod/cpu.max": f"{limit} 100000",
        },
    )
    assert usable_cores(tmp_path, affinity=6) == usable
    assert usable_cores(tmp_path / "nothing", affinity=6) == 6


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name : Xeon  E5\n\nprocessor : 1\nmodel name : Xeon  E5\n", "Xeon E5"),
        ("processor : 0\nBogoMIPS : 108\n\nHardware : BCM2711\nModel : Raspberry Pi 4\n", "Raspberry Pi 4"),
        ("processor : 0\ncpu model : Loongson-3A\n", "Loongson-3A"),
        ("processor : 0\nCPU implementer : 0x41\n", None),
    ],
)
def test_the_name_of_the_processor(tmp_path: Path, cpuinfo: str, name: str | None) -> None:
    write(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert processor_name(tmp_path) == name and (read_cpu(tmp_path).model is None) == (name is None)


def test_an_empty_tree_is_all_unknown(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path, usable=1)
    assert (cpu.cores, cpu.threads, cpu.clock_hz, cpu.governor, cpu.cgroup) == (None, None, None, None, None)
    assert {"cores", "governor", "clock_max_hz"} <= set(cpu.unknown)
    assert read_memory(tmp_path).total_bytes is None and usable_cores(tmp_path, affinity=3) == 3


@given(st.binary(max_size=300))
def test_nonsense_is_never_an_error(tmp_path_factory: pytest.TempPathFactory, nonsense: bytes) -> None:
    root = tmp_path_factory.mktemp("tree")
    write(
        root,
        {
            "proc/cpuinfo": nonsense,
            "proc/meminfo": nonsense,
            "proc/self/cgroup": nonsense,
            "sys/devices/system/cpu/online": nonsense,
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": nonsense,
            "sys/fs/cgroup/cgroup.controllers": b"",
            "sys/fs/cgroup/cpu.max": nonsense,
            "sys/fs/cgroup/memory.max": nonsense,
            "sys/devices/system/cpu/cpu0/topology/core_id": nonsense,
        },
    )
    read_cpu(root)


def test_this_machine_tells_something() -> None:
    cpu = read_cpu()
    assert cpu.memory.total_bytes == total_bytes() and 1 <= usable_cores() <= (cpu.usable or 0)
    assert (cpu.threads or 0) >= (cpu.cores or 0) >= 1 and (cpu.memory.total_bytes or 0) > 2**20
