"""PyTorch's memory snapshots (``torch.cuda.memory._dump_snapshot``), read without torch and without executing their contents.

A snapshot is a pickled dictionary: ``segments`` (reserved memory at the end, with its blocks), ``device_traces`` (per device,
its events, oldest first; possibly cut off at the front) and ``allocator_settings``. A pickle can run code, so only plain
values are let through. :mod:`gpuwise.predict.memory.snapshot.replay` runs one through the simulated allocator.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

from gpuwise.errors import FieldError, InputError
from gpuwise.files import read_bytes
from gpuwise.predict.memory.allocator.settings import MIB, AllocatorSettings

MAX_FILE_BYTES = 4 << 30
"""Larger files are refused: they would not fit in the memory of most machines once read."""
HOW = "write one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot('snapshot.pickle')"
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "user_defined",
)
_STATES = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",
    "inactive": "free",
}


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """Part of a segment. ``state``: allocated, pending (freed, but another stream still uses it) or free."""

    address: int
    size_bytes: int
    requested_bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """Device memory reserved when the snapshot was taken."""

    address: int
    size_bytes: int
    stream: int
    small: bool
    private: tuple[int, int]
    expandable: bool
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One thing that happened. ``address`` is the free device memory for ``oom``; ``where`` the innermost line of the user's."""

    action: str
    address: int
    size_bytes: int
    stream: int
    time_us: int
    where: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device of a snapshot file."""

    device: int
    segments: tuple[SnapshotSegment, ...] = field(repr=False)
    trace: tuple[TraceEntry, ...] = field(repr=False)
    settings: AllocatorSettings
    notes: tuple[str, ...] = ()
    """Parts of the file that could not be imported, as text."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved at the end."""
        return sum(s.size_bytes for s in self.segments)

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks at the end."""
        return sum(b.size_bytes for s in self.segments for b in s.blocks if b.state == "allocated")


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, strings, lists, tuples, dictionaries, sets, None: no classes, no functions."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise InputError(
            f"the file asks for {module}.{name}: a memory snapshot contains plain values only, and this could run code",
            hint=HOW,
        )

    def persistent_load(self, pid: object, /) -> NoReturn:
        del pid
        raise InputError("the file refers to objects outside itself: it is not a memory snapshot", hint=HOW)


def read_snapshot(path: Path, *, device: int | None = None) -> Snapshot:
    """The snapshot at ``path``, of ``device`` (default: the one with the most history or memory).

    Raises InputError for a file that is missing, too large, hostile, or not a snapshot.
    """
    data = read_bytes(path, most=MAX_FILE_BYTES, hint="name a snapshot file; " + HOW)
    return parse_snapshot(data, device=device, name=str(path))


def parse_snapshot(data: bytes, *, device: int | None = None, name: str = "the snapshot") -> Snapshot:
    """:func:`read_snapshot` from bytes."""
    try:
        document: object = _PlainUnpickler(io.BytesIO(data)).load()
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    except Exception as error:  # noqa: BLE001 - a broken pickle raises whatever its opcodes lead to
        raise InputError(f"{name} is not a pickle that can be read ({type(error).__name__})", hint=HOW) from None
    reader = _Reader(name)
    return reader.snapshot(document, device)


class _Reader:
    """Checks every field it takes; messages say where in the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []

    def fail(self, message: str) -> NoReturn:
        raise FieldError(f"{self.name}: {message}", field="snapshot", hint=HOW)

    def mapping(self, value: object, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"{where} is not a dictionary")
        return cast("Mapping[str, Any]", value)

    def items(self, value: object, where: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            self.fail(f"{where} is not a list")
        return list(cast("list[Any]", value))

    def whole(self, row: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
        value = row.get(key, default)
        if type(value) is not int or not 0 <= value < 1 << 63:
            self.fail(f"{key} of {where} is {value!r}" if key in row else f"{where} has no {key}")
        return value

    def snapshot(self, document: object, device: int | None) -> Snapshot:
        top = self.mapping(document, "the file's content")
        if "segments" not in top:
            self.fail("there are no segments: it is not a memory snapshot")
        rows = [self.mapping(r, f"segment {i}") for i, r in enumerate(self.items(top["segments"], "segments"))]
        traces = [self.items(t, f"trace {i}") for i, t in enumerate(self.items(top.get("device_traces", []), "device_traces"))]
        number = self.device(rows, traces, device)
        segments = [self.segment(r, i) for i, r in enumerate(rows) if self.whole(r, "device", f"segment {i}", 0) == number]
        trace = traces[number] if number < len(traces) else []
        entries = [self.entry(self.mapping(e, f"event {i}"), i) for i, e in enumerate(trace)]
        settings = self.settings(top.get("allocator_settings") or {}, segments)
        ordered = tuple(sorted(segments, key=lambda s: s.address))
        self.check(ordered)
        return Snapshot(number, ordered, tuple(entries), settings, tuple(self.notes))

    def device(self, rows: list[Mapping[str, Any]], traces: list[list[Any]], device: int | None) -> int:
        weight: dict[int, tuple[int, int]] = {i: (len(t), 0) for i, t in enumerate(traces) if t}
        for i, row in enumerate(rows):
            number = self.whole(row, "device", f"segment {i}", 0)
            events, n_bytes = weight.get(number, (0, 0))
            weight[number] = (events, n_bytes + self.whole(row, "total_size", f"segment {i}"))
        if device is not None and device not in weight:
            devices = ", ".join(map(str, sorted(weight))) or "none"
            raise InputError(f"{self.name} holds nothing of device {device}", hint=f"devices in it: {devices}")
        if device is None and not weight:
            self.fail("it is empty: no segments and no history")
        return device if device is not None else max(weight, key=lambda d: (weight[d], -d))

    def segment(self, row: Mapping[str, Any], i: int) -> SnapshotSegment:
        where = f"segment {i}"
        address, size = self.whole(row, "address", where), self.whole(row, "total_size", where)
        pool = tuple(self.items(row.get("segment_pool_id", (0, 0)), f"segment_pool_id of {where}"))
        if len(pool) != 2 or not all(type(p) is int for p in pool):
            self.fail(f"segment_pool_id of {where} is {pool!r}")
        blocks: list[SnapshotBlock] = []
        at = address
        for j, b in enumerate(self.items(row.get("blocks"), f"blocks of {where}")):
            block = self.mapping(b, f"block {j} of {where}")
            length, state = self.whole(block, "size", f"block {j} of {where}"), block.get("state")
            if state not in _STATES:
                self.fail(f"state of block {j} of {where} is {state!r}")
            requested = self.whole(block, "requested_size", f"block {j} of {where}", length)
            blocks.append(SnapshotBlock(at, length, requested, _STATES[state]))
            at += length
        if at != address + size:
            self.fail(f"the blocks of {where} make {at - address} bytes, the segment has {size}")
        small = row.get("segment_type", "large") == "small"
        return SnapshotSegment(
            address,
            size,
            self.whole(row, "stream", where, 0),
            small,
            cast("tuple[int, int]", pool),
            bool(row.get("is_expandable", False)),
            tuple(blocks),
        )

    def check(self, segments: tuple[SnapshotSegment, ...]) -> None:
        for before, after in pairwise(segments):
            if before.address + before.size_bytes > after.address:
                self.fail(f"the segments at {before.address:#x} and {after.address:#x} overlap")

    def entry(self, row: Mapping[str, Any], i: int) -> TraceEntry:
        where, action = f"event {i}", row.get("action")
        if action not in ACTIONS:
            self.fail(f"{where} is {action!r}, not one of {', '.join(ACTIONS)}")
        key = "device_free" if action == "oom" else "addr"
        return TraceEntry(
            str(action),
            self.whole(row, key, where, 0),
            self.whole(row, "size", where, 0),
            self.whole(row, "stream", where, 0),
            self.whole(row, "time_us", where, 0),
            where_from(row.get("frames")),
        )

    def settings(self, raw: object, segments: list[SnapshotSegment]) -> AllocatorSettings:
        """From the text of the environment where it reads, with the figures the snapshot states on their own."""
        row = self.mapping(raw, "allocator_settings")
        text = row.get("PYTORCH_CUDA_ALLOC_CONF") or row.get("PYTORCH_ALLOC_CONF") or ""
        if not isinstance(text, str):
            self.fail("PYTORCH_CUDA_ALLOC_CONF is not text")
        try:
            settings = AllocatorSettings.parse(text)
        except FieldError as error:
            self.notes.append(f"the settings in the file are not simulated, torch's defaults are: {error.message}")
            settings = AllocatorSettings()
        expandable = bool(row.get("expandable_segments", False)) or any(s.expandable for s in segments)
        split, divisions = row.get("max_split_size", -1), row.get("roundup_power2_divisions")
        changes: dict[str, Any] = {}
        if expandable != settings.expandable_segments:
            changes["expandable_segments"] = expandable
        if type(split) is int and settings.max_split_size_bytes is None and MIB <= split < 1 << 60:
            changes["max_split_size_bytes"] = split
        if isinstance(divisions, dict) and max(settings.roundup_power2_divisions) == 0:
            values = list(cast("dict[str, Any]", divisions).values())
            if len(values) == 16 and all(type(v) is int and v >= 0 for v in values) and any(values):
                changes["roundup_power2_divisions"] = tuple(values)
        return replace(settings, **changes) if changes else settings


_NOT_USER = ("/torch/", "site-packages/", "/lib/python", "<frozen", "??", "<string>", "importlib")


def where_from(frames: object) -> str:
    """``train.py:31 in step``: the innermost frame that is not a library's; else the innermost Python one; else ''."""
    if not isinstance(frames, (list, tuple)):
        return ""
    best = ""
    for frame in cast("list[Any]", frames):
        if not isinstance(frame, dict):
            continue
        row = cast("Mapping[str, Any]", frame)
        file, line, function = str(row.get("filename", "")), row.get("line", 0), str(row.get("name", ""))
        if not file.endswith(".py"):
            continue
        place = f"{file.rsplit('/', 1)[-1]}:{line}{f' in {function}' if function else ''}"[:200]
        if not any(part in file for part in _NOT_USER):
            return place
        best = best or place
    return best
