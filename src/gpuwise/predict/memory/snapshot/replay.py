"""A recorded history run again through the simulated allocator, and how exactly the two agree."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.address_space import SLOT
from gpuwise.predict.memory.allocator.preset import Preset, PresetSegment
from gpuwise.predict.memory.allocator.settings import SMALL_SIZE, AllocatorSettings
from gpuwise.predict.memory.allocator.simulation import AllocatorRun, simulate
from gpuwise.predict.memory.snapshot.reader import Snapshot


@dataclass(slots=True)
class History:
    """Memory events of a snapshot. Storages that live when the history begins come first."""

    storage: list[int] = field(default_factory=list[int])
    sign: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])
    streams: list[int] = field(default_factory=list[int])
    private: list[int] = field(default_factory=list[int])
    addresses: list[int] = field(default_factory=list[int])
    """Per storage, where the real allocator put it."""
    where: list[str] = field(default_factory=list[str])
    time_us: list[int] = field(default_factory=list[int])
    """Per event."""
    done: dict[int, int] = field(default_factory=dict[int, int])
    empty_cache: list[int] = field(default_factory=list[int])
    segments: list[int] = field(default_factory=list[int])
    """Addresses that cudaMalloc returned, in order."""
    reserved: list[int] = field(default_factory=list[int])
    """Bytes reserved by the real allocator, per event."""
    preset: Preset = field(default_factory=Preset)
    ooms: int = 0

    @property
    def begun(self) -> int:
        """Storages that lived before the history begins."""
        return len(self.preset.block_addresses)

    def add(self, storage: int, sign: int, reserved: int, time_us: int) -> None:
        """One event: ``storage`` is made (``sign`` 1) or freed (-1), with what is reserved then."""
        self.storage.append(storage)
        self.sign.append(sign)
        self.reserved.append(reserved)
        self.time_us.append(time_us)

    def new(self, size: int, stream: int, address: int, private: int, where: str) -> int:
        """The index of a new storage of ``size`` bytes."""
        self.sizes.append(size)
        self.streams.append(stream)
        self.addresses.append(address)
        self.private.append(private)
        self.where.append(where)
        return len(self.sizes) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A simulated run beside the recorded one."""

    history: History = field(repr=False)
    run: AllocatorRun
    n_blocks: int
    """Allocations in the history."""
    n_same_size: int
    """Blocks of the recorded size, where the snapshot still shows it."""
    n_sized: int
    n_same_place: int
    """Blocks at the recorded address."""
    recorded_peak_reserved_bytes: int
    recorded_end_reserved_bytes: int
    recorded_end_allocated_bytes: int
    end_reserved_bytes: int
    end_allocated_bytes: int

    @property
    def exact(self) -> bool:
        """Same reserved peak, same end, and every block of known size as recorded."""
        return (
            self.run.oom is None
            and self.run.peak_reserved_bytes == self.recorded_peak_reserved_bytes
            and self.end_reserved_bytes == self.recorded_end_reserved_bytes
            and self.end_allocated_bytes == self.recorded_end_allocated_bytes
            and self.n_same_size == self.n_sized
        )


def history_of(snapshot: Snapshot) -> History:
    """Events of the snapshot, and the state they begin with, worked out backwards from its end."""
    begin_blocks, begin_segments = _rewind(snapshot)
    history = History()
    private = _PrivateOf(snapshot)
    live: dict[int, int] = {}
    reserved_bytes = sum(s.size_bytes for s in begin_segments)
    for address, (size, stream, _) in sorted(begin_blocks.items()):
        live[address] = history.new(size, stream, address, private(address), "before the history begins")
        history.add(live[address], 1, reserved_bytes, 0)
    history.preset = Preset(tuple(begin_segments), tuple(sorted(begin_blocks)))
    freeing: dict[int, int] = {}
    releasing = False
    for entry in snapshot.trace:
        action, address, size = entry.action, entry.address, entry.size_bytes
        here = len(history.storage)
        if action == "alloc":
            if size:
                live[address] = history.new(size, entry.stream, address, private(address), entry.where)
                history.add(live[address], 1, reserved_bytes, entry.time_us)
        elif action == "free_requested" and address in live:
            freeing[address] = here
            history.add(live.pop(address), -1, reserved_bytes, entry.time_us)
        elif action == "free_completed":
            request_event = freeing.pop(address, None)
            if request_event is None and address in live:
                history.add(live.pop(address), -1, reserved_bytes, entry.time_us)
            elif request_event is not None and here > request_event + 1:
                history.done[request_event] = here
        elif action in ("segment_alloc", "segment_map"):
            reserved_bytes += size
            if action == "segment_alloc":
                history.segments.append(address)
        elif action in ("segment_free", "segment_unmap"):
            reserved_bytes -= size
            if not releasing:
                history.empty_cache.append(here)
        elif action == "oom":
            history.ooms += 1
        releasing = action in ("segment_free", "segment_unmap")
    for request_event in freeing.values():
        history.done[request_event] = len(snapshot.trace) + 1
    return history


def _rewind(snapshot: Snapshot) -> tuple[dict[int, tuple[int, int, bool]], list[PresetSegment]]:
    """Blocks (address -> requested, stream, pending) and segments when the history begins: the trace undone from the end."""
    blocks: dict[int, tuple[int, int, bool]] = {}
    spans: dict[int, tuple[int, int, bool]] = {}
    small = {s.address: s.small for s in snapshot.segments}
    for segment in snapshot.segments:
        spans[segment.address] = (segment.size_bytes, segment.stream, segment.small)
        for block in segment.blocks:
            if block.state == "allocated":
                blocks[block.address] = (block.requested_bytes, segment.stream, False)
    for entry in reversed(snapshot.trace):
        action, address, size = entry.action, entry.address, entry.size_bytes
        if action == "alloc":
            blocks.pop(address, None)
        elif action in ("free_requested", "free_completed") and size:
            blocks[address] = (size, entry.stream, False)
        elif action in ("segment_alloc", "segment_map"):
            _cut(spans, address, size)
        elif action in ("segment_free", "segment_unmap"):
            page = snapshot.settings.large_segment_bytes
            tiny = size <= SLOT if action == "segment_free" else size % page != 0
            spans[address] = (size, entry.stream, small.get(address, tiny))
    _classify(spans, blocks, snapshot.settings)
    if snapshot.settings.expandable_segments:
        _join(spans)
    private = _PrivateOf(snapshot)
    segments = [PresetSegment(a, n, stream, kind, private(a)) for a, (n, stream, kind) in sorted(spans.items()) if n]
    starts = [s.address for s in segments]
    inside = {a: b for a, b in blocks.items() if _holds(segments, bisect_right(starts, a) - 1, a)}
    return inside, segments


def _holds(segments: list[PresetSegment], i: int, address: int) -> bool:
    return i >= 0 and address < segments[i].address + segments[i].size_bytes


def _classify(
    spans: dict[int, tuple[int, int, bool]], blocks: dict[int, tuple[int, int, bool]], settings: AllocatorSettings
) -> None:
    """Small or large pool, by a block in the span; released memory does not record its pool."""
    starts = sorted(spans)
    for address, block in blocks.items():
        i = bisect_right(starts, address) - 1
        if i < 0:
            continue
        length, stream, _ = spans[starts[i]]
        if address < starts[i] + length:
            small = int(settings.rounded(np.array([block[0]]))[0]) <= SMALL_SIZE
            spans[starts[i]] = (length, stream, small)


def _join(spans: dict[int, tuple[int, int, bool]]) -> None:
    """Merge adjacent spans: parts of one expandable range."""
    last = -1
    for start in sorted(spans):
        length, stream, kind = spans[start]
        if last >= 0 and last + spans[last][0] == start and spans[last][1:] == (stream, kind):
            spans[last] = (spans[last][0] + length, stream, kind)
            del spans[start]
        else:
            last = start


def _cut(spans: dict[int, tuple[int, int, bool]], address: int, size: int) -> None:
    """Take [address, address + size) out of the spans that hold it."""
    for start, (length, stream, kind) in list(spans.items()):
        first, last = max(start, address), min(start + length, address + size)
        if first >= last:
            continue
        del spans[start]
        if first > start:
            spans[start] = (first - start, stream, kind)
        if start + length > last:
            spans[last] = (start + length - last, stream, kind)


class _PrivateOf:
    """Number of the private pool at an address, from the segments that are left; 0 for none."""

    def __init__(self, snapshot: Snapshot) -> None:
        private = [s for s in snapshot.segments if s.private != (0, 0)]
        ids = sorted({s.private for s in private})
        self.ranges = [(s.address, s.address + s.size_bytes, ids.index(s.private) + 1) for s in private]

    def __call__(self, address: int) -> int:
        return next((number for first, last, number in self.ranges if first <= address < last), 0)


def replay(snapshot: Snapshot, *, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None) -> Replay:
    """Run the snapshot's history through the simulator, with its own settings or others.

    With its own, the run starts in the recorded state and cudaMalloc returns the recorded addresses. With other settings it
    starts empty, as the recorded state arose under other rules. Released memory is treated as released by ``empty_cache``:
    exact except for ``max_split_size`` and garbage collection, which release less. Raises InputError if there is nothing to
    run.
    """
    history = history_of(snapshot)
    if not history.storage:
        raise InputError("the snapshot has no history and nothing allocated", hint="record it with _record_memory_history()")
    own_settings = settings is None or settings == snapshot.settings
    conf = snapshot.settings if settings is None else settings
    aligned = all(s.address % SLOT == 0 for s in history.preset.segments) and all(a % SLOT == 0 for a in history.segments)
    exact = own_settings and aligned
    run = simulate(
        history.storage,
        history.sign,
        history.sizes,
        history.streams,
        settings=conf,
        capacity_bytes=capacity_bytes,
        private=history.private,
        done_at=history.done,
        empty_cache=history.empty_cache,
        preset=history.preset if exact else None,
        segment_addresses=history.segments if exact else (),
    )
    return _compared(snapshot, history, run)


def _compared(snapshot: Snapshot, history: History, run: AllocatorRun) -> Replay:
    placed = run.address_bytes
    recorded = np.array(history.addresses, dtype=np.int64)
    if run.settings.expandable_segments:
        # the addresses of the ranges themselves are the driver's choice: places are compared within each pool's range
        for pool in np.unique(run.pool).tolist():
            pool_blocks = (run.pool == pool) & (placed >= 0)
            if pool_blocks.any():
                placed[pool_blocks] -= placed[pool_blocks].min()
                recorded[pool_blocks] -= recorded[pool_blocks].min()
    fresh = slice(history.begun, None)
    sizes = {b.address: b.size_bytes for s in snapshot.segments for b in s.blocks if b.state == "allocated"}
    last = {address: s for s, address in enumerate(history.addresses)}
    sized = [(s, sizes[address]) for address, s in last.items() if address in sizes]
    reserved, allocated = run.reserved(), run.allocated()
    after = sum(c.units if c.kind in ("alloc", "map") else -c.units for c in run.changes if c.event >= run.n_events) * 512
    peak = max(history.reserved, default=0)
    return Replay(
        history=history,
        run=run,
        n_blocks=len(history.sizes) - history.begun,
        n_same_size=sum(int(run.block_bytes[s]) == size for s, size in sized),
        n_sized=len(sized),
        n_same_place=int((placed[fresh] == recorded[fresh]).sum()),
        recorded_peak_reserved_bytes=max(peak, snapshot.reserved_bytes),
        recorded_end_reserved_bytes=snapshot.reserved_bytes,
        recorded_end_allocated_bytes=snapshot.allocated_bytes,
        end_reserved_bytes=(int(reserved[-1]) if reserved.size else 0) + after,
        end_allocated_bytes=int(allocated[-1]) if allocated.size else 0,
    )
