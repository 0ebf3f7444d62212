"""Cards that do not exist, doing what cards do: so that anyone without a GPU sees the screen. Marked as such everywhere.

Eight situations in turn: a healthy training run, one at its power limit, one too hot, one waiting for its data loader, a
server with its memory full, a broken link with memory errors, a card that falls off the bus and comes back, an idle one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import Driver, EventReason, GpuProcess, Health, Sample, State
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.units import GIB, MEGA

CARD = "h100-sxm"
CLOCK_MAX_HZ, MEMORY_CLOCK_HZ = 1980 * MEGA, 2619 * MEGA
"""Clocks of an H100 SXM from its driver."""
FIRST_PID = 4_200_000
"""Above the largest process number Linux gives (2**22 = 4,194,304), so that no real process is ever meant."""
LIMIT_W = 700.0
BEGIN_S = 50.0
"""Start of the script: one card is too hot, one has just been lost."""


Play = Callable[[float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class DemoScene:
    """One card's day: what runs on it and how its readings move."""

    play: Play
    processes: tuple[GpuProcess, ...]
    hosts: tuple[HostProcess, ...]
    held: Mapping[str, float]
    """Share of the time each reason holds the clocks."""
    health: Mapping[str, Any]


def _wave(t: float, period_s: float, low: float, high: float) -> float:
    return low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * t / period_s))


def _sample(t: float, load: float, **more: Any) -> Mapping[str, Any]:
    """Readings of an H100 at ``load`` (0 to 1), a little restless."""
    load = min(1.0, max(0.0, load + 0.02 * math.sin(7.1 * t)))
    sample_fields: dict[str, Any] = {
        "utilization": round(load, 2),
        "memory_utilization": round(0.6 * load, 2),
        "memory_used_bytes": int(2 * GIB),
        "power_w": 70 + (LIMIT_W - 75) * load,
        "temperature_c": 33 + round(36 * load),
        "memory_temperature_c": 40 + round(38 * load),
        "sm_clock_hz": CLOCK_MAX_HZ,
        "memory_clock_hz": MEMORY_CLOCK_HZ,
        "event_reasons": 0 if load > 0.02 else 1,
    }
    return sample_fields | more


def _train(t: float) -> Mapping[str, Any]:
    return _sample(t, _wave(t, 40, 0.86, 0.95), memory_used_bytes=int(61 * GIB))


def _capped(t: float) -> Mapping[str, Any]:
    return _sample(
        t,
        0.99,
        memory_used_bytes=int(70 * GIB),
        power_w=698 + 2 * math.sin(t),
        event_reasons=int(EventReason.SW_POWER_CAP),
        sm_clock_hz=_wave(t, 13, 1395, 1470) * MEGA,
    )


def _hot(t: float) -> Mapping[str, Any]:
    hot = t % 60 > 12
    return _sample(
        t,
        0.97,
        memory_used_bytes=int(66 * GIB),
        temperature_c=88.0 if hot else 84.0,
        event_reasons=int(EventReason.SW_THERMAL) if hot else 0,
        sm_clock_hz=(1110 if hot else 1755) * MEGA,
        power_w=430.0 if hot else 610.0,
    )


def _starved(t: float) -> Mapping[str, Any]:
    return _sample(t, 0.9 if t % 8 < 2 else 0.02, memory_used_bytes=int(38 * GIB))


def _serving(t: float) -> Mapping[str, Any]:
    return _sample(t, _wave(t, 25, 0.55, 0.8), memory_used_bytes=int(77.9 * GIB))


def _broken(t: float) -> Mapping[str, Any]:
    return _sample(t, 0.9, memory_used_bytes=int(61 * GIB), pcie_width=4)


def _lost(t: float) -> Mapping[str, Any]:
    if t % 90 > 45:
        return {
            "state": State.LOST,
            "error": "GPU is lost",
            "utilization": None,
            "memory_used_bytes": None,
            "power_w": None,
            "temperature_c": None,
            "sm_clock_hz": None,
            "event_reasons": None,
            "memory_utilization": None,
            "processes": None,
            "memory_temperature_c": None,
            "power_limit_w": None,
            "pcie_width": None,
            "pcie_generation": None,
            "memory_total_bytes": None,
            "memory_reserved_bytes": None,
            "performance_state": None,
        }
    return _sample(t, 0.88, memory_used_bytes=int(61 * GIB))


def _idle(t: float) -> Mapping[str, Any]:
    return _sample(t, 0.0, performance_state=0, memory_used_bytes=0)


def _python(pid: int, name: str, command: str, memory_gib: float, sm: float, **host: Any) -> tuple[GpuProcess, HostProcess]:
    process_fields: dict[str, Any] = {
        "user": "ada",
        "parent_pid": FIRST_PID - 1,
        "state": "S",
        "host_memory_bytes": int(6 * GIB),
        "cpu_share": 0.62,
        "n_workers": 4,
        "workers_cpu_share": 0.9,
        "n_workers_pegged": 0,
        "n_workers_waiting": 0,
    }
    gpu = GpuProcess(pid, "compute", int(memory_gib * GIB), sm, sm * 0.6, 0.0, 0.0)
    return gpu, HostProcess(pid, name, command, **(process_fields | host))


def _scene(n: int) -> DemoScene:
    pid = FIRST_PID + 10 * n
    train = "python train.py --model llama-3.1-8b --fsdp"
    rows: list[tuple[Play, list[tuple[GpuProcess, HostProcess]], dict[str, float], dict[str, Any]]] = [
        (_train, [_python(pid, "python", train, 60.2, 0.91)], {}, {}),
        (_capped, [_python(pid, "python", train, 69.1, 0.97)], {"SW_POWER_CAP": 0.97}, {}),
        (_hot, [_python(pid, "python", train, 65.0, 0.95)], {"SW_THERMAL": 0.8}, {}),
        (
            _starved,
            [
                _python(
                    pid,
                    "python",
                    "python finetune.py --workers 4",
                    37.1,
                    0.3,
                    user="bob",
                    cpu_share=0.2,
                    workers_cpu_share=3.9,
                    n_workers_pegged=4,
                )
            ],
            {},
            {},
        ),
        (
            _serving,
            [
                _python(
                    pid,
                    "VLLM::EngineCore",
                    "vllm serve Qwen/Qwen3-32B",
                    77.0,
                    0.7,
                    user="serve",
                    container="docker 3f2a9c11d0e4",
                    n_workers=0,
                    workers_cpu_share=0.0,
                )
            ],
            {},
            {},
        ),
        (_broken, [_python(pid, "python", train, 60.2, 0.9)], {}, {"ecc_uncorrected": 2, "remap_pending": True}),
        (_lost, [_python(pid, "python", train, 60.2, 0.9)], {}, {}),
        (_idle, [], {}, {}),
    ]
    play, people, held_share, health = rows[n % len(rows)]
    return DemoScene(play, tuple(g for g, _ in people), tuple(h for _, h in people), held_share, health)


class DemoDevices(NullDevices):
    """Scripted H100 cards with consistent counters (energy, throttled time, NVLink)."""

    def __init__(self, n: int = 8, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.scenes = tuple(_scene(i) for i in range(n))
        cards = [
            NullCard(
                CARD,
                identity=_IDENTITY | {"pci_bus_id": f"00000000:{0x1B + 8 * i:02X}:00.0"},
                script=s.play,
                processes=s.processes,
                sample={"pcie_generation": 5, "pcie_width": 16, "power_limit_w": LIMIT_W},
                health=s.health,
            )
            for i, s in enumerate(self.scenes)
        ]
        super().__init__(cards, driver=Driver("null", "demo"), clock=clock)
        self._start_s -= BEGIN_S
        self._now, self._began_s = clock, clock() - BEGIN_S
        self._energy_j = [0.0] * n
        self._read_s = [self._began_s] * n

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        """The script's readings; the energy counter adds up their power."""
        sample = super().sample(index, processes=processes)
        if sample.power_w is None:
            self._read_s[index] = sample.at_s
            return sample
        self._energy_j[index] += sample.power_w * max(0.0, sample.at_s - self._read_s[index])
        self._read_s[index] = sample.at_s
        return replace(sample, energy_j=self._energy_j[index])

    def health(self, index: int) -> Health:
        """The script's health, with counters that rise at the shares the situation names."""
        run_s = self._now() - self._began_s
        busy = self.scenes[index].processes != ()
        rate = 4.5e9 if busy else 0.0
        return replace(
            super().health(index),
            held_back_s={k: v * run_s for k, v in self.scenes[index].held.items()},
            nvlinks_active=18,
            nvlink_sent_bytes=int(40 * rate * run_s),
            nvlink_received_bytes=int(40 * rate * run_s),
            pcie_sent_bytes_per_s=rate / 20,
            pcie_received_bytes_per_s=rate / 4,
            nvlink_errors=0,
            pcie_replays=0,
        )


_IDENTITY: dict[str, Any] = {
    "sm_clock_max_hz": CLOCK_MAX_HZ,
    "memory_clock_max_hz": MEMORY_CLOCK_HZ,
    "temperature_slowdown_c": 89.0,
    "memory_temperature_max_c": 95.0,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
    "n_nvlinks": 18,
    "ecc": True,
    "power_limit_default_w": LIMIT_W,
    "power_limit_max_w": LIMIT_W,
}


class DemoReader:
    """Operating system data of the processes of :class:`DemoDevices`."""

    def __init__(self, devices: DemoDevices) -> None:
        self._hosts = {h.pid: h for s in devices.scenes for h in s.hosts}
        self._boot_s = time.monotonic()

    def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
        """Same as :meth:`gpuwise.machine.telemetry.host_processes.ProcessReader.read`."""
        return {p: replace(self._hosts[p], started_s=self._boot_s - 4000) for p in pids if p in self._hosts}
