"""A simulated run as a PyTorch memory snapshot: opens at pytorch.org/memory_viz and in torch/cuda/_memory_viz.py."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.files import write_whole
from gpuwise.predict.memory.allocator.address_space import UNIT
from gpuwise.predict.memory.allocator.run import AllocatorRun, to_address
from gpuwise.predict.memory.allocator.settings import AllocatorSettings
from gpuwise.workload.capture.captured import Capture

SUFFIXES = (".pickle", ".pkl")
Frame = dict[str, Any]
_ACTIONS = {"alloc": "segment_alloc", "free": "segment_free", "map": "segment_map", "unmap": "segment_unmap"}


def frames_of(capture: Capture, workspace_ops: Sequence[int] = ()) -> list[list[Frame]]:
    """[S] for each storage of a capture: the operation, its module and the user's line, innermost first; then for each
    workspace that an operation of ``workspace_ops`` has."""
    cache: dict[tuple[int, int, int], list[Frame]] = {}
    out: list[list[Frame]] = []
    for op, module in zip(capture.storage_op.tolist(), capture.storage_module.tolist(), strict=True):
        line, signature = (int(capture.op_line[op]), int(capture.op_signature[op])) if op >= 0 else (0, -1)
        key = (signature, module, line)
        if key not in cache:
            cache[key] = _frames(capture, *key)
        out.append(cache[key])
    for op in workspace_ops:
        module, line, signature = int(capture.op_module[op]), int(capture.op_line[op]), int(capture.op_signature[op])
        hidden: Frame = {"filename": "torch.ops", "line": 0, "name": f"workspace of {capture.signatures[signature].op}"}
        out.append([hidden, *_frames(capture, -1, module, line)])
    return out


def _frames(capture: Capture, signature: int, module: int, line: int) -> list[Frame]:
    frames: list[Frame] = []
    if signature >= 0:
        frames.append({"filename": "torch.ops", "line": 0, "name": capture.signatures[signature].op})
    if module > 0:
        frames.append({"filename": capture.modules[module], "line": 0, "name": capture.module_types[module]})
    return [*frames, *line_frame(capture.lines[line] if line < len(capture.lines) else "")]


def line_frame(where: str) -> list[Frame]:
    """The frame that ``train.py:31 in step`` names; none for an empty text."""
    match = re.fullmatch(r"(.*):(\d+)(?: in (.*))?", where)
    if match is None:
        return [{"filename": where, "line": 0, "name": ""}] if where else []
    return [{"filename": match[1], "line": int(match[2]), "name": match[3] or ""}]


def snapshot_document(
    run: AllocatorRun, *, frames: Sequence[Sequence[Frame]] | None = None, time_us: Sequence[int] | None = None
) -> dict[str, Any]:
    """The dictionary that ``torch.cuda.memory._snapshot()`` would give after the run.

    ``frames`` are one list per storage; ``time_us`` one figure per event (default: a microsecond an event).
    """
    count = int(run.size_bytes.size)
    frame_lists: list[list[Frame]] = [list(f) for f in frames] if frames is not None else [[] for _ in range(count)]
    if len(frame_lists) != count:
        raise InputError(f"{len(frame_lists)} lists of frames for {count} storages", hint="give one list per storage")
    clock = list(time_us) if time_us is not None else list(range(int(run.storage.size) + 1))
    return {
        "segments": _segments(run, frame_lists),
        "device_traces": [_trace(run, frame_lists, clock)],
        "allocator_settings": _settings(run.settings),
    }


def write_snapshot(
    run: AllocatorRun, path: Path, *, frames: Sequence[Sequence[Frame]] | None = None, time_us: Sequence[int] | None = None
) -> None:
    """Write the run to ``path`` (.pickle or .pkl) in one step. Raises InputError when it cannot be written there."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} does not end in {' or '.join(SUFFIXES)}", hint=f"name it {path.with_suffix('.pickle').name}")
    data = pickle.dumps(snapshot_document(run, frames=frames, time_us=time_us), protocol=4)
    write_whole(path, data)


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    split = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "max_split_size": -1 if split is None else split,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): d for i, d in enumerate(settings.roundup_power2_divisions)},
    }


def _segments(run: AllocatorRun, frames: Sequence[list[Frame]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    address = run.address_bytes
    for segment in run.segments():
        blocks: list[dict[str, Any]] = []
        at = segment.address
        for s in segment.storages:
            start, size = int(address[s]), int(run.block_bytes[s])
            if start > at:
                blocks.append(_block(at, start - at, 0, "inactive", []))
            blocks.append(_block(start, size, int(run.size_bytes[s]), "active_allocated", frames[s]))
            at = start + size
        end = segment.address + segment.size_bytes
        if end > at:
            blocks.append(_block(at, end - at, 0, "inactive", []))
        active_bytes = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
        out.append(
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.size_bytes,
                "allocated_size": active_bytes,
                "active_size": active_bytes,
                "requested_size": sum(b["requested_size"] for b in blocks),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, segment.private),
                "is_expandable": segment.expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    return out


def _block(address: int, size: int, requested: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def _trace(run: AllocatorRun, frames: Sequence[list[Frame]], clock: Sequence[int]) -> list[dict[str, Any]]:
    """Events with the device memory taken and given back before each, as the allocator records them."""
    out: list[dict[str, Any]] = []
    changes = iter([*run.changes, None])
    change = next(changes)
    nothing: list[Frame] = []
    address = run.address_bytes.tolist()
    sizes: list[int] = run.size_bytes.tolist()
    storages: list[int] = run.storage.tolist()
    signs: list[int] = run.sign.tolist()
    owners: list[int] = run.pool.tolist()
    streams: list[int] = [run.pools[p].stream for p in owners] if run.pools else []

    def take_changes(until: int, now: int, cause: list[Frame]) -> None:
        nonlocal change
        while change is not None and change.event <= until:
            base = max((o for o in run.origins if o <= change.address), default=change.address)
            start = int(to_address(run.block_units.dtype.type(base))) + (change.address - base) * UNIT
            out.append(
                {
                    "action": _ACTIONS[change.kind],
                    "addr": start,
                    "size": change.units * UNIT,
                    "stream": run.pools[change.pool].stream,
                    "time_us": now,
                    "frames": cause,
                }
            )
            change = next(changes)

    for e in range(run.n_events):
        s, now = storages[e], clock[e]
        take_changes(e, now, frames[s] if signs[e] > 0 else nothing)
        if address[s] < 0:
            continue
        entry: dict[str, Any] = {"addr": address[s], "size": sizes[s], "stream": streams[s], "time_us": now, "frames": frames[s]}
        if signs[e] > 0:
            out.append({"action": "alloc", **entry})
        else:
            out += [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]
    last = clock[min(run.n_events, len(clock) - 1)] if clock else 0
    cause: list[Frame] = frames[run.oom.storage] if run.oom is not None else []
    take_changes(1 << 62, last, cause)
    if run.oom is not None:
        free_bytes = run.oom.capacity_bytes - run.oom.reserved_bytes
        out.append(
            {
                "action": "oom",
                "device_free": max(free_bytes, 0),
                "size": run.oom.requested_bytes,
                "stream": streams[run.oom.storage],
                "time_us": last,
                "frames": cause,
            }
        )
    return out
