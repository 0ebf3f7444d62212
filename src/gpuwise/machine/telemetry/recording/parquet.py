# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow has no types
"""A recording as one Parquet file: a row a card and refresh, for data frames. pyarrow is imported only here, at the end.

While the watch runs everything goes to ``FILE.journal``, a recording in SQLite, so that a program that dies loses nothing: such
a journal replays as it is.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.errors import DataError, FileError, InputError, require
from gpuwise.files import GIB, open_file
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.machine.telemetry.recording.recorder import Recorder

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".parquet", ".pq")
MAGIC = b"PAR1"
BATCH_ROWS = 8192
META = b"gpuwise"
_TABLES = ("recording", "words", "card", "process", "cause")
"""Small beside the samples: they travel whole in the file's metadata."""
_FRAME = ("at_s", "host", "failed_words", "drivers_words", "xids_words")
"""Fields of the frame, repeated in each card's row as ``frame_...``."""


def journal_of(path: Path) -> Path:
    """The path of the journal while the watch runs."""
    return path.with_name(path.name + ".journal")


class ParquetRecorder:
    """A sink that leaves a Parquet file when it is closed. Raises InputError where the file, or the journal of a watch that
    died, is there already, MissingExtraError without pyarrow."""

    def __init__(self, path: Path) -> None:
        require("pyarrow", "a recording in Parquet")
        journal = journal_of(path)
        if path.exists():
            raise InputError(f"{path} already exists", hint="give another name, or remove it")
        if journal.exists():
            raise InputError(
                f"{journal} of an interrupted recording exists", hint=f"`gpuwise top --replay {journal}` plays it; or remove it"
            )
        self.path, self._journal = path, journal
        self._recorder = Recorder(journal, shown_as=str(path))
        self._failure: str | None = None
        self._closed = False

    @property
    def notices(self) -> tuple[str, ...]:
        """Those of the recording beneath, and why it could not be turned into Parquet."""
        return (*self._recorder.notices, *((self._failure,) if self._failure else ()))

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Same as :meth:`gpuwise.machine.telemetry.recording.recorder.Recorder.write`."""
        self._recorder.write(frame, causes)

    def close(self) -> None:
        """Convert the journal to Parquet; where that fails the journal stays."""
        if self._closed:
            return
        self._closed = True
        self._recorder.close()
        part = self.path.with_name(self.path.name + ".part")
        try:
            write_parquet(self._journal, part)
            part.replace(self.path)
        except (OSError, DataError) as error:
            part.unlink(missing_ok=True)
            self._failure = f"{self.path} could not be written ({error}); everything is in {self._journal}"
        else:
            self._journal.unlink()


def write_parquet(recording: Path, path: Path) -> None:
    """The recording (SQLite) as Parquet. Raises OSError, DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    db = sqlite3.connect(recording)
    db.row_factory = sqlite3.Row
    try:
        meta = {t: [list(r) for r in db.execute(f"SELECT * FROM {t}")] for t in _TABLES}
        words = dict(db.execute("SELECT id, text FROM words"))
        schema = _schema(pa, db).with_metadata({META: json.dumps(meta).encode()})
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for rows in _batches(db, words):
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    except (sqlite3.Error, pa.ArrowException) as error:
        raise DataError(str(error)) from error
    finally:
        db.close()


def _names(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    return [(r[1], r[2]) for r in db.execute(f"PRAGMA table_info({table})")]


def _schema(pa: Any, db: sqlite3.Connection) -> pyarrow.Schema:
    kinds = {"REAL": pa.float64(), "INTEGER": pa.int64(), "TEXT": pa.string()}

    def columns(table: str, *left_out: str) -> list[tuple[str, Any]]:
        return [
            (n.removesuffix("_words"), pa.string() if n.endswith("_words") else kinds[k])
            for n, k in _names(db, table)
            if n not in left_out
        ]

    process = pa.struct([*columns("process_sample", "sequence", "number"), *columns("process", "id")])
    health = pa.struct(columns("health", "sequence", "number"))
    frame = [(f"frame_{n.removesuffix('_words')}", pa.float64() if n == "at_s" else pa.string()) for n in _FRAME]
    return pa.schema(
        [
            ("time", pa.timestamp("us", "UTC")),
            ("name", pa.string()),
            ("uuid", pa.string()),
            *columns("sample"),
            ("health", health),
            ("processes", pa.list_(process)),
            *frame,
        ]
    )


def _batches(db: sqlite3.Connection, words: dict[int, str]) -> Iterator[list[dict[str, Any]]]:
    processes = {r["id"]: dict(r) for r in db.execute("SELECT * FROM process")}
    names = dict[int, tuple[str, str]]()
    cards = [(r["number"], r["sequence"], r["name"], r["uuid"]) for r in db.execute("SELECT * FROM card ORDER BY sequence")]
    frame = ", ".join(f"frame.{n} AS frame_{n}" for n in _FRAME)
    cursor = db.execute(
        f"SELECT {frame}, frame.wall_s AS wall_s, sample.* FROM sample JOIN frame USING (sequence) "
        "ORDER BY sample.sequence, sample.number"
    )
    while rows := [dict(r) for r in cursor.fetchmany(BATCH_ROWS)]:
        span = (rows[0]["sequence"], rows[-1]["sequence"])
        listed = dict[tuple[int, int], list[dict[str, Any]]]()
        for p in db.execute("SELECT * FROM process_sample WHERE sequence BETWEEN ? AND ?", span):
            still = {k: v for k, v in processes[p["process"]].items() if k != "id"}
            listed.setdefault((p["sequence"], p["number"]), []).append(still | _plain(dict(p), words))
        health = {
            (h["sequence"], h["number"]): _plain(dict(h), words)
            for h in db.execute("SELECT * FROM health WHERE sequence BETWEEN ? AND ?", span)
        }
        for row in rows:
            key = (row["sequence"], row["number"])
            names |= {n: (name, uuid) for n, since, name, uuid in cards if n == key[1] and since <= key[0]}
            row["name"], row["uuid"] = names.get(key[1], (None, None))
            row["time"], row["health"] = int(row["wall_s"] * 1e6), health.get(key)
            row["processes"] = listed.get(key, []) if row["processes_listed"] else None
        yield [_plain(r, words) for r in rows]


def _plain(row: dict[str, Any], words: dict[int, str]) -> dict[str, Any]:
    return {(k[:-6] if k.endswith("_words") else k): (words.get(v) if k.endswith("_words") else v) for k, v in row.items()}


def is_parquet(path: Path) -> bool:
    """Whether a file has Parquet's magic bytes."""
    try:
        with open_file(path, most=256 * GIB) as file:
            return file.read(4) == MAGIC
    except FileError:
        return False


def read_parquet(path: Path, into: Path) -> None:
    """The recording (SQLite) that a Parquet file was written from, restored to ``into``. Raises InputError, DataError,
    MissingExtraError."""
    require("pyarrow", "a recording in Parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gpuwise.machine.telemetry.recording.schema import statements

    try:
        file = pq.ParquetFile(path)
        meta = json.loads((file.schema_arrow.metadata or {}).get(META, b"null"))
        if not isinstance(meta, dict):
            raise InputError(f"{path} is not a recording of gpuwise", hint="`gpuwise top --record FILE.parquet` makes one")
        db = sqlite3.connect(into, isolation_level=None)
        try:
            for statement in statements():
                db.execute(statement)
            db.execute("BEGIN")
            for table in _TABLES:
                for row in meta[table]:
                    db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
            _fill(db, file)
            db.execute("COMMIT")
        finally:
            db.close()
    except (pa.ArrowException, sqlite3.Error, ValueError, KeyError, OSError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def _fill(db: sqlite3.Connection, file: Any) -> None:
    ids = {text: i for i, text in db.execute("SELECT id, text FROM words")}
    into = {t: _names(db, t) for t in ("frame", "sample", "health", "process_sample")}

    def put(table: str, row: dict[str, Any]) -> None:
        values = [ids.get(row.get(n[:-6]) or "") if n.endswith("_words") else row.get(n) for n, _ in into[table]]
        db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)

    before: int | None = None
    for batch in file.iter_batches(batch_size=BATCH_ROWS):
        for row in batch.to_pylist():
            key = {"sequence": row["sequence"], "number": row["number"]}
            if row["sequence"] != before:
                before = row["sequence"]
                frame = {n: row[f"frame_{n}"] for n in (c.removesuffix("_words") for c in _FRAME)}
                put("frame", frame | {"sequence": before, "wall_s": row["time"].timestamp()})
            put("sample", row)
            if row["health"] is not None:
                put("health", row["health"] | key)
            for process in row["processes"] or ():
                put("process_sample", process | key)
