"""Cards, clocks and frames made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import GpuProcess, Health, Identity, Sample
from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader
from gpuwise.machine.telemetry.frames import Card, Frame, Host, HostProcess, ProcessRow, Recent
from gpuwise.machine.telemetry.monitor import Monitor

GIB = 2**30


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def go(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class Made:
    """Builders of frames with one healthy card under load, changed as a test says."""

    identity: Identity
    sample: Sample
    health: Health

    def card(
        self,
        *,
        identity: dict[str, Any] | None = None,
        sample: dict[str, Any] | None = None,
        health: dict[str, Any] | None = None,
        host: dict[str, Any] | None = None,
        **card: Any,
    ) -> Card:
        now = replace(self.sample, **(sample or {}))
        rows = ()
        if now.processes:
            told = HostProcess(now.processes[0].pid, **({"name": "python", "state": "S", "cpu_share": 0.5} | (host or {})))
            rows = tuple(ProcessRow(0, p, told) for p in now.processes)
        usual: dict[str, Any] = {"power_w": now.power_w, "power_basis": "driver's average", "processes": rows}
        return Card(0, replace(self.identity, **(identity or {})), now, replace(self.health, **(health or {})), **(usual | card))

    def frame(self, *cards: Card, **frame: Any) -> Frame:
        return Frame(**({"sequence": 0, "at_s": 1000.0, "wall_s": 1.8e9, "interval_s": None, "cards": cards} | frame))


@pytest.fixture(scope="session")
def made() -> Made:
    """A GeForce card at work with nothing the matter."""
    return Made(
        Identity(
            "null",
            0,
            "RTX 4090",
            uuid="GPU-0",
            pci_bus_id="00000000:01:00.0",
            memory_bytes=24 * GIB,
            power_limit_default_w=450.0,
            sm_clock_max_hz=3105e6,
            temperature_slowdown_c=90.0,
            memory_temperature_max_c=105.0,
            pcie_generation_max=4,
            pcie_width_max=16,
            n_nvlinks=4,
        ),
        Sample(
            0,
            1000.0,
            utilization=0.97,
            memory_used_bytes=20 * GIB,
            memory_total_bytes=24 * GIB,
            power_w=380.0,
            power_limit_w=450.0,
            temperature_c=66.0,
            sm_clock_hz=2745e6,
            event_reasons=0,
            pcie_generation=4,
            pcie_width=16,
            performance_state=2,
            processes=(GpuProcess(4242, "compute", 19 * GIB),),
        ),
        Health(0, 999.0, ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery_action="none", nvlinks_active=0),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Callable[..., Monitor]:
    """A monitor of scripted cards on the test's clock."""

    def make(*cards: NullCard, **options: Any) -> Monitor:
        devices = NullDevices(cards, clock=clock)
        return Monitor([devices], clock=clock, **({"background": False} | options))

    return make


@pytest.fixture
def demo_frames(clock: Clock) -> Callable[..., list[tuple[Frame, Any]]]:
    """Frames of the demo cards a second apart, with their causes."""

    def make(n: int, cards: int = 8, sinks: Sequence[Any] = ()) -> list[tuple[Frame, Any]]:
        devices = DemoDevices(cards, clock=clock)
        out = []
        with Monitor(
            [devices], clock=clock, wall=lambda: 1.8e9 + clock(), background=False, reader=DemoReader(devices), demo=True
        ) as monitor:
            for _ in range(n):
                frame = replace(monitor.refresh(), host=Host("box", 8, 0.5, 64 * GIB, 32 * GIB, 1.5))
                out.append((frame, monitor.causes(frame)))
                for sink in sinks:
                    sink.write(*out[-1])
                clock.go(1.0)
        return out

    return make


@pytest.fixture
def recent() -> Callable[..., Recent]:
    return lambda utilization, length_s=60.0: Recent(length_s, int(length_s), utilization, None, None)
