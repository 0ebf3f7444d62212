"""Machines that do not exist: a healthy one, and whatever is to be different on it. For tests, demonstrations and trials.

machine = scripted(cards=("RTX 5090",), driver="570.124.06", torch=torch("2.6.0+cu124", "12.4", "sm_80 sm_86 sm_90"))
diagnose(machine.look())
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import Driver, Peer
from gpuwise.machine.doctor.host import CommandResult, ScriptedHost
from gpuwise.machine.doctor.observation import Machine
from gpuwise.machine.doctor.probes.machine import probe

PYTHON = "/venv/bin/python"
SITE = "/venv/lib/python3.12/site-packages"
KERNEL = "6.8.0-45-generic"
_UBUNTU = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n'
_ROOM = (400 << 30, 1000 << 30)


class ScriptedDevices(NullDevices):
    """Scripted cards that call themselves a vendor's, with pairs of their own."""

    def __init__(self, cards: Sequence[NullCard], driver: Driver, peers: Sequence[Peer] = ()) -> None:
        super().__init__(cards, driver=driver, clock=lambda: 0.0)
        self.vendor = driver.vendor
        self._pairs = tuple(peers)

    def peers(self) -> tuple[Peer, ...]:
        return self._pairs or super().peers()


@dataclass(frozen=True, slots=True)
class ScriptedMachine:
    """A machine made of data."""

    host: ScriptedHost
    devices: DeviceSearch
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def look(self, **options: Any) -> Machine:
        """What the doctor finds on it."""
        return probe(self.host, devices=lambda: self.devices, python=PYTHON, **{**self.options, **options})

    def but(self, **changes: Any) -> ScriptedMachine:
        """The same machine with files, links, environment, ... of its host added to or replaced; None takes one away."""
        merged: dict[str, Any] = {}
        for name, change in changes.items():
            if isinstance(change, Mapping):
                both: dict[str, Any] = {**getattr(self.host, name), **cast("Mapping[str, Any]", change)}
                merged[name] = {k: v for k, v in both.items() if v is not None}
            else:
                merged[name] = change
        return replace(self, host=replace(self.host, **merged))

    def without(self, *beginnings: str) -> ScriptedMachine:
        """The same machine without the files and links that begin so."""
        files = {k: v for k, v in self.host.files.items() if not k.startswith(beginnings)}
        links = {k: v for k, v in self.host.links.items() if not k.startswith(beginnings)}
        return replace(self, host=replace(self.host, files=files, links=links))


def scripted_machine(
    *,
    cards: Sequence[str | NullCard] = ("RTX 4090",),
    driver: str | None = "580.95.05",
    cuda: tuple[int, int] | None = (13, 0),
    peers: Sequence[Peer] = (),
    failed: DeviceError | None = None,
    vendor: str = "nvidia",
    answers: Sequence[Answer] = (),
    packages: Mapping[str, str] | None = None,
    **options: Any,
) -> ScriptedMachine:
    """A healthy Ubuntu 24.04 with these cards and this driver.

    ``driver`` None: none is installed, and the cards are on the bus only. ``failed``: the library refuses with it. ``answers``:
    what frameworks say. ``options`` go to :func:`gpuwise.machine.doctor.probes.machine.probe`.
    """
    null_cards = [_card(c, i, vendor) for i, c in enumerate(cards)]
    works = driver is not None and failed is None and bool(null_cards)
    backends = (ScriptedDevices(null_cards, Driver(vendor, driver, driver, cuda), peers),) if works else ()
    files = _base_files() | _bus(null_cards, vendor, driver)
    links = {
        f"/sys/bus/pci/devices/0000:{i + 1:02x}:00.0/driver": "../../../bus/pci/drivers/nvidia"
        for i in range(len(null_cards))
        if driver
    }
    if driver and null_cards and vendor == "nvidia":
        files |= _driver_files(len(null_cards), driver)
    for answer in answers:
        files |= answer.files
    for name, version in (packages or {}).items():
        files[f"{SITE}/{name.replace('-', '_')}-{version}.dist-info/METADATA"] = ""
    python_facts = [PYTHON, [3, 12, 4], "cpython-312", "x86_64", ["", SITE], True]
    commands = {
        f"{PYTHON} -c import json,platform*": CommandResult(0, json.dumps(python_facts)),
        "dmesg": CommandResult(0, "[    0.000000] Linux version\n[    1.0] nvidia: loading out-of-tree module taints kernel.\n"),
    }
    host = ScriptedHost(
        files=files,
        links=links,
        environment={"HOME": "/home/ada", "PATH": "/usr/bin"},
        commands={f"{PYTHON} -c *": CommandResult(0), **commands},
        space={"/home/ada": _ROOM, "/tmp": _ROOM, "/home/ada/.cache": _ROOM, "/dev/shm": (32 << 30, 32 << 30)},
        limits={"nofile": 1024, "memlock": 8 << 20},
        facts={"user": "1000", "kernel": KERNEL, "machine": "x86_64", "cpus": "32"},
        paths={"dmesg": "/usr/bin/dmesg", "nvidia-smi": "/usr/bin/nvidia-smi", "gcc": "/usr/bin/gcc"},
    )
    search = DeviceSearch(backends, {vendor: failed} if failed else {})
    return ScriptedMachine(_with_answers(host, commands, answers), search, options)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a framework says of itself, and the files that show it is installed."""

    name: str
    ran: CommandResult
    files: Mapping[str, str]


def answer(
    name: str, version: str, lines: Sequence[Mapping[str, Any]], *, package: str | None = None, metadata: str = ""
) -> Answer:
    """A framework that answers ``lines``."""
    out = "\n".join(json.dumps({"stage": "import"} if at == 0 else line) for at, line in enumerate([{}, *lines]))
    return Answer(
        name,
        CommandResult(0, out, seconds=3.0),
        {f"{SITE}/{package or name}-{version}.dist-info/METADATA": metadata, f"{SITE}/pip/__init__.py": ""},
    )


def torch(
    version: str,
    cuda: str | None,
    architectures: str = "",
    *,
    devices: Sequence[tuple[int, int]] | None = None,
    error: str | None = None,
    ran: Sequence[bool | str] | None = None,
    hip: str | None = None,
    metadata: str = "",
) -> Answer:
    """What PyTorch says: ``devices`` are the capabilities it sees (None: not available), ``ran`` whether a product ran on each
    (True for all), or the error it raised."""
    devices_seen = [{"index": i, "name": "card", "capability": list(c), "uuid": ""} for i, c in enumerate(devices or ())]
    results = [True] * len(devices_seen) if ran is None else list(ran)
    trials = [
        {"index": i, "ran": r if isinstance(r, bool) else False, "error": r if isinstance(r, str) else None}
        for i, r in enumerate(results)
    ]
    build = {"stage": "build", "version": version, "cuda": cuda, "hip": hip, "architectures": architectures.split()}
    if cuda is None and hip is None:
        return answer("torch", version, [build, {"stage": "done", "available": False, "count": 0}], metadata=metadata)
    run = {"stage": "run", "available": bool(devices_seen), "count": len(devices_seen), "error": error, "devices": devices_seen}
    return answer("torch", version, [build, {"stage": "devices"}, run, {"stage": "done", "ran": trials}], metadata=metadata)


def broken_framework(name: str, version: str, ran: CommandResult) -> Answer:
    """A framework whose question ended so."""
    return Answer(name, ran, {f"{SITE}/{name}-{version}.dist-info/METADATA": "", f"{SITE}/pip/__init__.py": ""})


def _with_answers(host: ScriptedHost, commands: Mapping[str, CommandResult], answers: Sequence[Answer]) -> ScriptedHost:
    from gpuwise.machine.doctor.probes.frameworks import question

    outputs = {f"{PYTHON} -c {question()} {a.name}": a.ran for a in answers}
    return replace(host, commands={**commands, **outputs})


def _card(card: str | NullCard, index: int, vendor: str) -> NullCard:
    null_card = NullCard(card) if isinstance(card, str) else card
    usual = {
        "vendor": vendor,
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "serial": f"13245{index:05d}",
        "pcie_width_max": 16,
        "pcie_generation_max": 4,
    }
    return replace(null_card, identity={**usual, **null_card.identity})


def _base_files() -> dict[str, str]:
    return {
        "/etc/os-release": _UBUNTU,
        "/proc/version": f"Linux version {KERNEL} (buildd@lcy02)",
        "/proc/meminfo": "MemTotal:       131072000 kB\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference": "balance_performance\n",
        f"{SITE}/pip/__init__.py": "",
    }


def _bus(cards: Sequence[NullCard], vendor: str, driver: str | None) -> dict[str, str]:
    number = {"nvidia": "0x10de", "amd": "0x1002"}.get(vendor, "0x8086")
    files: dict[str, str] = {}
    for i in range(len(cards)):
        place = f"/sys/bus/pci/devices/0000:{i + 1:02x}:00.0"
        files |= {f"{place}/class": "0x030000\n", f"{place}/vendor": f"{number}\n", f"{place}/device": "0x2684\n"}
    return files


def _driver_files(n: int, driver: str) -> dict[str, str]:
    files = {f"/dev/nvidia{i}": "" for i in range(n)} | {"/dev/nvidiactl": "", "/dev/nvidia-uvm": ""}
    libraries = "/usr/lib/x86_64-linux-gnu"
    return files | {
        "/proc/modules": "".join(f"{n} 4096 2 - Live\n" for n in ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")),
        "/sys/module/nvidia/version": f"{driver}\n",
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n",
        f"{libraries}/libcuda.so.{driver}": "",
        f"{libraries}/libnvidia-ml.so.{driver}": "",
        f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst": "",
    }
