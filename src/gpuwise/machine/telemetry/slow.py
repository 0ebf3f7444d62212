"""The slow readings, read by one thread spread over a period, so that a refresh does not wait for them.

The driver measures PCIe traffic over 20 ms and row-remapping takes longer still; reading eight cards in a refresh would delay
it by a third of a second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.backend import Devices
from gpuwise.machine.devices.readings import Health, Xid
from gpuwise.machine.telemetry.rates import HealthTrack

XID_WAIT_S = 1.0
"""Length of one wait for an error report: closing the monitor takes no longer."""
ASK_AGAIN_S = 10.0
N_XIDS = 64


@dataclass(frozen=True, slots=True)
class SlowReading:
    """The latest health of one device."""

    health: Health | None
    error: str | None
    track: HealthTrack


class HealthWatch:
    """Reads the health of cards in turn. ``step`` reads one; ``start`` has a thread do it."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._targets: Sequence[tuple[Devices, int]] = ()
        self._readings: dict[int, SlowReading] = {}
        self._next = 0
        self._stop, self._round = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, targets: Sequence[tuple[Devices, int]]) -> None:
        """The cards in order of their numbers: backend and the index there."""
        with self._lock:
            self._targets = tuple(targets)
            self._readings = {n: r for n, r in self._readings.items() if n < len(self._targets)}

    def step(self) -> None:
        """Read the next card's health."""
        with self._lock:
            targets = self._targets
            if not targets:
                self._round.set()
                return
            number = self._next % len(targets)
            self._next = number + 1
        devices, index = targets[number]
        health, error = None, None
        try:
            health = devices.health(index)
        except DeviceError as caught:
            error = caught.message or None
        with self._lock:
            old = self._readings.get(number)
            track = old.track if old is not None else HealthTrack()
            if health is not None and (track.last is None or health.at_s > track.last.at_s):
                track.add(health)
            self._readings[number] = SlowReading(health or (old.health if old else None), error, track)
            if self._next >= len(targets):
                self._round.set()

    def read_all(self) -> None:
        """Read every card's health once, now."""
        for _ in range(len(self._targets)):
            self.step()

    def readings(self) -> Mapping[int, SlowReading]:
        """The latest of every card, by number."""
        with self._lock:
            return dict(self._readings)

    def start(self) -> None:
        """Read in a thread from now on; the first round without pauses."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpuwise-health", daemon=True)
            self._thread.start()

    def wait_for_round(self, timeout_s: float) -> bool:
        """Whether every card was read once, waiting up to ``timeout_s``."""
        return self._round.wait(timeout_s)

    def stop(self) -> None:
        """End the thread; safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            self.step()
            pause_s = self._period_s / max(1, len(self._targets)) if self._round.is_set() else 0.0
            self._stop.wait(pause_s)


class XidWatch:
    """Errors reported by the drivers, collected by one thread per backend. A failing backend is retried later."""

    def __init__(self, backends: Sequence[Devices]) -> None:
        self._backends = backends
        self._stop = threading.Event()
        self._seen: deque[Xid] = deque(maxlen=N_XIDS)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start waiting for errors."""
        for devices in self._backends:
            thread = threading.Thread(target=self._run, args=(devices,), name="gpuwise-xid", daemon=True)
            self._threads.append(thread)
            thread.start()

    def seen(self) -> tuple[Xid, ...]:
        """The newest errors, oldest first."""
        return tuple(self._seen)

    def stop(self) -> None:
        """End the threads; safe to call twice."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=2 * XID_WAIT_S)
        self._threads.clear()

    def _run(self, devices: Devices) -> None:
        while not self._stop.is_set():
            try:
                xid = devices.wait_for_xid(XID_WAIT_S)
            except DeviceError:
                # not supported here, or the driver went away: it may come back
                self._stop.wait(ASK_AGAIN_S)
                continue
            if xid is not None:
                self._seen.append(xid)
