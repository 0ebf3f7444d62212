"""``this``: the GPUs of a machine that the driver's library plays, with a processor and memory modules from a tree of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.machine.devices.trees import write

from gpuwise.errors import InputError
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_accelerator, find_cluster, is_counted
from gpuwise.facts.hardware.this import NoGpuHereError, is_this
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.machine.devices.memory import read_modules
from gpuwise.machine.this import machine_here
from gpuwise.units import GIB

pytest_plugins = ["gpuwise.testing.fake_nvml.fixture"]

UDEV = """I:7
E:MEMORY_ARRAY_NUM_DEVICES=4
E:MEMORY_DEVICE_0_PRESENT=0
E:MEMORY_DEVICE_1_SIZE=17179869184
E:MEMORY_DEVICE_1_TYPE=DDR4
E:MEMORY_DEVICE_1_SPEED_MTS=3600
E:MEMORY_DEVICE_1_CONFIGURED_SPEED_MTS=2666
E:MEMORY_DEVICE_2_PRESENT=0
E:MEMORY_DEVICE_3_SIZE=17179869184
E:MEMORY_DEVICE_3_TYPE=DDR4
E:MEMORY_DEVICE_3_CONFIGURED_SPEED_MTS=2666
"""


@pytest.fixture
def pc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a PC with a Ryzen 7 5700G and two modules."""
    write(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD Ryzen 7 5700G with Radeon Graphics\n\n",
            "proc/meminfo": "MemTotal: 32768000 kB\nMemAvailable: 25165824 kB\n",
            "run/udev/data/+dmi:id": UDEV,
        },
    )
    monkeypatch.setenv("GPUWISE_ROOT", str(tmp_path))
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_modules_give_the_memory_of_the_processor(pc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    here = machine_here()
    assert here.cluster is None and here.here
    assert here.processor is not None and here.processor.memory == "DDR4-2666 x 2"
    assert here.processor.memory_bandwidth_bytes_per_s == 2 * 8 * 2666e6
    assert here.ram_bytes == 24 * GIB
    assert [m.mt_s for m in read_modules(pc)] == [2666, 2666]
    (pc / "run/udev/data/+dmi:id").write_text(UDEV.replace("DDR4", "<OUT OF SPEC>"))
    assert [m.type for m in read_modules(pc)] == [None, None]
    assert here.processor.memory == getattr(machine_here().processor, "memory", "")
    with pytest.raises(NoGpuHereError):
        find_cluster("this")
    with pytest.raises(NoGpuHereError):
        machine_here(2)


VM = """processor\t: {n}
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: {name}
stepping\t: 1
physical id\t: 0
core id\t\t: {core}

"""


@pytest.mark.parametrize("name", ["AMD EPYC 7763 64-Core Processor", "AMD EPYC", "AMD EPYC 7R13 Processor"])
def test_a_virtual_machine_has_its_own_cores(pc: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    monkeypatch.setattr("gpuwise.machine.devices.cpu.affinity_cores", lambda: 4)
    (pc / "proc/cpuinfo").write_text("".join(VM.format(n=n, core=n // 2, name=name) for n in range(4)))
    (pc / "run/udev/data/+dmi:id").unlink()
    here = machine_here().processor
    whole = find_cpu("EPYC 7763")
    assert here is not None and here.cores == 2 and here.family == "Zen 3" and here.name.startswith("2 cores of ")
    assert here.peak("fp32") == pytest.approx(whole.peak("fp32") / 32)
    assert here.memory_bandwidth_bytes_per_s == whole.memory_bandwidth_bytes_per_s
    assert machine_here().assumed == (here.assumption,) and "--ram" not in here.assumption


def test_free_memory_is_that_of_the_fullest_card(pc: Path, fake_nvml: Callable[..., Any]) -> None:
    machine = fake_nvml(["rtx-3060", "rtx-3060"])
    with machine.in_process():
        idle = machine_here()
        assert idle.cluster is not None and idle.cluster.label == "2x RTX 3060 12GB"
        machine.gpu(1).set(memory_used_bytes=5 * GIB)
        busy, one = machine_here(), machine_here(1)
        total = machine.gpu(1).get("memory_total_bytes")
        reserved = machine.gpu(1).get("memory_reserved_bytes")
        assert busy.free_bytes == total - reserved - 5 * GIB
        assert one.free_bytes is not None and busy.free_bytes is not None and one.free_bytes > busy.free_bytes, (
            "one GPU is the one with more room"
        )
        assert machine_here(index=1).free_bytes == busy.free_bytes
        with pytest.raises(InputError, match="there are 2 GPUs here, not 3"):
            machine_here(3)
        with pytest.raises(InputError, match="no GPU 2 here"):
            machine_here(index=2)


def test_the_parser_of_devices_reads_this(pc: Path, fake_nvml: Callable[..., Any]) -> None:
    with fake_nvml(["rtx-3060"]).in_process():
        assert find_cluster("this").label == "1x RTX 3060 12GB"
        assert find_accelerator("This machine").id == "rtx-3060-12gb"
        assert is_counted("this")
    assert is_this("2 x this") and is_this("this:1") and is_this("this PC")
    assert not is_this("thor") and not is_this("thistle") and not is_this("this:x")


@pytest.mark.parametrize(
    "words",
    [
        ("capacity", "qwen3-0.6b", "--quick"),
        ("plan", "gpt2", "--tokens", "1B"),
        ("fit", "gpt2", "--for", "run"),
        ("op", "matmul", "512", "512", "512"),
    ],
)
def test_every_command_takes_it(
    words: tuple[str, ...], pc: Path, fake_nvml: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuwise.cli.app import run

    with fake_nvml(["rtx-3060"]).in_process():
        code = run([*words, "--on", "this", "--json"])
        mine = capsys.readouterr()
        assert code == run([*words, "--on", "rtx-3060-12gb", "--json"]), mine.err
        assert "3060" in mine.out
        assert run(["compare", "this", "4090", "--json"]) == 0
