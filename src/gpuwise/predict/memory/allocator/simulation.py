"""PyTorch's caching allocator for CUDA, simulated: which block every storage gets, what is reserved, when it runs out.

Rules (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h; stable from torch 2.4 to 2.15 where they matter here):
sizes are rounded to 512 B (or to divisions of powers of two); up to 1 MiB they go to the small pool, above it to the large
one, per stream; the best free block by (size, address) is taken and its remainder split off (small pool: from 512 B, large
pool: above 1 MiB); freed blocks merge with free neighbours of their segment. If nothing fits, cudaMalloc gives 2 MiB (small),
20 MiB (below 10 MiB) or the size rounded up to 2 MiB; if the device is full, whole free segments are given back and it is
tried again. With expandable segments each pool grows one range of addresses by pages of 2 or 20 MiB instead.

Addresses decide between equally large blocks; the driver's choice of them is modelled (:mod:`.allocator_space`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator import loop as allocator_loop
from gpuwise.predict.memory.allocator.address_space import SLOT, UNIT, Space
from gpuwise.predict.memory.allocator.loop import Events
from gpuwise.predict.memory.allocator.pools import MASK, SHIFT, NoRoomError, PoolKey, Pools
from gpuwise.predict.memory.allocator.preset import Preset
from gpuwise.predict.memory.allocator.preset import apply as apply_preset
from gpuwise.predict.memory.allocator.run import AllocatorRun, Fragmentation, OutOfMemory, Peaks, Segment
from gpuwise.predict.memory.allocator.settings import SMALL_SIZE, AllocatorSettings
from gpuwise.units import format_bytes
from gpuwise.workload.capture.captured import Capture

__all__ = [
    "AllocatorRun",
    "AllocatorSettings",
    "Fragmentation",
    "OutOfMemory",
    "Peaks",
    "Preset",
    "Segment",
    "simulate",
    "simulate_capture",
]

I64 = NDArray[np.int64]
LARGEST_BYTES = 1 << 48
"""No storage is larger than the address space."""
UNLIMITED_BYTES = 1 << 44
"""Device memory assumed when no capacity is given: the states of a model of a trillion parameters. An expandable segment of
every pool and stream reserves an eighth more than it, and the address space has 2**47 bytes for all of them."""


def simulate(
    storage: ArrayLike,
    sign: ArrayLike,
    size_bytes: ArrayLike,
    stream: ArrayLike = 0,
    *,
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    device_bytes: int | None = None,
    private: ArrayLike = 0,
    done_at: Mapping[int, int] | None = None,
    empty_cache: Sequence[int] = (),
    segment_addresses: Sequence[int] = (),
    preset: Preset | None = None,
) -> AllocatorRun:
    """Run memory events through the allocator.

    Args:
        storage: [E] storage of each event.
        sign: [E] +1 the storage is made, -1 it is freed; each storage at most once each, made first.
        size_bytes: [S] size of each storage as asked for; 0 is never allocated.
        stream: [S] or one number for all: stream whose pool it comes from.
        settings: default: torch's defaults.
        capacity_bytes: device memory the process can reserve (what is left after its context); ``None`` for no limit.
        device_bytes: the whole device's memory, for memory fractions and address ranges; default ``capacity_bytes``.
        private: [S] or one number: private pool (CUDA graph, MemPool) it comes from, 0 for none.
        done_at: freeing event -> event from which other streams are done with the block (``record_stream``).
        empty_cache: events before which ``torch.cuda.empty_cache()`` is called.
        segment_addresses: byte addresses that a real run's cudaMallocs returned, in order.
        preset: what is held before the first event; the events then begin with the births of its storages 0, 1, ...

    Raises InputError for inconsistent events. Running out of memory is a result (``run.oom``), not an error.
    """
    conf = settings or AllocatorSettings()
    kinds, signs, sizes = _checked(storage, sign, size_bytes)
    limit = _capacity(capacity_bytes, "capacity_bytes")
    device = _capacity(device_bytes, "device_bytes") if device_bytes is not None else limit
    rounded = np.where(sizes > 0, conf.rounded(sizes), 0)
    streams, privates = _per_storage(stream, sizes.size, "stream"), _per_storage(private, sizes.size, "private")
    pool, keys = _pools(rounded, streams, privates, preset)
    units = rounded // UNIT
    birth = np.zeros(sizes.size, dtype=np.int64)
    birth[kinds[signs > 0]] = np.flatnonzero(signs > 0)
    requests = np.where(signs > 0, units[kinds], 0)
    real = sizes[kinds] > 0
    index = np.flatnonzero(real)
    compact = index.size < kinds.size
    done, empties = dict(done_at or {}), sorted(set(empty_cache))
    if compact:
        place = np.searchsorted(index, np.arange(kinds.size + 1))
        done = {int(place[e]): int(place[min(d, kinds.size)]) for e, d in done.items()}
        empties = [int(place[min(max(e, 0), kinds.size)]) for e in empties]
        birth = place[birth]
    events = Events(requests[real], kinds[real], pool[kinds[real]], birth, done)
    state = Pools(conf, keys, limit, device, Space([a // SLOT for a in segment_addresses]))
    block, begun = [0] * sizes.size, 0
    if preset is not None:
        begun = _seed(state, preset, kinds, signs, units, pool, block)
        events.pool = pool[kinds[real]]
    failed = False
    try:
        allocator_loop.run(state, events, block, empties, begun)
    except NoRoomError:
        failed = True
    return _result(conf, capacity_bytes, kinds, signs, sizes, rounded, pool, state, block, index, failed, events)


def simulate_capture(
    capture: Capture,
    *,
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    device_bytes: int | None = None,
) -> AllocatorRun:
    """Run a captured program's storages through the allocator, by default with the settings of its script."""
    conf = settings
    if conf is None:
        conf = AllocatorSettings.parse(capture.settings.allocator_conf, torch_version=capture.settings.torch_version)
    return simulate(
        capture.event_storage,
        capture.event_sign,
        capture.storage_bytes,
        capture.storage_stream,
        settings=conf,
        capacity_bytes=capacity_bytes,
        device_bytes=device_bytes,
    )


def _capacity(value: int | None, name: str) -> int:
    if value is None:
        return UNLIMITED_BYTES
    if not 0 < value <= UNLIMITED_BYTES:
        raise InputError(f"{name} is {value} bytes", hint="give the memory of a device, for example 24 * 2**30")
    return int(value)


def _integers(values: ArrayLike, name: str) -> I64:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iub":
        raise InputError(f"{name} holds {array.dtype}, not whole numbers", hint="pass integer arrays")
    return array.astype(np.int64)


def _per_storage(values: ArrayLike, count: int, name: str) -> I64:
    array = _integers(values, name)
    if array.ndim == 0:
        return np.full(count, int(array), dtype=np.int64)
    if array.shape != (count,):
        raise InputError(f"{name} has {array.size} values for {count} storages", hint="give one per storage, or one number")
    return array


def _checked(storage: ArrayLike, sign: ArrayLike, size_bytes: ArrayLike) -> tuple[I64, I64, I64]:
    kinds, signs, sizes = _integers(storage, "storage"), _integers(sign, "sign"), _integers(size_bytes, "size_bytes")
    if kinds.ndim != 1 or kinds.shape != signs.shape or sizes.ndim != 1:
        raise InputError(
            f"storage {kinds.shape}, sign {signs.shape} and size_bytes {sizes.shape} do not fit together",
            hint="storage and sign are one per event, size_bytes one per storage",
        )
    if sizes.size and (sizes.min() < 0 or sizes.max() > LARGEST_BYTES):
        raise InputError(
            f"a storage of {int(sizes.min() if sizes.min() < 0 else sizes.max())} bytes", hint="sizes are 0 to 2**48"
        )
    if kinds.size and (kinds.min() < 0 or kinds.max() >= sizes.size):
        raise InputError(f"event of storage {int(kinds.max())} of {sizes.size}", hint="storages are numbered from 0")
    if not (np.abs(signs) == 1).all():
        raise InputError("a sign that is neither +1 nor -1", hint="+1 is an allocation, -1 a free")
    allocated, freed = kinds[signs > 0], kinds[signs < 0]
    for what, storages in (("allocated", allocated), ("freed", freed)):
        counts = np.bincount(storages)
        if counts.max(initial=0) > 1:
            twice = int(counts.argmax())
            raise InputError(f"storage {twice} is {what} twice", hint="give every allocation its own storage number")
    at = np.full(sizes.size, kinds.size, dtype=np.int64)
    at[allocated] = np.flatnonzero(signs > 0)
    late = at[freed] > np.flatnonzero(signs < 0)
    if late.any():
        raise InputError(f"storage {int(freed[late][0])} is freed before it is allocated", hint="check the order of the events")
    return kinds, signs, sizes


def _seed(state: Pools, preset: Preset, kinds: I64, signs: I64, units: I64, pool: I64, block: list[int]) -> int:
    """Put the preset's segments and blocks in place; how many events that covers."""
    count = len(preset.block_addresses)
    if kinds[:count].tolist() != list(range(count)) or (signs[:count] < 0).any() or (units[:count] == 0).any():
        raise InputError("events do not begin with the births of the preset's storages", hint="number them 0, 1, 2 ... first")
    owners = pool.tolist()
    apply_preset(state, preset, units.tolist(), owners, block)
    unplaced = [s for s in range(count) if not block[s]]
    if unplaced:
        raise InputError(f"block {unplaced[0]} of the preset lies in no segment", hint="give every block's segment")
    pool[:] = owners
    return count


def _pools(rounded: I64, stream: I64, private: I64, preset: Preset | None) -> tuple[I64, list[PoolKey]]:
    """[S] index of each storage's pool, and the pools, ordered by private pool, stream and size class."""
    code = (rounded > SMALL_SIZE).astype(np.int64)
    segments = () if preset is None else preset.segments
    stream = np.concatenate((stream, np.array([s.stream for s in segments], dtype=np.int64)))
    private = np.concatenate((private, np.array([s.private for s in segments], dtype=np.int64)))
    owners: list[tuple[int, int]] = [(0, 0)] if not stream.size else [(int(private[0]), int(stream[0]))]
    if stream.size and ((stream != stream[0]).any() or (private != private[0]).any()):
        rows, index = np.unique(np.stack((private, stream), axis=1), axis=0, return_inverse=True)
        owners = [(int(p), int(s)) for p, s in rows.tolist()]
        code += 2 * index.reshape(-1)[: rounded.size]
    return code, [PoolKey(p, s, small) for p, s in owners for small in (True, False)]


def _result(
    conf: AllocatorSettings,
    capacity: int | None,
    kinds: I64,
    signs: I64,
    sizes: I64,
    rounded: I64,
    pool: I64,
    state: Pools,
    block: list[int],
    index: I64,
    failed: bool,
    events: Events,
) -> AllocatorRun:
    starts = np.fromiter(map(MASK.__and__, block), np.int64, len(block))
    units = np.fromiter(map(SHIFT.__rrshift__, block), np.int64, len(block))
    for target, source in events.copies:
        starts[target], units[target] = starts[source], units[source]
    stop, oom = kinds.size, None
    if failed:
        unserved = (units == 0) & (rounded > 0)
        at = int(np.flatnonzero((events.units > 0) & unserved[events.storage])[0])
        stop = int(index[at])
        oom = _out_of_memory(state, int(kinds[stop]), stop, int(sizes[kinds[stop]]), events, at, capacity)
    changes = tuple(c._replace(event=int(index[c.event]) if c.event < index.size else kinds.size) for c in state.changes)
    return AllocatorRun(
        settings=conf,
        capacity_bytes=capacity,
        storage=kinds,
        sign=signs,
        size_bytes=sizes,
        rounded_bytes=rounded,
        block_bytes=units * UNIT,
        block_units=starts,
        pool=pool,
        pools=tuple(state.keys),
        changes=changes,
        origins=tuple(state.origins),
        n_events=stop,
        retries=state.retries,
        oom=oom,
    )


def _out_of_memory(
    state: Pools, storage: int, event: int, size: int, events: Events, at: int, capacity: int | None
) -> OutOfMemory:
    gaps = state.free[int(events.pool[at])]
    free = sum(key >> SHIFT for keys in state.free for key in keys) * UNIT
    pending = sum(p[2] for p in state.pending) * UNIT
    largest = (gaps[-1] >> SHIFT) * UNIT if gaps else 0
    elsewhere = free - sum(key >> SHIFT for key in gaps) * UNIT
    segment = state.settings.segment_bytes(int(events.units[at]) * UNIT)
    room = min(state.limit * UNIT, state.allowed_bytes) - state.reserved * UNIT
    parts = [f"the device has {format_bytes(max(room, 0))} left of {format_bytes(min(state.limit * UNIT, state.allowed_bytes))}"]
    if gaps:
        parts.append(
            f"{format_bytes(free - elsewhere)} are free in {len(gaps)} gap{'s' * (len(gaps) > 1)} of this pool, the largest "
            f"{format_bytes(largest)}, between blocks in use"
        )
    if elsewhere:
        parts.append(f"{format_bytes(elsewhere)} are free in other pools (small blocks, other streams)")
    reserved = state.reserved * UNIT
    return OutOfMemory(
        event=event,
        storage=storage,
        requested_bytes=size,
        segment_bytes=segment,
        capacity_bytes=capacity if capacity is not None else UNLIMITED_BYTES,
        reserved_bytes=reserved,
        allocated_bytes=reserved - free - pending,
        free_bytes=free,
        largest_free_bytes=largest,
        reason="; ".join(parts),
    )
