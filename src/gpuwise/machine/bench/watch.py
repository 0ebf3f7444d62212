"""A device's clocks, power, temperature and event reasons while something is measured on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from gpuwise.machine.bench.subjects import Subject
from gpuwise.machine.devices.readings import EventReason, Sample, State
from gpuwise.records.record import Value

LEAST_S = 0.1
"""The system counts its processors' seconds in hundredths."""
INTERVAL_S = 0.05
"""Between readings: short against the second a driver's power average takes, long against what a reading costs."""


class Watch:
    """Reads ``subject``'s device in a thread while the block runs; ``conditions`` afterwards. Without a driver that
    answers, the conditions say so."""

    def __init__(self, subject: Subject, interval_s: float = INTERVAL_S) -> None:
        self._subject, self._interval_s = subject, interval_s
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began: tuple[float, float, float] | None = None
        self._ended: tuple[float, float, float] | None = None

    def __enter__(self) -> Self:
        self._began = _host_times()
        if self._subject.backend is not None:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._ended = _host_times()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _read(self) -> None:
        backend, index = self._subject.backend, self._subject.backend_index
        assert backend is not None
        while True:
            self._samples.append(backend.sample(index, processes=False))
            if self._stop.wait(self._interval_s):
                return

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    @property
    def conditions(self) -> dict[str, Value]:
        """Conditions over all readings so far."""
        if self._subject.kind == "cpu":
            return others_busy(self._began, self._ended, self._subject.units)
        if self._subject.backend is None:
            return {"unwatched": "no driver library answers for this device"}
        return summarise_samples(self.samples)


def _host_times() -> tuple[float, float, float] | None:
    """Seconds: by the clock, of all processors at work (a hypervisor's share too), of this process and its children."""
    import os
    import time

    try:
        import psutil

        all_of_them = psutil.cpu_times()
    except (ImportError, OSError, RuntimeError):
        return None
    busy = sum(all_of_them) - all_of_them.idle - getattr(all_of_them, "iowait", 0.0)
    # a guest's time is in its user's already
    busy -= getattr(all_of_them, "guest", 0.0) + getattr(all_of_them, "guest_nice", 0.0)
    process_times = os.times()
    return (
        time.monotonic(),
        busy,
        process_times.user + process_times.system + process_times.children_user + process_times.children_system,
    )


def others_busy(
    began: tuple[float, float, float] | None, ended: tuple[float, float, float] | None, cores: int
) -> dict[str, Value]:
    """Share of the cores used by other programs between two readings; empty if they are too close."""
    if began is None or ended is None or ended[0] - began[0] < LEAST_S:
        return {}
    others = (ended[1] - began[1]) - (ended[2] - began[2])
    return {"others_busy": round(min(1.0, max(0.0, others / ((ended[0] - began[0]) * max(cores, 1)))), 3)}


def summarise_samples(samples: Sequence[Sample]) -> dict[str, Value]:
    """Median clocks, mean power, highest temperature, narrowest link, and the share of readings with each event reason.
    Missing readings are omitted."""
    alive = [s for s in samples if s.state is State.OK]
    conditions: dict[str, Value] = {"readings": len(samples)}
    if len(alive) < len(samples):
        worst = next(s for s in samples if s.state is not State.OK)
        conditions |= {"state": str(worst.state), "state_error": worst.error}
    for name, of in READ.items():
        values = [float(v) for s in alive if (v := getattr(s, name)) is not None]
        if values:
            conditions[name] = of(values)
    clocks = [s.sm_clock_hz for s in alive if s.sm_clock_hz is not None]
    if clocks:
        conditions["sm_clock_min_hz"] = min(clocks)
    event_bits = [s.event_reasons for s in alive if s.event_reasons is not None]
    for bit in range(64):
        share = sum(1 for reasons in event_bits if reasons >> bit & 1) / len(event_bits) if event_bits else 0.0
        if share and (1 << bit) != EventReason.IDLE:
            conditions[f"event {reason_name(1 << bit)}"] = round(share, 3)
    return conditions


def reason_name(bit: int) -> str:
    """``SW_POWER_CAP``; an unknown bit as its number."""
    try:
        return EventReason(bit).name or hex(bit)
    except ValueError:
        return hex(bit)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


READ: Mapping[str, Callable[[list[float]], float]] = {
    "sm_clock_hz": _median,
    "memory_clock_hz": _median,
    "power_w": _mean,
    "temperature_c": max,
    "memory_temperature_c": max,
    "power_limit_w": min,
    "pcie_width": min,
    "pcie_generation": max,
}
"""Reading -> how to combine many. The link's generation drops when idle, so the highest counts."""
