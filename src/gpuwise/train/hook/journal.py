"""The journal of a watched process: one JSON event a line. Of a killed process the last may be cut short; who writes next
drops it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from gpuwise.files import GIB, drop_torn_line, open_file
from gpuwise.train.ticks import COUNTERS, Step, Tick, steady, steps_of

MOST_JOURNAL = 16 * GIB
"""Maximum bytes of a journal, for a run of years."""
FLUSH_S = 0.5
"""Maximum seconds of events lost when a process is killed."""
DENSE_TICKS = 2000
"""Number of ticks of a live run after which one tick is stored per flush."""
SPARSE_FLUSH_S, FLUSHES = 5.0, 2000
"""Flushes of a live run come this far apart at most; until then a share of 1 / FLUSHES of the time past."""
_FIELDS = ("at_s", "optimizer", *COUNTERS)
_values = attrgetter(*_FIELDS)


class Writer:
    """Appends events; ticks and losses are gathered and written together. ``sparse``: of a run of days, the ticks after the first
    ``DENSE_TICKS`` are thinned out, so that the file stays small."""

    def __init__(self, path: Path, *, sparse: bool = False) -> None:
        drop_torn_line(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._ticks: list[Tick] = []
        self._began_s = self._flushed_s = time.perf_counter()
        self._process = os.getpid()
        self._sparse, self._n_ticks = sparse, 0

    def event(self, kind: str, /, **values: Any) -> None:
        """Write one event at once, after the ticks and losses that are waiting."""
        self.flush()
        self._line({"event": kind, **values})

    def tick(self, tick: Tick) -> None:
        """Add a tick; it is written with others every ``FLUSH_S`` seconds."""
        self._n_ticks += 1
        every_s = FLUSH_S
        if self._sparse and self._n_ticks > DENSE_TICKS:
            if self._n_ticks == DENSE_TICKS + 1:
                self.event("sparse", from_tick=DENSE_TICKS)
            self._ticks.clear()
            every_s = min(max((tick.at_s - self._began_s) / FLUSHES, FLUSH_S), SPARSE_FLUSH_S)
        self._ticks.append(tick)
        if tick.at_s - self._flushed_s >= every_s:
            self.flush()
            self._flushed_s = tick.at_s

    def flush(self) -> None:
        """Write all ticks and losses that are waiting."""
        self._flushed_s = time.perf_counter()
        if self._ticks:
            ticks, self._ticks = self._ticks, []
            self._line({"event": "ticks", "ticks": [[_round(v) for v in _values(t)] for t in ticks]})

    def close(self) -> None:
        """Write what is waiting and close the file."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def _line(self, value: Mapping[str, Any]) -> None:
        # a fork (a loader's worker) must not write its parent's lines
        if self._file >= 0 and os.getpid() == self._process:
            os.write(self._file, json.dumps(value, default=str, allow_nan=True).encode() + b"\n")


def _round(value: float) -> float:
    return round(value, 7) if isinstance(value, float) else value


@dataclass(slots=True)
class Journal:
    """The events of one journal. ``end`` is empty where the process was killed."""

    begin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ticks: list[Tick] = field(default_factory=list[Tick])
    losses: dict[int, float] = field(default_factory=dict[int, float])
    """Losses by number of the backward pass, from 0."""
    events: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """All others, in order."""
    end: Mapping[str, Any] = field(default_factory=dict[str, Any])
    used_bytes: int | None = None
    """Resident, of the process and its children, as last sampled while it runs; device memory is in the events ``now``."""

    @property
    def steps(self) -> list[Step]:
        """The turns of the loop (:func:`gpuwise.train.ticks.steps_of`)."""
        return steps_of(self.ticks)

    @property
    def steady(self) -> list[Step]:
        """Steps after the warm-up."""
        return steady(self.steps)

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """The events of one kind."""
        return [e for e in self.events if e["event"] == kind]

    @property
    def refused(self) -> dict[str, str]:
        """Levers that could not be applied, with the reason."""
        return {
            str(e["name"]): str(e.get("why")) for e in self._levers if not e["applied"] and str(e["name"]) not in self.applied
        }

    @property
    def applied(self) -> list[str]:
        """Levers that reported success."""
        return sorted({str(e["name"]) for e in self._levers if e["applied"]})

    @property
    def _levers(self) -> list[Mapping[str, Any]]:
        """The last word of each lever, on each dataset where it is of one: a lever may be switched off later."""
        return list({(e["name"], e.get("dataset", e["applied"])): e for e in self.of("lever")}.values())

    def last(self, kind: str) -> Mapping[str, Any]:
        """The last event of one kind; empty where there was none."""
        events = self.of(kind)
        return events[-1] if events else {}


def read_journal(path: Path) -> Journal:
    """Read a journal, also while the process still writes; an incomplete last line is ignored."""
    return Follower(path).read()


class Follower:
    """A journal read as it grows: each :meth:`read` takes only what has been written since the last."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._journal = Journal()

    def read(self) -> Journal:
        """All that has been written so far; the same object every time."""
        if not self._path.exists():
            return self._journal
        with open_file(self._path, most=MOST_JOURNAL) as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n")[:-1]:
            _take(self._journal, json.loads(line))
        return self._journal


def _take(journal: Journal, event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "begin":
        journal.begin = event
    elif kind == "ticks":
        journal.ticks += [Tick(**dict(zip(_FIELDS, values, strict=True))) for values in event["ticks"]]
    elif kind == "losses":
        journal.losses |= _number_map(event["losses"])
    elif kind == "end":
        journal.end = event
    elif kind == "now":
        # of many only the last is of use
        journal.events[:] = [e for e in journal.events if e["event"] != "now"]
        journal.events.append(event)
    else:
        journal.events.append(event)


def _number_map(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    return {int(n): float(value) for n, value in pairs}
