"""Energy of a run from its parent: the cards' own meters, or the processor's, read a few times a second beside the clock.

A watched process reports the times of its steps; the meter the energy used by then. So the energy of any stretch of a run can
be computed afterwards, without its warm-up. Idle power is included: a step that waits uses energy too. So is other work on the
same card or processor.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpuwise.errors import DeviceError
from gpuwise.train.hook.journal import Journal

if TYPE_CHECKING:
    from gpuwise.machine.devices.backend import Devices
    from gpuwise.machine.telemetry.rates import EnergyMeter

EVERY_S = 0.1
"""Drivers renew their readings about this often (NVML's energy counter, RAPL's 1 ms is far below)."""
MOST_POINTS = 20_000
"""Maximum points per card; beyond it every second point is dropped and the interval doubles."""
LEAST_WINDOW_S = 0.5
"""A shorter stretch holds too few readings. Rule of this project."""
POWERCAP = Path("/sys/class/powercap")
MICRO_J = 1e-6


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of an interval of a run. ``energy_j`` is None if unknown; ``why`` is the reason."""

    energy_j: float | None = None
    basis: str | None = None
    """``energy counter`` or ``integrated power`` of the cards; ``RAPL`` of the processor."""
    why: str | None = None


NO_ENERGY = Energy()


@dataclass(slots=True)
class _Track:
    """One source's joules at moments of ``time.time``."""

    at_s: list[float] = field(default_factory=list[float])
    used_j: list[float] = field(default_factory=list[float])

    def add(self, at_s: float, used_j: float) -> None:
        self.at_s.append(at_s)
        self.used_j.append(used_j)
        if len(self.at_s) > MOST_POINTS:
            del self.at_s[1:-1:2], self.used_j[1:-1:2]

    def at(self, at_s: float) -> float | None:
        """Joules until then, between two readings in proportion; None outside of them."""
        if len(self.at_s) < 2 or not self.at_s[0] <= at_s <= self.at_s[-1]:
            return None
        n = max(bisect_left(self.at_s, at_s), 1)
        a_s, b_s, a_j, b_j = self.at_s[n - 1], self.at_s[n], self.used_j[n - 1], self.used_j[n]
        return a_j + (b_j - a_j) * ((at_s - a_s) / (b_s - a_s) if b_s > a_s else 1.0)


@dataclass(slots=True)
class _GpuEnergy:
    """One GPU under the meter."""

    devices: Devices
    index: int
    name: str
    uuid: str | None
    meter: EnergyMeter
    track: _Track = field(default_factory=_Track)
    lost: str | None = None
    """Reason for a failed reading: the energy in that interval is unknown."""

    def read(self) -> None:
        before_s = time.time()
        sample = self.devices.sample(self.index)
        if sample.error is not None:
            self.lost = sample.error
        self.meter.add(sample)
        self.track.add((before_s + time.time()) / 2, self.meter.energy_j or 0.0)


class Meter:
    """Reads every card and the processor while it is open; :meth:`between` gives the energy of a stretch.

    ``devices`` are opened backends (else every vendor's are looked for), ``powercap`` the folder of RAPL.
    """

    def __init__(self, devices: Sequence[Devices] | None = None, *, powercap: Path = POWERCAP, every_s: float = EVERY_S) -> None:
        self._given, self._every_s = devices, every_s
        self._rapl = Rapl(powercap)
        self._owned: Sequence[Devices] = ()
        self._gpus: list[_GpuEnergy] = []
        self._processor = _Track()
        self._unknown: Mapping[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwise-energy", daemon=True)

    def __enter__(self) -> Self:
        self._open()
        self._read()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(5.0)
        self._read()
        for devices in self._owned:
            devices.close()

    def of(self, journal: Journal, from_s: float | None = None, to_s: float | None = None) -> Energy:
        """Energy of the run with this journal between two moments of its own clock (``Tick.at_s``); default: from its start until
        now.

        Counts the cards with its tensors, or the processor without any.
        """
        begin = journal.begin
        if "clock_s" not in begin:
            return Energy(why="the run did not begin")
        shift_s = float(begin["at_s"]) - float(begin["clock_s"])
        start = float(begin["at_s"]) if from_s is None else from_s + shift_s
        end = self._last_s() if to_s is None else to_s + shift_s
        event = journal.last("devices")
        if not event:
            return Energy(why="the run ended before its second step")
        used = event["devices"]
        if not used:
            return self._of_processor(start, end)
        return self._of_gpus(used, start, end)

    def _of_processor(self, start: float, end: float) -> Energy:
        if not self._rapl.readable:
            return Energy(why=self._rapl.why)
        energy_j = _between(self._processor, start, end)
        return Energy(energy_j, "RAPL") if energy_j is not None else Energy(why=TOO_SHORT)

    def _of_gpus(self, used: Sequence[Mapping[str, Any]], start: float, end: float) -> Energy:
        total, bases = 0.0, set[str]()
        for device in used:
            gpu = self._gpu_of(device)
            if gpu is None:
                return Energy(why=self._why_no_gpu(device))
            if gpu.lost is not None:
                return Energy(why=f"{device['name']} did not answer all the time: {gpu.lost}")
            if gpu.meter.basis is None:
                return Energy(why=f"{device['name']} does not say what power it takes")
            energy_j = _between(gpu.track, start, end)
            if energy_j is None:
                return Energy(why=TOO_SHORT)
            total += energy_j
            bases.add(gpu.meter.basis)
        return Energy(total, bases.pop() if len(bases) == 1 else "integrated power")

    def _gpu_of(self, device: Mapping[str, Any]) -> _GpuEnergy | None:
        from gpuwise.machine.devices.readings import plain_uuid

        uuid = plain_uuid(device.get("uuid"))
        for gpu in self._gpus:
            if uuid and plain_uuid(gpu.uuid) == uuid:
                return gpu
        # a driver that gives no unique names: the only card of that name is it
        named = [c for c in self._gpus if c.name == device["name"] and not (uuid and c.uuid)]
        return named[0] if len(named) == 1 else None

    def _why_no_gpu(self, device: Mapping[str, Any]) -> str:
        if not self._gpus:
            said = "; ".join(f"{who}: {why}" for who, why in self._unknown.items())
            return f"no driver answers for {device['name']}" + (f" ({said})" if said else "")
        return f"the driver does not list {device['name']} (a part of a GPU?)"

    # -- reading

    def _open(self) -> None:
        from gpuwise.machine.devices.find import find_devices

        devices: Sequence[Devices] = ()
        if self._given is not None:
            devices = self._given
        else:
            try:
                search = find_devices()
                devices = self._owned = search.backends
                self._unknown = {vendor: error.message for vendor, error in search.failed.items()}
            except ImportError as error:
                self._unknown = {"client": str(error)}
        for backend in devices:
            from gpuwise.machine.telemetry.rates import EnergyMeter

            try:
                self._gpus += [_GpuEnergy(backend, i.index, i.name, i.uuid, EnergyMeter()) for i in backend.identities()]
            except DeviceError as error:
                self._unknown = {**self._unknown, backend.vendor: error.message}

    def _run(self) -> None:
        if not self._gpus and not self._rapl.readable:
            return
        while not self._stop.wait(self._every_s):
            self._read()

    def _read(self) -> None:
        for gpu in self._gpus:
            gpu.read()
        used_j = self._rapl.read()
        if used_j is not None:
            self._processor.add(time.time(), used_j)

    def _last_s(self) -> float:
        tracks = [self._processor, *(c.track for c in self._gpus)]
        return min((t.at_s[-1] for t in tracks if t.at_s), default=0.0)


TOO_SHORT = "the steady steps were over before two readings"


def _between(track: _Track, start: float, end: float) -> float | None:
    if end - start < LEAST_WINDOW_S:
        return None
    a, b = track.at(max(start, track.at_s[0]) if track.at_s and start < track.at_s[0] < start + EVERY_S else start), track.at(end)
    return b - a if a is not None and b is not None and b > a else None


class Rapl:
    """The processor packages' own energy counters, with those of memory beside them, as Linux lists them (powercap).

    The counters are of the whole machine, start at any number and wrap around at ``max_energy_range_uj``.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters: list[tuple[Path, float]] = []
        self._last: dict[Path, float] = {}
        self._used_j = 0.0
        self.why = "this processor has no energy counter that Linux lists (RAPL), as in most virtual machines"
        for place in sorted(folder.glob("*rapl:*")) if folder.is_dir() else []:
            name = _text(place / "name") or ""
            # cores and graphics are inside their package, psys is around all
            if not name.startswith(("package", "dram")):
                continue
            if _text(place / "energy_uj") is None:
                self.why = f"{place / 'energy_uj'} cannot be read: only root may, on most systems"
                self._counters.clear()
                return
            self._counters.append((place / "energy_uj", float(_text(place / "max_energy_range_uj") or 0.0)))

    @property
    def readable(self) -> bool:
        """Whether there is a counter."""
        return bool(self._counters)

    def read(self) -> float | None:
        """Joules since the first reading; None without a counter."""
        for file, largest in self._counters:
            said = _text(file)
            if said is None:
                return None
            now = float(said)
            step = now - self._last.get(file, now)
            self._used_j += (step if step >= 0 else step + largest) * MICRO_J
            self._last[file] = now
        return self._used_j if self._counters else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
