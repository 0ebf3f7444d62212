"""Workspaces inside kernels, which a capture of inputs and outputs does not see.

:func:`hidden_bytes` returns the bytes one operation uses beyond its tensors while it runs, by device and library version;
:func:`with_workspaces` inserts them into a capture's memory events, allocated after the operation's outputs and freed before
the next event, and adds the permanent workspaces of library handles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.memory import workspaces_attention, workspaces_convolution, workspaces_kernels
from gpuwise.predict.memory.library_workspaces import cublas_workspace_bytes, version_of, workspace_tables
from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment
from gpuwise.workload.capture.captured import Capture, Category, Signature

I64 = NDArray[np.int64]
Rule = Callable[[Signature, KernelEnvironment], tuple[int, ...]]

RULES: dict[str, Rule] = {
    **workspaces_attention.RULES,
    **workspaces_convolution.RULES,
    **workspaces_kernels.RULES,
}
"""Operation name without namespace and overload -> sizes of its hidden storages."""
BLAS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addbmm", "_addmm_activation", "_scaled_mm", "_grouped_mm"}
)
"""Operations that go through cuBLAS, whose handle keeps a workspace for each stream."""


@dataclass(frozen=True, slots=True)
class Events:
    """A capture's memory events with workspaces: columns as in :class:`Capture`, storages appended at the end."""

    storage_bytes: I64
    storage_category: I64
    storage_stream: I64
    storage_op: I64
    """Operation that made it; for a workspace, the operation it belongs to."""
    event_storage: I64
    event_sign: NDArray[np.int8]
    event_op: I64
    source_event: I64
    """[E] index of the capture's own event, -1 for an inserted one."""
    captured_storages: int
    """Storages below this index are the capture's."""
    empty_cache: tuple[int, ...] = ()
    """Events before which the allocator releases its whole cache (cuDNN's benchmark mode, after each search)."""

    def live_bytes(self) -> I64:
        """[E] requested bytes not yet freed after each event."""
        return np.cumsum(self.event_sign.astype(np.int64) * self.storage_bytes[self.event_storage])


def environment_of(capture: Capture, accelerator: Accelerator, torch_version: str | None = None) -> KernelEnvironment:
    """The kernel environment of ``capture`` on ``accelerator``. Raises InputError when the torch version cannot be parsed."""
    settings = capture.settings
    capability = accelerator.compute_capability
    major, minor = (int(p) for p in capability.split(".")) if capability else settings.capability
    return KernelEnvironment(
        capability=(major, minor),
        compute_units=accelerator.compute_units or 0,
        torch=version_of(torch_version or settings.torch_version),
        cudnn_tf32=settings.cudnn_tf32,
        cudnn_benchmark=settings.cudnn_benchmark,
        deterministic=settings.deterministic,
    )


def cublas_bytes(environment: KernelEnvironment) -> int:
    """The workspace of a cuBLAS handle on a stream, as torch allocates it; 0 where cuBLAS holds its own (before 1.13)."""
    return cublas_workspace_bytes(environment.capability, environment.torch)


def cublaslt_bytes(environment: KernelEnvironment) -> int:
    """cuBLASLt's workspace while a product with a fused bias runs; 0 where it shares cuBLAS's (from 2.8)."""
    table = workspace_tables()["cublaslt"]
    if environment.torch >= version_of(table["unified_since"]) or environment.torch < version_of(table["in_use_since"]):
        return 0
    return int(table["default_bytes"])


def base_name(op: str) -> str:
    """``aten.mm.default`` -> ``mm``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 2 else parts[-2] if len(parts) == 2 else op


def hidden_bytes(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """Sizes of the storages that a call of ``signature`` makes and frees inside, in the order it makes them."""
    name = base_name(signature.op)
    rule = RULES.get(name)
    sizes = rule(signature, environment) if rule else ()
    if name == "addmm" and (lt := cublaslt_bytes(environment)):
        sizes = (*sizes, lt)
    if any(s < 0 for s in sizes):
        raise DataError(f"the workspace rule of {signature.op} gave a negative size")
    return tuple(int(s) for s in sizes if s)


def with_workspaces(
    capture: Capture, accelerator: Accelerator, torch_version: str | None = None, *, room_bytes: float = math.inf
) -> Events:
    """``capture``'s memory events with the hidden storages of every operation.

    Workspaces of an operation are born, and die together, after its outputs are born and before anything dies there.
    Per stream, cuBLAS's workspace is born at the first product and stays. A search of cuDNN's benchmark mode takes at
    most what the live storages leave of ``room_bytes``; with 0 it takes nothing.
    """
    environment = environment_of(capture, accelerator, torch_version)
    handle_op, handle = _handles(capture, environment)
    search_op, search = _searches(capture, environment)
    search = _within(search, search_op, capture, room_bytes)
    hidden_op, hidden = _hidden(capture, environment)
    n = len(capture.storage_bytes)
    added = np.concatenate([handle, search, hidden])
    added_op = np.concatenate([handle_op, search_op, hidden_op])
    handle_at, search_at, hidden_at = np.split(
        np.arange(n, n + added.size, dtype=np.int64), [handle.size, handle.size + search.size]
    )
    captured = np.arange(capture.event_storage.size, dtype=np.int64)
    # (storages, sign, operations), in the order they come at one place; the capture's own event is last
    marker = np.full(search_op.size, -1, dtype=np.int64)
    groups = (
        (handle_at, 1, handle_op),
        (search_at, 1, search_op),
        (search_at, -1, search_op),
        (marker, 0, search_op),
        (hidden_at, 1, hidden_op),
        (hidden_at, -1, hidden_op),
    )
    place = np.concatenate([*(_places(capture, op) for _, _, op in groups), captured])
    rank = np.concatenate([*(np.full(op.size, i) for i, (_, _, op) in enumerate(groups)), np.full(captured.size, len(groups))])
    storage = np.concatenate([*(g[0] for g in groups), capture.event_storage])
    sign = np.concatenate([*(np.full(g[2].size, g[1], np.int8) for g in groups), capture.event_sign])
    op = np.concatenate([*(g[2] for g in groups), capture.event_op])
    source = np.concatenate([np.full(storage.size - captured.size, -1, dtype=np.int64), captured])
    order = np.lexsort((rank, op, place))
    real = sign[order] != 0
    emptied = np.flatnonzero(~real) - np.arange(search_op.size)
    order = order[real]
    return Events(
        storage_bytes=np.concatenate([capture.storage_bytes, added]),
        storage_category=np.concatenate([capture.storage_category, np.full(added.size, int(Category.WORKSPACE), dtype=np.int64)]),
        storage_stream=np.concatenate([capture.storage_stream, capture.op_stream[added_op]]),
        storage_op=np.concatenate([capture.storage_op, added_op]),
        event_storage=storage[order],
        event_sign=sign[order].astype(np.int8),
        event_op=op[order],
        source_event=source[order],
        captured_storages=n,
        empty_cache=tuple(sorted(set(emptied.tolist()))),
    )


def workspace_sizes(capture: Capture, accelerator: Accelerator, torch_version: str) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The handles' workspace, and those of each signature: accelerators with the same have the same events, but for a search of
    cuDNN's benchmark mode."""
    environment = environment_of(capture, accelerator, torch_version)
    return cublas_bytes(environment), tuple(hidden_bytes(s, environment) for s in capture.signatures)


def _hidden(capture: Capture, environment: KernelEnvironment) -> tuple[I64, I64]:
    """Operation and bytes of every hidden storage, in program order."""
    sizes = [hidden_bytes(s, environment) for s in capture.signatures]
    has = np.array([bool(s) for s in sizes], dtype=bool)
    ops = np.flatnonzero(has[capture.op_signature]) if has.size else np.zeros(0, dtype=np.int64)
    kinds: list[int] = capture.op_signature[ops].tolist()
    per_op = [sizes[k] for k in kinds]
    counts = np.array([len(p) for p in per_op], dtype=np.int64)
    return np.repeat(ops, counts).astype(np.int64), np.array([b for p in per_op for b in p], dtype=np.int64)


def _searches(capture: Capture, environment: KernelEnvironment) -> tuple[I64, I64]:
    """In benchmark mode, the first call of each kind of convolution: cuDNN tries its algorithms with the largest
    workspace among them, then torch empties its cache (cudnn/Conv_v7.cpp, Conv_v8.cpp)."""
    sizes = (
        [workspaces_convolution.search_bytes(s, environment) for s in capture.signatures] if environment.cudnn_benchmark else []
    )
    searched = [i for i, size in enumerate(sizes) if size is not None]
    if not searched:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    kinds, first = np.unique(capture.op_signature, return_index=True)
    at = dict(zip(kinds.tolist(), first.tolist(), strict=True))
    pairs = sorted((at[i], sizes[i] or 0) for i in searched if i in at)
    return np.array([op for op, _ in pairs], dtype=np.int64), np.array([size for _, size in pairs], dtype=np.int64)


def _within(search: I64, search_op: I64, capture: Capture, room_bytes: float) -> I64:
    """``search`` cut to the room left: plans beyond the free memory are not tried, and where their workspace cannot be had
    it is halved until it can (cudnn/Conv_v8.cpp generate_and_filter_plans, get_available_workspace)."""
    if not search.size or math.isinf(room_bytes):
        return search
    live = capture.live_bytes()
    before = _places(capture, search_op) - 1
    live_before = np.where(before >= 0, live[np.maximum(before, 0)], 0)
    return np.clip(search, 0, np.maximum(room_bytes - live_before, 0)).astype(np.int64)


def _handles(capture: Capture, environment: KernelEnvironment) -> tuple[I64, I64]:
    """First product on each stream, and the bytes its handle keeps."""
    size = cublas_bytes(environment)
    blas = np.array([base_name(s.op) in BLAS for s in capture.signatures], dtype=bool)
    if not size or not blas.any():
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    ops = np.flatnonzero(blas[capture.op_signature])
    _, first = np.unique(capture.op_stream[ops], return_index=True)
    first_ops = np.sort(ops[first])
    return first_ops, np.full(first_ops.size, size, dtype=np.int64)


def _places(capture: Capture, ops: I64) -> I64:
    """Index of the event before which an operation's workspaces come and go: after the last birth of its outputs.

    ``event_op`` does not decrease, so an operation's events are one run: births of outputs, then deaths of what it was
    the last to need. Kernels make their outputs first and their workspaces then.
    """
    if np.any(np.diff(capture.event_op) < 0):
        raise InputError("the capture's memory events are not in the order of its operations", hint="capture the step again")
    begin = np.searchsorted(capture.event_op, ops, side="left")
    end = np.searchsorted(capture.event_op, ops, side="right")
    born = np.flatnonzero(capture.event_sign > 0)
    if not born.size:
        return begin.astype(np.int64)
    last = np.searchsorted(born, end, side="left") - 1
    latest = born[np.maximum(last, 0)]
    return np.where((last >= 0) & (latest >= begin), latest + 1, begin).astype(np.int64)
