"""Records every frame into one SQLite file, so that a program that dies loses at most its last second, and a full disk nothing
that was already there."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Card, Frame, HostProcess, ProcessRow
from gpuwise.machine.telemetry.recording.plain import to_plain
from gpuwise.machine.telemetry.recording.schema import (
    STILL,
    VERSION,
    Columns,
    gpu_columns,
    health_columns,
    host_columns,
    is_text_apart,
    sample_columns,
    statements,
)

COMMIT_EVERY_S = 1.0
SLACK = 0.95
"""A refresh that comes a little early still commits: at one a second every frame is on the disk before the next."""
N_AT_ONCE = 20
"""Frames in one transaction."""
N_PENDING = 3600
"""Maximum frames to buffer while the disk is full; older ones are then dropped and counted."""

Statement = tuple[str, Sequence[Any]]


class Recorder:
    """A sink that writes a recording to ``path``. Raises InputError where the file is there already or cannot be made."""

    def __init__(self, path: Path, *, commit_every_s: float = COMMIT_EVERY_S, shown_as: str | None = None) -> None:
        self.path, self._name, self._commit_every_s = path, shown_as or str(path), commit_every_s
        if path.exists():
            raise InputError(f"{self._name} already exists", hint="give another name, or remove it")
        self._frames: deque[list[Statement]] = deque()
        self._definitions: list[Statement] = []
        self._words: dict[str, int] = {}
        self._processes: dict[tuple[Any, ...], int] = {}
        self._identities: dict[int, str] = {}
        self._health_s: dict[int, tuple[float | None, str | None]] = {}
        self._causes: dict[tuple[int | None, str], int] = {}
        self._committed_s: float | None = None
        self._failure: str | None = None
        self._dropped, self._closed = 0, False
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            for statement in statements():
                self._db.execute(statement)
        except sqlite3.Error as error:
            raise InputError(f"{self._name} cannot be written: {error}", hint="check the folder and the space there") from error

    @property
    def notices(self) -> tuple[str, ...]:
        """An error of the disk, and what was lost."""
        if self._failure is None:
            return (f"{self._dropped} frames are not in {self._name}",) if self._dropped else ()
        loss_words = f", {self._dropped} are lost" if self._dropped else ""
        return (f"{self._name} is not written ({self._failure}): {len(self._frames)} frames wait{loss_words}",)

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Take a frame; commit when a second has passed since the last commit."""
        rows: list[Statement] = []
        if not self._identities:
            self._about(frame)
        rows.append(
            (
                "INSERT INTO frame VALUES (?,?,?,?,?,?,?)",
                (
                    frame.sequence,
                    frame.at_s,
                    frame.wall_s,
                    self._word(frame.failed),
                    json.dumps(to_plain(frame.host)),
                    self._word(frame.drivers),
                    self._word(frame.xids),
                ),
            )
        )
        for card in frame.cards:
            self._card(frame, card, rows)
        self._spans(frame, causes, rows)
        self._frames.append(rows)
        if len(self._frames) > N_PENDING:
            self._frames.popleft()
            self._dropped += 1
        if self._committed_s is None or abs(frame.at_s - self._committed_s) >= SLACK * self._commit_every_s:
            self._committed_s = frame.at_s
            self.flush()

    def flush(self) -> bool:
        """Write buffered frames; returns whether all are on the disk. While many are buffered for a full disk, a try writes
        only a few."""
        while self._frames or self._definitions:
            batch = list(islice(self._frames, N_AT_ONCE))
            if not self._commit(batch):
                return False
            for _ in batch:
                self._frames.popleft()
        return True

    def _commit(self, batch: list[list[Statement]]) -> bool:
        try:
            self._db.execute("BEGIN")
            for sql, values in self._definitions:
                self._db.execute(sql, values)
            for rows in batch:
                for sql, values in rows:
                    self._db.execute(sql, values)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._failure = str(error)
            # most failures have rolled back by themselves
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            return False
        self._definitions.clear()
        self._failure = None
        return True

    def close(self) -> None:
        """Write what is waiting and leave one file without a journal."""
        if self._closed:
            return
        self._closed = True
        if self.flush():
            try:
                self._db.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.Error as error:
                self._failure = str(error)  # the journal beside it is part of the recording: nothing is lost
        else:
            self._dropped += len(self._frames)
        self._db.close()

    def _about(self, frame: Frame) -> None:
        about = {"version": VERSION, "host": frame.host.name, "started_wall_s": frame.wall_s, "demo": frame.demo}
        self._definitions += [("INSERT OR REPLACE INTO recording VALUES (?,?)", (k, json.dumps(v))) for k, v in about.items()]

    def _word(self, value: object) -> int | None:
        """The id of a text that repeats; None for nothing."""
        plain = to_plain(value)
        if plain is None or plain == {} or plain == []:
            return None
        text = json.dumps(plain, separators=(",", ":"))
        if text not in self._words:
            self._words[text] = len(self._words) + 1
            self._definitions.append(("INSERT INTO words VALUES (?,?)", (self._words[text], text)))
        return self._words[text]

    def _values(self, table: Columns, of: object) -> list[Any]:
        return [self._word(getattr(of, n)) if is_text_apart(h) else to_plain(getattr(of, n)) for n, h in table.items()]

    def _card(self, frame: Frame, card: Card, rows: list[Statement]) -> None:
        identity = json.dumps(to_plain(card.identity))
        if self._identities.get(card.number) != identity:
            self._identities[card.number] = identity
            self._definitions.append(
                (
                    "INSERT OR REPLACE INTO card VALUES (?,?,?,?,?)",
                    (card.number, frame.sequence, card.identity.name, card.identity.uuid, identity),
                )
            )
        key = (frame.sequence, card.number)
        rows.append(
            _insert("sample", [*key, card.power_w, card.processes is not None, *self._values(sample_columns(), card.sample)])
        )
        health_state = (None if card.health is None else card.health.at_s, card.health_error)
        if self._health_s.get(card.number) != health_state:
            self._health_s[card.number] = health_state
            health_values = (
                self._values(health_columns(), card.health) if card.health is not None else [None] * len(health_columns())
            )
            rows.append(_insert("health", [*key, card.health_error, *health_values]))
        for row in card.processes or ():
            rows.append(
                _insert(
                    "process_sample",
                    [*key, self._process(row), *self._values(gpu_columns(), row.gpu), *self._values(host_columns(), row.host)],
                )
            )

    def _process(self, row: ProcessRow) -> int:
        host: HostProcess = row.host
        still = (row.pid, *(getattr(host, name) for name in STILL))
        if still not in self._processes:
            self._processes[still] = len(self._processes) + 1
            self._definitions.append(_insert("process", [self._processes[still], *still]))
        return self._processes[still]

    def _spans(self, frame: Frame, causes: tuple[Cause, ...], rows: list[Statement]) -> None:
        """A cause is one row from when it came to when it went."""
        now = {(c.number, c.id): c for c in causes}
        for key in [k for k in self._causes if k not in now]:
            began = self._causes.pop(key)
            rows.append(
                (
                    "UPDATE cause SET to_sequence = ? WHERE number IS ? AND id = ? AND from_sequence = ?",
                    (frame.sequence - 1, *key, began),
                )
            )
        for key, cause in now.items():
            if key not in self._causes:
                self._causes[key] = frame.sequence
                rows.append(
                    _insert(
                        "cause",
                        [
                            cause.number,
                            cause.id,
                            cause.severity.value,
                            frame.sequence,
                            None,
                            cause.sentence,
                            json.dumps(cause.evidence),
                            cause.cost,
                            cause.hint,
                        ],
                    )
                )


def _insert(table: str, values: list[Any]) -> Statement:
    return f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values
