"""Kineto's and Chrome's traces read as a stream, plain or gzip, into columns."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from array import array
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np

from gpuwise.errors import InputError
from gpuwise.files import GIB, MIB, open_file
from gpuwise.train.profile.trace import NONE, Detail, Lane, Trace
from gpuwise.train.profile.trace_text import MARK, MOST_BUFFERED, SPACE, EventText, NoEventsError, TooLongError
from gpuwise.units import MEGA, MICRO

BLOCK = 1 << 22
"""Bytes read at a time."""
MOST_UNREADABLE = 0.01
"""Maximum share of a block's events, or one event, that may be skipped as unreadable. Rule of this project."""
_RECORD = "record it with torch.profiler.profile(...).export_chrome_trace('trace.json'), or with `gpuwise profile`"
_Raw = msgspec.Raw


class _Args(msgspec.Struct, frozen=True, gc=False):
    external: int = msgspec.field(default=NONE, name="External id")
    external_old: int = msgspec.field(default=NONE, name="external id")
    correlation: int = NONE
    device: int = NONE
    stream: int = NONE
    n_bytes: int = msgspec.field(default=NONE, name="bytes")
    shapes: _Raw = msgspec.field(default_factory=_Raw, name="Input Dims")
    dtypes: _Raw = msgspec.field(default_factory=_Raw, name="Input type")
    given: _Raw = msgspec.field(default_factory=_Raw, name="Concrete Inputs")
    strides: _Raw = msgspec.field(default_factory=_Raw, name="Input Strides")
    collective: str = msgspec.field(default="", name="Collective name")
    elements: int = msgspec.field(default=NONE, name="In msg nelems")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    group: int = msgspec.field(default=NONE, name="Group size")


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = _NO_ARGS


MOST_BYTES = 64 * GIB
"""Maximum bytes of a trace, which is read a block at a time."""
MOST_FOLD, LEAST_UNPACKED = 100, 256 * MIB
"""Rule: how many times its size a compressed trace may unpack to, where that is more than these bytes: one whose events are all
the same unpacks to some 300 times its size."""
_EVENTS = msgspec.json.Decoder(list[_Event])
_SHAPES = msgspec.json.Decoder(list[Any])


def read_trace(path: Path, *, block: int = BLOCK) -> Trace:
    """The complete events ("X") of a trace file. Raises InputError where the file is no trace, or is cut short."""
    try:
        with open_file(path, most=MOST_BYTES, hint="give a trace file") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped:
                return _read(file, str(path), block)
            most = max(LEAST_UNPACKED, MOST_FOLD * path.stat().st_size)
            with gzip.open(file) as unpacked:
                return _read(cast("IO[bytes]", unpacked), str(path), block, most)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="give a trace file") from None
    except (EOFError, zlib.error):
        raise _cut(str(path), "the compressed data ends early") from None


def _read(file: IO[bytes], source: str, block: int, most: float = math.inf) -> Trace:
    text, columns = EventText(), _Columns(source)
    n_bytes = 0
    try:
        while data := file.read(block):
            n_bytes += len(data)
            if n_bytes > most:
                raise InputError(f"{source}: it unpacks to more than {MOST_FOLD} times its size", hint="give the trace unpacked")
            for run in text.feed(data):
                columns.take(run, text)
        for run in text.finish():
            columns.take(run, text)
    except NoEventsError:
        raise InputError(f"{source}: this is not a trace: it has no list of events", hint=_RECORD) from None
    except TooLongError:
        raise InputError(f"{source}: one event is larger than {MOST_BUFFERED // MIB} MiB", hint=_RECORD) from None
    if not text.ended:
        raise _cut(source, f"the list of events has no end after {columns.n_seen:,} events")
    trace = columns.trace(_metadata(bytes(text.head), bytes(text.tail)))
    if not len(trace):
        raise InputError(f"{source}: the trace holds no event with a duration", hint=_RECORD)
    return trace


def _cut(source: str, why: str) -> InputError:
    return InputError(f"{source}: the trace is cut short: {why}", hint="copy it again, or let the profiler finish writing it")


def _object(value: object) -> dict[str, Any]:
    """``value`` where it is an object of JSON, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """Metadata around the events; empty if unreadable, as no result depends on it alone."""
    body = head.strip().rstrip(b",") + b"," + tail.strip().lstrip(b",") if head.strip() not in (b"", b"{") else None
    text = body if body is not None else b"{" + tail.strip().lstrip(b",")
    text = text.rstrip()
    if text.endswith(b",}"):
        text = text[:-2] + b"}"
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {}
    return _object(value)


class _Ids(dict[Any, int]):
    """Numbers for things in the order of their first appearance."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Columns:
    """Columns as they grow."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.n_seen = 0
        self._names, self._categories, self._lanes, self._details = _Ids(), _Ids(), _Ids(), _Ids()
        self._details[(b"", b"", "", NONE, NONE, b"", b"")] = 0
        kinds = (
            ("name", "i"),
            ("category", "h"),
            ("lane", "i"),
            ("start", "d"),
            ("duration", "d"),
            ("correlation", "q"),
            ("external", "q"),
            ("device", "i"),
            ("stream", "q"),
            ("bytes", "q"),
            ("detail", "i"),
            ("sequence", "q"),
        )
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in kinds}

    def take(self, run: bytes, text: EventText) -> None:
        """Whole events, separated by commas."""
        try:
            events = _EVENTS.decode(b"[" + run + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            try:
                events = [e for one in text.recut(run) if (e := self._careful(one)) is not None]
            except InputError:
                events = self._with_some_unreadable(run)
                if not events:
                    raise
        self.n_seen += len(events)
        self._add([e for e in events if e.ph == "X"])

    def _add(self, events: list[_Event]) -> None:
        names, categories, lanes, details, c = self._names, self._categories, self._lanes, self._details, self._columns
        c["name"].extend([names[e.name] for e in events])
        c["category"].extend([categories[e.cat] for e in events])
        c["lane"].extend([lanes[(e.pid, e.tid)] for e in events])
        c["start"].extend([e.ts for e in events])
        c["duration"].extend([e.dur for e in events])
        args = [e.args for e in events]
        c["correlation"].extend([a.correlation for a in args])
        c["external"].extend([a.external if a.external != NONE else a.external_old for a in args])
        c["device"].extend([a.device for a in args])
        c["stream"].extend([a.stream for a in args])
        c["bytes"].extend([a.n_bytes for a in args])
        c["sequence"].extend([a.sequence for a in args])
        c["detail"].extend(
            [
                details[(bytes(a.shapes), bytes(a.dtypes), a.collective, a.elements, a.group, *_more(e.name, a))]
                for e, a in zip(events, args, strict=True)
            ]
        )

    def _with_some_unreadable(self, run: bytes) -> list[_Event]:
        """Events of Kineto's own file, without those whose name it wrote unescaped: a quote or a backslash in it ends the string
        elsewhere. None where they are more than one and ``MOST_UNREADABLE`` of all."""
        pieces = run.split(MARK)
        events, n_lost = list[_Event](), 0
        for i, piece in enumerate(pieces):
            whole = b"\n  {" * (i > 0) + piece + b"\n  }" * (i < len(pieces) - 1)
            try:
                event = self._careful(whole.strip(SPACE))
            except InputError:
                n_lost += 1
                continue
            events += [event] if event is not None else []
        return events if n_lost <= max(MOST_UNREADABLE * len(pieces), 1) else []

    def _careful(self, text: bytes) -> _Event | None:
        """One event of a writer that is freer with types than Kineto; None for what is no event."""
        try:
            read: Any = json.loads(text.decode("utf-8", "replace"), strict=False)
        except ValueError:
            where = f"after {self.n_seen:,} events"
            if text.count(b"{") > text.count(b"}"):
                raise _cut(self._source, where) from None
            raise InputError(f"{self._source}: this is not JSON {where}: {_shown(text)}", hint=_RECORD) from None
        value = _object(read)
        if not isinstance(value.get("ph"), str):
            raise InputError(f"{self._source}: this is not an event of a trace: {_shown(text)}", hint=_RECORD)
        told = value.get("args")
        args = _object(told)
        whole = {
            k: v
            for k in ("External id", "correlation", "device", "stream", "bytes", "In msg nelems", "Group size", "Sequence number")
            if (v := _whole(args.get(k))) is not None
        }
        lists: dict[str, Any] = {
            k: v for k in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides") if isinstance(v := args.get(k), list)
        }
        name = args.get("Collective name")
        plain: dict[str, Any] = {
            "ph": value["ph"],
            "name": str(value.get("name", "")),
            "cat": str(value.get("cat", "")),
            "pid": _identity(value.get("pid", "")),
            "tid": _identity(value.get("tid", "")),
            "ts": self._number(value, "ts"),
            "dur": self._number(value, "dur"),
            "args": {**whole, **lists, **({"Collective name": name} if isinstance(name, str) else {})},
        }
        return _EVENTS.decode(b"[" + msgspec.json.encode(plain) + b"]")[0]

    def _number(self, event: dict[str, Any], name: str) -> float:
        value = event.get(name, 0.0)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not np.isfinite(number):
            raise InputError(
                f"{self._source}: {name} of the event {event.get('name')!r} is {value!r}, not a number", hint=_RECORD
            )
        return number

    def trace(self, metadata: dict[str, Any]) -> Trace:
        """All events, sorted by start, the longer first among those that begin together."""
        c = {
            name: np.frombuffer(column, dtype=column.typecode) if len(column) else np.zeros(0, column.typecode)
            for name, column in self._columns.items()
        }
        if len(c["duration"]) and float(c["duration"].min()) < 0:
            raise InputError(f"{self._source}: an event has a negative duration", hint=_RECORD)
        order = np.lexsort((-c["duration"], c["start"]))
        began = float(c["start"][order[0]]) if len(order) else 0.0
        return Trace(
            self._source,
            tuple(self._names),
            tuple(self._categories),
            tuple(Lane(str(p), str(t)) for p, t in self._lanes),
            tuple(_detail(*key) for key in self._details),
            c["name"][order],
            c["category"][order],
            c["lane"][order],
            (c["start"][order] - began) * MICRO,
            c["duration"][order] * MICRO,
            c["correlation"][order],
            c["external"][order],
            c["device"][order],
            c["stream"][order],
            c["bytes"][order],
            c["sequence"][order],
            c["detail"][order],
            metadata,
            began / MEGA,
        )


def _more(name: str, args: _Args) -> tuple[bytes, bytes]:
    """Further details stored for an operation whose work depends on more than its inputs' sizes."""
    return (bytes(args.given), bytes(args.strides)) if "convolution" in name or "attention" in name else (b"", b"")


def _detail(shapes: bytes, dtypes: bytes, collective: str, elements: int, group: int, scalars: bytes, strides: bytes) -> Detail:
    return Detail(_shapes(shapes), _texts(dtypes), collective, elements, group, _texts(scalars), _shapes(strides))


def _texts(text: bytes) -> tuple[str, ...]:
    return tuple(d if isinstance(d, str) else "" for d in _list(text))


def _shapes(text: bytes) -> tuple[tuple[int, ...], ...]:
    """A list of tensors is written as a list of shapes: taken as its first."""
    shapes: list[tuple[int, ...]] = []
    for one in _list(text):
        shape: Any = one
        while isinstance(shape, list) and shape and isinstance(shape[0], list):
            shape = cast("list[Any]", shape)[0]
        whole = isinstance(shape, list) and all(isinstance(n, int) for n in cast("list[Any]", shape))
        shapes.append(tuple(cast("list[int]", shape)) if whole else ())
    return tuple(shapes)


def _list(text: bytes) -> list[Any]:
    if not text:
        return []
    value = _SHAPES.decode(text) if text.lstrip().startswith(b"[") else []
    return value


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _identity(value: Any) -> int | str:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else str(value)


def _shown(text: bytes) -> str:
    return repr(" ".join(text[:60].decode("utf-8", "replace").split()))
