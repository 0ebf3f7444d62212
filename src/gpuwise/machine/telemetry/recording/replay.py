"""The replay of a recording: the same frames, the same causes, through the same screens.

Readings are recorded, not conclusions: a :class:`~gpuwise.machine.telemetry.monitor.Monitor` watches the recorded cards with
the recorded clock, so a replay shows this version's conclusions.
"""

from __future__ import annotations

import bisect
import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwise.errors import DataError, DeviceError, InputError
from gpuwise.files import GIB, check_file
from gpuwise.machine.devices.readings import Driver, GpuProcess, Health, Identity, Peer, Sample, State, Xid
from gpuwise.machine.telemetry.frames import Frame, Host, HostProcess
from gpuwise.machine.telemetry.history import N_KEPT, History
from gpuwise.machine.telemetry.monitor import Monitor
from gpuwise.machine.telemetry.recording.plain import from_plain
from gpuwise.machine.telemetry.recording.schema import (
    APPLICATION_ID,
    STILL,
    VERSION,
    Columns,
    column_name,
    gpu_columns,
    health_columns,
    host_columns,
    is_text_apart,
    sample_columns,
)

if TYPE_CHECKING:
    from gpuwise.machine.telemetry.causes.cause import Cause

MOST_BYTES = 256 * GIB
"""Maximum bytes of a recording, which is read a frame at a time."""
T = TypeVar("T")
Row = Mapping[str, Any]


class Recording:
    """A recording on disk. Raises InputError for another file."""

    def __init__(self, path: Path) -> None:
        check_file(path, most=MOST_BYTES, hint="`gpuwise top --record FILE` makes one")
        try:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            application = self._db.execute("PRAGMA application_id").fetchone()[0]
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if application != APPLICATION_ID:
                raise InputError(f"{path} is not a recording of gpuwise", hint="`gpuwise top --record FILE` makes one")
            if version > VERSION:
                raise InputError(
                    f"{path} was recorded by a newer gpuwise (version {version} of the format; this one reads up to {VERSION})",
                    hint="upgrade gpuwise",
                )
            self.about = {k: json.loads(v) for k, v in self._db.execute("SELECT key, value FROM recording")}
            self._words = {i: json.loads(t) for i, t in self._db.execute("SELECT id, text FROM words")}
            self.sequences = tuple(s for (s,) in self._db.execute("SELECT sequence FROM frame ORDER BY sequence"))
            self.at_s = tuple(s for (s,) in self._db.execute("SELECT at_s FROM frame ORDER BY sequence"))
            self._processes = {r["id"]: r for r in self._db.execute("SELECT * FROM process")}
            self._cards = list(self._db.execute("SELECT number, sequence, identity FROM card ORDER BY number, sequence"))
        except sqlite3.Error as error:
            raise InputError(
                f"{path} cannot be read as a recording: {error}", hint="was it written by `gpuwise top --record`?"
            ) from error

    def __len__(self) -> int:
        return len(self.sequences)

    def identities(self, sequence: int) -> tuple[Identity, ...]:
        """The identity of each card at a frame, by number."""
        by_number: dict[int, Identity] = {}
        for row in self._cards:
            if row["sequence"] <= sequence or row["number"] not in by_number:
                by_number[row["number"]] = from_plain(Identity, json.loads(row["identity"]))
        return tuple(by_number[n] for n in sorted(by_number))

    def frame(self, sequence: int) -> Row:
        """The row of a frame."""
        return self._rows("SELECT * FROM frame WHERE sequence = ?", sequence)[0]

    def samples(self, sequence: int) -> dict[int, Sample]:
        """The samples of a frame, by the card's number."""
        processes, hosts = self._processes_of(sequence)
        self.hosts = hosts
        return {
            r["number"]: replace(
                self._value(Sample, sample_columns(), r, index=r["number"]),
                processes=tuple(processes.get(r["number"], ())) if r["processes_listed"] else None,
            )
            for r in self._rows("SELECT * FROM sample WHERE sequence = ?", sequence)
        }

    def health(self, number: int, sequence: int) -> tuple[Health | None, str | None]:
        """The latest health of a card at a frame, and why it could not be read."""
        rows = self._rows(
            "SELECT * FROM health WHERE number = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1", number, sequence
        )
        if not rows:
            return None, None
        row = rows[0]
        health = None if row["at_s"] is None else self._value(Health, health_columns(), row, index=number)
        return health, row["error"]

    def words(self, key: int | None) -> Any:
        """The value behind a ``_words`` column; None without one."""
        return None if key is None else self._words.get(key)

    def close(self) -> None:
        self._db.close()

    def _rows(self, sql: str, *values: object) -> list[Any]:
        try:
            return list(self._db.execute(sql, values))
        except sqlite3.Error as error:
            raise DataError(f"the recording is damaged: {error}") from error

    def _processes_of(self, sequence: int) -> tuple[dict[int, list[GpuProcess]], dict[int, HostProcess]]:
        listed, hosts = dict[int, list[GpuProcess]](), dict[int, HostProcess]()
        for row in self._rows("SELECT * FROM process_sample WHERE sequence = ?", sequence):
            process = self._processes.get(row["process"])
            if process is None:
                raise DataError("the recording is damaged: a process is not listed in it")
            pid = process["pid"]
            listed.setdefault(row["number"], []).append(self._value(GpuProcess, gpu_columns(), row, pid=pid))
            hosts[pid] = self._value(HostProcess, host_columns(), row, "host_", pid=pid, **{n: process[n] for n in STILL})
        return listed, hosts

    def _value(self, kind: type[T], table: Columns, row: Any, before: str = "", **more: Any) -> T:
        there = set(row.keys())
        plain = dict(more)
        for name, hint in table.items():
            column = column_name(name, hint, before)
            if column not in there:
                continue
            value = row[column]
            if is_text_apart(hint):
                value = self.words(value)
                if value is None:
                    continue
            plain[name] = value
        return from_plain(kind, plain)


class _RecordedDevices:
    """The cards of a recording as a backend, at the current frame of the replay."""

    vendor = "recorded"

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.sequence = recording.sequences[0] if len(recording) else 0
        self.samples: dict[int, Sample] = {}

    def go(self, sequence: int) -> None:
        self.sequence, self.samples = sequence, self.recording.samples(sequence)

    def driver(self) -> Driver:
        return Driver(self.vendor, None)

    def identities(self) -> tuple[Identity, ...]:
        # the monitor requests a card by its index: that is the number here, and the identity's own is restored below
        return tuple(replace(i, index=n) for n, i in enumerate(self.recording.identities(self.sequence)))

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        sample = self.samples.get(index)
        if sample is None:
            return Sample(index, 0.0, State.UNREACHABLE, error="not in the recording")
        return sample if processes else replace(sample, processes=None)

    def health(self, index: int) -> Health:
        health, error = self.recording.health(index, self.sequence)
        if health is None or error is not None:
            raise DeviceError(error or "")
        return health

    def peers(self) -> tuple[Peer, ...]:
        return ()

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        return None

    def close(self) -> None:
        self.recording.close()

    def read(self, pids: Collection[int], now_s: float) -> Mapping[int, HostProcess]:
        """Recorded operating system data: this is the process reader too."""
        return {p: self.recording.hosts[p] for p in pids if p in self.recording.hosts}


class Replay:
    """A recording as a source of frames: each refresh is the next recorded frame; at the end the last one is repeated.

    ``seek`` goes to a moment; ``finished`` is true after the last frame. Raises InputError if ``path`` is not a recording or
    has no frame.
    """

    def __init__(self, path: Path, *, history_size: int = N_KEPT) -> None:
        self.path = path
        self._recording = Recording(path)
        if not len(self._recording):
            raise InputError(f"{path} contains no frame", hint="it was stopped before the first refresh")
        self._devices = _RecordedDevices(self._recording)
        self._history_size, self._next = history_size, 0
        self._last: Frame | None = None
        self._monitor = self._new_monitor()

    @property
    def history(self) -> History:
        return self._monitor.history

    @property
    def interval_s(self) -> float:
        """Median interval of the recorded frames, seconds."""
        at_s = self._recording.at_s
        steps = sorted(b - a for a, b in pairwise(at_s))
        return max(0.01, steps[len(steps) // 2]) if steps else 1.0

    @property
    def notices(self) -> tuple[str, ...]:
        """The position of the replay."""
        return (f"replay of {self.path.name}: {self.position_s:.0f} of {self.length_s:.0f} s",)

    @property
    def finished(self) -> bool:
        """Whether the last frame was given."""
        return self._next >= len(self._recording)

    @property
    def length_s(self) -> float:
        """Seconds from the first to the last frame."""
        return self._recording.at_s[-1] - self._recording.at_s[0]

    @property
    def position_s(self) -> float:
        """Seconds from the first frame to the current one."""
        return self._recording.at_s[max(0, self._next - 1)] - self._recording.at_s[0]

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self._recording)

    def refresh(self) -> Frame:
        """The next frame; the last one again at the end. Raises DataError where the file is damaged."""
        if self.finished and self._last is not None:
            return self._last
        place = min(self._next, len(self._recording) - 1)
        sequence = self._recording.sequences[place]
        self._devices.go(sequence)
        row = self._recording.frame(sequence)
        self._now_s, self._wall_s = row["at_s"], row["wall_s"]
        self._monitor.read_health()
        frame = self._monitor.refresh()
        identities = self._recording.identities(sequence)
        words = self._recording.words
        xids: list[tuple[int, Any]] = words(row["xids_words"]) or []
        self._last = replace(
            frame,
            sequence=sequence,
            cards=tuple(
                replace(c, identity=identities[c.number], sample=replace(c.sample, index=identities[c.number].index))
                for c in frame.cards
            ),
            host=from_plain(Host, json.loads(row["host"])),
            failed=words(row["failed_words"]) or {},
            drivers=words(row["drivers_words"]) or {},
            xids=tuple((n, from_plain(Xid, x)) for n, x in xids),
            demo=bool(self._recording.about.get("demo")),
        )
        self._next = place + 1
        return self._last

    def seek(self, position_s: float) -> None:
        """Go to the frame at ``position_s`` after the first one, or the previous frame; the next refresh returns it. Rates and
        windows are recomputed as far back as they reach."""
        at_s = self._recording.at_s
        target = max(0, bisect.bisect_right(at_s, at_s[0] + position_s) - 1)
        target = min(target, len(at_s) - 1)
        start = max(0, bisect.bisect_left(at_s, at_s[target] - LOOK_BACK_S))
        self._monitor.close()
        self._monitor, self._last, self._next = self._new_monitor(), None, start
        while self._next < target:
            self.refresh()

    def causes(self, frame: Frame) -> tuple[Cause, ...]:
        """Same as :meth:`gpuwise.machine.telemetry.monitor.Monitor.causes`."""
        return self._monitor.causes(frame)

    def close(self) -> None:
        """Close the file."""
        self._monitor.close()
        self._recording.close()

    def _new_monitor(self) -> Monitor:
        self._now_s, self._wall_s = self._recording.at_s[0], 0.0
        return Monitor(
            [self._devices],
            background=False,
            reader=self._devices,
            clock=lambda: self._now_s,
            wall=lambda: self._wall_s,
            history_size=self._history_size,
            interval_s=self.interval_s,
            demo=bool(self._recording.about.get("demo")),
        )


LOOK_BACK_S = 900.0
"""The longest window of :mod:`gpuwise.machine.telemetry.rates`."""


def open_replay(path: Path) -> Replay:
    """A recording in SQLite or Parquet as a source. A Parquet file whose watch died is played from its journal. Raises
    InputError, DataError."""
    from gpuwise.machine.telemetry.recording.parquet import is_parquet, journal_of, read_parquet

    if not path.exists() and journal_of(path).exists():
        path = journal_of(path)
    if not is_parquet(path):
        return Replay(path)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpuwise-") as folder:
        unpacked = Path(folder) / path.name
        read_parquet(path, unpacked)
        # the open file outlives its name
        return Replay(unpacked)
