"""The monitor through everything a machine does to it: lost cards, unloaded drivers, processes that go, clocks that jump."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpuwise.errors import DeviceError, DeviceLostError, ReadingError
from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import Driver, GpuProcess, Health, Identity, Sample, State, Xid
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.machine.telemetry.monitor import LOOK_AGAIN_S, Monitor

CARD = NullCard("rtx-4090")
LOST = {"state": State.LOST, "error": "GPU is lost", "utilization": None, "power_w": None, "memory_used_bytes": None}


def test_a_frame_has_every_card_joined_with_its_process(watch: Callable[..., Monitor], clock: Any) -> None:
    running = NullCard("rtx-4090", processes=(GpuProcess(os.getpid(), "compute", 2**30),))
    with watch(running, CARD) as monitor:
        first = monitor.refresh()
        clock.go(1.0)
        frame = monitor.refresh()
    assert (first.sequence, frame.sequence, first.interval_s, frame.interval_s) == (0, 1, None, 1.0)
    assert [c.number for c in frame.cards] == [0, 1] and frame.cards[0].identity.name.startswith("RTX 4090")
    (row,) = frame.cards[0].processes or ()
    assert row.pid == os.getpid() and row.host.name and row.host.parent_pid == os.getppid()
    assert frame.cards[1].processes == () and list(monitor.history.times()) == [1000.0, 1001.0]
    assert frame.cards[0].power_w == pytest.approx(45) and frame.cards[0].energy_j == pytest.approx(45)


def test_a_card_that_is_lost_stays_in_its_place_and_comes_back(watch: Callable[..., Monitor], clock: Any) -> None:
    def script(t: float) -> Mapping[str, Any]:
        return LOST if 2 <= t < 5 else {}

    with watch(CARD, NullCard("h100-sxm", script=script)) as monitor:
        states, causes = [], []
        for _ in range(8):
            frame = monitor.refresh()
            states.append(frame.cards[1].sample.state)
            causes.append([c.id for c in monitor.causes(frame)])
            clock.go(1.0)
    assert [s is State.LOST for s in states] == [False, False, True, True, True, False, False, False]
    assert [c == ["lost"] for c in causes] == [s is State.LOST for s in states]
    assert frame.cards[1].identity.name.startswith("H100") and frame.cards[1].last_seen_s == 1007.0


class Shaky:
    """A backend whose driver can be taken away."""

    vendor = "shaky"

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.up, self.closed = clock, True, 0
        self.health_gate: threading.Event | None = None
        self.calls: list[str] = []

    def _need(self) -> None:
        if not self.up:
            raise DeviceError("the driver is not loaded", vendor=self.vendor)

    def driver(self) -> Driver:
        self._need()
        return Driver(self.vendor, "1.0")

    def identities(self) -> tuple[Identity, ...]:
        self._need()
        return (Identity(self.vendor, 0, "Shaky 1"),)

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        self.calls.append("sample")
        if not self.up:
            return Sample(index, self.clock(), State.UNREACHABLE, error="the driver is not loaded")
        return Sample(index, self.clock(), utilization=0.1, processes=())

    def health(self, index: int) -> Health:
        self.calls.append("health")
        if self.health_gate is not None:
            self.health_gate.wait(300)
        self._need()
        return Health(index, self.clock(), ecc_uncorrected=0)

    def peers(self) -> tuple[()]:
        return ()

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        raise ReadingError("xid", "not supported")

    def close(self) -> None:
        self.closed += 1


def test_a_driver_unloaded_and_back(clock: Any) -> None:
    devices = Shaky(clock)
    with Monitor([devices], clock=clock, background=False) as monitor:
        monitor.refresh()
        devices.up = False
        clock.go(1)
        away = monitor.refresh()
        assert [c.id for c in monitor.causes(away)] == ["unreachable"] and "not loaded" in str(away.cards[0].health_error)
        devices.up = True
        clock.go(1)
        back = monitor.refresh()
    assert back.cards[0].ok and back.cards[0].identity.name == "Shaky 1" and monitor.causes(back) == ()
    assert devices.closed == 0, "a caller's backend is the caller's to close"


def test_no_card_at_first_is_looked_for_again(clock: Any) -> None:
    devices, asked = Shaky(clock), []

    def find() -> tuple[list[Any], dict[str, str]]:
        asked.append(clock())
        return ([devices], {}) if clock() >= 1015 else ([], {"nvidia": "the driver is not loaded"})

    with Monitor(clock=clock, find=find, background=False) as monitor:
        frame = monitor.refresh()
        assert frame.cards == () and frame.failed == {"nvidia": "the driver is not loaded"}
        for _ in range(25):
            clock.go(1)
            frame = monitor.refresh()
        assert frame.cards[0].identity.name == "Shaky 1" and frame.failed == {}
        assert len(asked) == 3 and all(b - a >= LOOK_AGAIN_S for a, b in pairwise(asked))
    assert devices.closed == 1


def test_a_given_backend_that_is_down_at_the_start_is_watched_when_it_comes(clock: Any) -> None:
    devices = Shaky(clock)
    devices.up = False
    with Monitor([devices], clock=clock, background=False) as monitor:
        assert monitor.refresh().failed == {"shaky": "the driver is not loaded"}
        devices.up = True
        clock.go(LOOK_AGAIN_S)
        assert monitor.refresh().cards[0].ok


def test_slow_health_never_holds_up_a_refresh(clock: Any) -> None:
    """The health of the card hangs for as long as the test wants; frames come all the same, and with it once it is there."""
    devices = Shaky(clock)
    devices.health_gate = threading.Event()
    with Monitor([devices], clock=clock, health_period_s=0.01) as monitor:
        for _ in range(5):
            assert monitor.refresh().cards[0].health is None
            clock.go(1)
        devices.health_gate.set()
        assert monitor._health.wait_for_round(120)
        assert monitor.refresh().cards[0].health is not None


def test_a_refresh_asks_each_card_once_and_reads_no_health(clock: Any) -> None:
    cards = [Shaky(clock) for _ in range(3)]
    with Monitor(cards, clock=clock, background=False) as monitor:
        monitor.read_health()
        for devices in cards:
            devices.calls.clear()
        for _ in range(10):
            monitor.refresh()
            clock.go(1)
    assert [d.calls for d in cards] == [["sample"] * 10] * 3


def test_health_is_spread_one_card_at_a_time(clock: Any) -> None:
    cards = [Shaky(clock) for _ in range(3)]
    with Monitor(cards, clock=clock, background=False) as monitor:
        for _ in range(6):
            before = sum(d.calls.count("health") for d in cards)
            monitor.refresh()
            assert sum(d.calls.count("health") for d in cards) == before + 1
    assert [d.calls.count("health") for d in cards] == [2, 2, 2]


def test_processes_that_come_and_go_between_the_driver_and_us(watch: Callable[..., Monitor], clock: Any) -> None:
    listed: list[GpuProcess] = []

    def script(t: float) -> Mapping[str, Any]:
        return {"processes": tuple(listed)}

    with watch(NullCard("rtx-4090", script=script)) as monitor:
        # a number above the kernel's largest can be no process
        listed.append(GpuProcess(2**22 + 7, "compute", 1))
        (row,) = monitor.refresh().cards[0].processes or ()
        assert row.host.name is None and row.host.unknown["name"] in ("ended", "no permission")
        listed[:] = [GpuProcess(os.getpid(), "compute", 1), GpuProcess(os.getpid(), "graphics", 1)]
        clock.go(1)
        assert len(monitor.refresh().cards[0].processes or ()) == 2
        listed.clear()
        clock.go(1)
        assert monitor.refresh().cards[0].processes == ()


def test_a_reader_of_processes_may_know_none(watch: Callable[..., Monitor]) -> None:
    class Blind:
        def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
            return {}

    with watch(NullCard("rtx-4090", processes=(GpuProcess(5, "compute"),)), reader=Blind()) as monitor:
        (row,) = monitor.refresh().cards[0].processes or ()
    assert row.host == HostProcess(5)


def test_a_time_of_day_that_jumps_changes_no_rate(clock: Any) -> None:
    wall = {"now": 1.8e9}
    devices = NullDevices([NullCard("rtx-4090", script=lambda t: {"energy_j": 100.0 * t})], clock=clock)
    with Monitor([devices], clock=clock, wall=lambda: wall["now"], background=False) as monitor:
        powers, walls = [], []
        for jump in (0, 0, -86400, 3600 * 24 * 365, 0):
            wall["now"] += 1 + jump
            frame = monitor.refresh()
            powers.append(frame.cards[0].power_w)
            walls.append(frame.wall_s)
            clock.go(1)
    assert powers[2:] == [100.0] * 3 and walls[2] < walls[1] < walls[3]


def test_two_refreshes_at_the_same_moment(watch: Callable[..., Monitor]) -> None:
    with watch(CARD) as monitor:
        monitor.refresh()
        assert monitor.refresh().interval_s is None


def test_errors_reported_by_the_driver_are_kept_with_their_card(clock: Any) -> None:
    reports = [Xid(79, None, "00000000:01:00.0"), Xid(13, None, "00000000:99:00.0")]
    given = threading.Event()

    class Reporting(Shaky):
        def identities(self) -> tuple[Identity, ...]:
            return (replace(super().identities()[0], pci_bus_id="00000000:01:00.0"),)

        def wait_for_xid(self, timeout_s: float) -> Xid | None:
            if reports:
                return reports.pop(0)
            given.set()
            threading.Event().wait(0.01)
            return None

    with Monitor([Reporting(clock)], clock=clock) as monitor:
        assert given.wait(300)
        frame = monitor.refresh()
    assert [(n, x.code) for n, x in frame.xids] == [(0, 79), (None, 13)]
    assert [c.id for c in monitor.causes(frame)] == ["xid"]


def test_closing_twice_ends_every_thread(clock: Any) -> None:
    before = set(threading.enumerate())
    monitor = Monitor([Shaky(clock)], clock=clock)
    monitor.settle()
    monitor.close()
    monitor.close()
    assert {t for t in threading.enumerate() if t.name.startswith("gpuwise")} <= before


def test_lost_health_keeps_what_was_known(clock: Any) -> None:
    class Losing(Shaky):
        def health(self, index: int) -> Health:
            if self.calls.count("health"):
                raise DeviceLostError(index, "GPU is lost")
            return super().health(index)

    with Monitor([Losing(clock)], clock=clock, background=False) as monitor:
        monitor.refresh()
        card = monitor.refresh().cards[0]
    assert card.health is not None and card.health_error == "GPU is lost"


def test_the_library_gives_a_frame_and_its_causes() -> None:
    from gpuwise import machine

    devices = NullDevices([NullCard("rtx-4090", sample={"pcie_width": 4}, identity={"pcie_width_max": 16})])
    frame = machine.sample([devices])
    assert frame.cards[0].health is not None
    assert [c.id for c in machine.why_slow(frame)] == ["pcie-width"]
    assert machine.sample([devices], quick=True).cards[0].health is None
