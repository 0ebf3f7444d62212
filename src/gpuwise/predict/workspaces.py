"""Bytes that live inside kernels: a capture sees an operation's inputs and outputs, the device also holds workspaces.

:func:`hidden_bytes` says what one operation holds beyond its tensors while it runs, by device and library version;
:func:`with_workspaces` puts it into a capture's memory events, made once the operation's outputs are born and freed
before anything else happens, and adds the handles' workspaces that stay. What it adds it frees, except those.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, InputError
from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict import workspaces_attention, workspaces_convolution, workspaces_kernels
from gpuwise.predict.workspaces_kernels import Situation, version_of
from gpuwise.workload.captured import Capture, Category, Signature

I64 = NDArray[np.int64]
Rule = Callable[[Signature, Situation], tuple[int, ...]]

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
    """[E] the capture's own event, -1 for one that was put in."""
    captured_storages: int
    """Storages below this index are the capture's."""

    def live_bytes(self) -> I64:
        """[E] bytes asked for and not yet freed after each event."""
        return np.cumsum(self.event_sign.astype(np.int64) * self.storage_bytes[self.event_storage])


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("workspaces.toml").read_text(encoding="utf-8"))


def situation_of(capture: Capture, accelerator: Accelerator, torch_version: str | None = None) -> Situation:
    """What decides kernels and their workspaces. Raises InputError on a version that is not one."""
    settings = capture.settings
    capability = accelerator.compute_capability
    major, minor = (int(p) for p in capability.split(".")) if capability else settings.capability
    return Situation(
        capability=(major, minor),
        compute_units=accelerator.compute_units or 0,
        torch=version_of(torch_version or settings.torch_version),
        cudnn_tf32=settings.cudnn_tf32,
        cudnn_benchmark=settings.cudnn_benchmark,
        deterministic=settings.deterministic,
    )


def cublas_bytes(situation: Situation) -> int:
    """The workspace of a cuBLAS handle on a stream, as torch allocates it; 0 where cuBLAS holds its own (before 1.13)."""
    table = _tables()["cublas"]
    if situation.torch < version_of(table["in_allocator_since"]):
        return 0
    for major, minor, since in table["large_capabilities"]:
        if (major, minor) == situation.capability and situation.torch >= version_of(since):
            return int(table["large_bytes"])
    return int(table["default_bytes"])


def cublaslt_bytes(situation: Situation) -> int:
    """cuBLASLt's workspace while a product with a fused bias runs; 0 where it shares cuBLAS's (from 2.8)."""
    table = _tables()["cublaslt"]
    if situation.torch >= version_of(table["unified_since"]) or situation.torch < version_of(table["in_use_since"]):
        return 0
    return int(table["default_bytes"])


def base_name(op: str) -> str:
    """``aten.mm.default`` -> ``mm``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 2 else parts[-2] if len(parts) == 2 else op


def hidden_bytes(signature: Signature, situation: Situation) -> tuple[int, ...]:
    """Sizes of the storages that a call of ``signature`` makes and frees inside, in the order it makes them."""
    name = base_name(signature.op)
    rule = RULES.get(name)
    sizes = rule(signature, situation) if rule else ()
    if name == "addmm" and (lt := cublaslt_bytes(situation)):
        sizes = (*sizes, lt)
    if any(s < 0 for s in sizes):
        raise DataError(f"the workspace rule of {signature.op} gave a negative size")
    return tuple(int(s) for s in sizes if s)


def with_workspaces(capture: Capture, accelerator: Accelerator, torch_version: str | None = None) -> Events:
    """``capture``'s memory events with the hidden storages of every operation.

    Workspaces of an operation are born, and die together, after its outputs are born and before anything dies there.
    Per stream, cuBLAS's workspace is born at the first product and stays.
    """
    situation = situation_of(capture, accelerator, torch_version)
    sizes = [hidden_bytes(s, situation) for s in capture.signatures]
    has = np.array([bool(s) for s in sizes], dtype=bool)
    ops = np.flatnonzero(has[capture.op_signature]) if has.size else np.zeros(0, dtype=np.int64)
    per_op = [sizes[s] for s in capture.op_signature[ops].tolist()]
    counts = np.array([len(p) for p in per_op], dtype=np.int64)
    added_op = np.repeat(ops, counts)
    added = np.array([b for p in per_op for b in p], dtype=np.int64)
    kept_op, kept = _handles(capture, situation)
    n = len(capture.storage_bytes)
    temporary = np.arange(n, n + added.size, dtype=np.int64)
    staying = np.arange(n + added.size, n + added.size + kept.size, dtype=np.int64)
    own = np.arange(capture.event_storage.size, dtype=np.int64)
    at, stay_at = _places(capture, added_op), _places(capture, kept_op)
    place = np.concatenate([own, stay_at, at, at])
    # at one place: the handle's, births of workspaces, their deaths, then the capture's own event
    rank = np.repeat(np.array([3, 0, 1, 2]), [own.size, stay_at.size, at.size, at.size])
    storage = np.concatenate([capture.event_storage, staying, temporary, temporary])
    sign = np.concatenate([capture.event_sign, np.repeat(np.array([1, 1, -1], np.int8), [stay_at.size, at.size, at.size])])
    op = np.concatenate([capture.event_op, kept_op, added_op, added_op])
    order = np.lexsort((rank, op, place))
    total_op = np.concatenate([added_op, kept_op])
    return Events(
        storage_bytes=np.concatenate([capture.storage_bytes, added, kept]),
        storage_category=np.concatenate(
            [capture.storage_category, np.full(added.size + kept.size, int(Category.WORKSPACE), dtype=np.int64)]
        ),
        storage_stream=np.concatenate([capture.storage_stream, capture.op_stream[total_op]]),
        storage_op=np.concatenate([capture.storage_op, total_op]),
        event_storage=storage[order],
        event_sign=sign[order].astype(np.int8),
        event_op=op[order],
        source_event=np.concatenate([own, np.full(storage.size - own.size, -1, dtype=np.int64)])[order],
        captured_storages=n,
    )


def _handles(capture: Capture, situation: Situation) -> tuple[I64, I64]:
    """First product on each stream, and the bytes its handle keeps."""
    size = cublas_bytes(situation)
    blas = np.array([base_name(s.op) in BLAS for s in capture.signatures], dtype=bool)
    if not size or not blas.any():
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    ops = np.flatnonzero(blas[capture.op_signature])
    _, first = np.unique(capture.op_stream[ops], return_index=True)
    kept = np.sort(ops[first])
    return kept, np.full(kept.size, size, dtype=np.int64)


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
