"""Parts of a sharded step: the choice, the units it gathers, the transfers it causes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import InputError
from gpuwise.workload.capture.captured import Capture, Parameter, Signature
from gpuwise.workload.capture.record.blocks import blocks
from gpuwise.workload.capture.record.edit import Editor
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.strategy import SHARDINGS

BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""``DistributedDataParallel``'s ``bucket_cap_mb`` and ``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``."""
GATHER_STREAM, REDUCE_STREAM, HOST_STREAM = 2, 3, 4


@dataclass(frozen=True, slots=True)
class Sharding:
    """Distribution of the states of a captured step over its data-parallel ranks.

    ``gather_dtype`` and ``reduce_dtype`` are FSDP2's mixed-precision formats; empty: the parameter's own. The forward of the
    capture must compute in ``gather_dtype``.
    """

    kind: str = "zero3"
    ranks: int = 1
    shard_ranks: int = 0
    """With ``hybrid``: ranks per shard group."""
    wrap: tuple[str, ...] | None = None
    """Modules gathered one by one; None: the repeated blocks."""
    reshard_after_forward: bool = True
    gather_dtype: str = ""
    reduce_dtype: str = ""
    bucket_bytes: int = BUCKET_BYTES
    gradient_as_bucket_view: bool = False
    offload_optimizer: bool = False
    """States and update on the host (ZeRO-Offload): gradients go down, parameters come back."""
    offload_parameters: bool = False
    """FSDP2's ``CPUOffloadPolicy``: the shards of everything live on the host."""

    @property
    def group(self) -> int:
        """Ranks that hold one copy of the sharded states."""
        return self.shard_ranks if self.kind == "hybrid" else self.ranks

    def check(self) -> None:
        """Raises InputError on what cannot be."""
        if self.kind not in SHARDINGS:
            raise InputError(f"unknown sharding {self.kind!r}", hint="one of " + ", ".join(SHARDINGS))
        if self.ranks < 1 or self.bucket_bytes < 1:
            raise InputError(f"{self.ranks} ranks with buckets of {self.bucket_bytes} bytes", hint="both are at least 1")
        if self.kind == "hybrid" and (self.shard_ranks < 1 or self.ranks % self.shard_ranks):
            raise InputError(
                f"shards over {self.shard_ranks} of {self.ranks} ranks", hint="the shard group divides the data-parallel ranks"
            )
        if self.offload_parameters and self.kind not in ("zero3", "hybrid"):
            raise InputError(f"parameters cannot be offloaded under {self.kind}", hint="zero3 or hybrid")
        for name in (self.gather_dtype, self.reduce_dtype):
            if name and name not in TENSOR_BYTES:
                raise InputError(f"unknown format {name!r}", hint="one of " + ", ".join(TENSOR_BYTES))


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective or copy to or from the host, in operations of the capture it belongs to."""

    op: str
    """Name in ``predict.collectives``, or ``h2d``, ``d2h``."""
    payload_bytes: int
    group_size: int
    replicas: bool
    """Across shard groups instead of within one."""
    at_op: int
    after_op: int
    """Operation that must have finished before it can start, -1: none."""
    needed_by: int
    """Operation that waits for it; one past the last for the end of the step."""
    unit: str | None = None
    """The wrapped module that it gathers or reduces ('' is the rest of the network); None for what happens once a step."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A wrapped module's own parameters ('' is the rest of the network)."""

    path: str
    parameters: tuple[Parameter, ...]


@dataclass(slots=True)
class PlannedTransfer:
    """A transfer whose places are still handles and old operations."""

    op: str
    payload_bytes: int
    replicas: bool
    handle: int
    after: int
    """Handle, -1: none."""
    needed_handle: int
    needed_op: int
    """Old operation, used if ``needed_handle`` is -1."""
    unit: str | None = None


def shard_numel(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of rank 0's shard: ``ceil(rows / ranks)`` rows, as ``torch.chunk`` cuts."""
    if not shape:
        return 1
    return -(-shape[0] // ranks) * math.prod(shape[1:])


def units_of(capture: Capture, wrap: tuple[str, ...] | None) -> tuple[Unit, ...]:
    """The wrapped modules with their parameters, and last the rest. Raises InputError without parameters in the capture."""
    if not capture.parameters:
        raise InputError("the capture names no parameters", hint="capture the module, or a step that uses one")
    paths = blocks(capture) if wrap is None else wrap
    parameters_by_path: dict[str, list[Parameter]] = {path: [] for path in (*paths, "")}
    for p in capture.parameters:
        inside = [path for path in paths if p.name.startswith(path + ".")]
        parameters_by_path[max(inside, key=len, default="")].append(p)
    missing = [path for path in paths if not any(m == path or m.startswith(path + ".") for m in capture.modules)]
    if missing:
        raise InputError(f"no module {missing[0]!r} in the capture", hint="paths such as layers.3")
    return tuple(Unit(path, tuple(ps)) for path, ps in parameters_by_path.items() if ps)


Direction = Literal["h2d", "d2h"]


def copy_signature(direction: Direction, n_bytes: int) -> Signature:
    """The operation row of a copy between host and device."""
    direction_name = "host-to-device" if direction == "h2d" else "device-to-host"
    return Signature(
        "aten.copy_.default", Kind.COPY, (), (), (("bytes", n_bytes), ("direction", direction_name)), 0.0, n_bytes, n_bytes, 1
    )


def collective_signature(op: str, payload_bytes: int, group_size: int) -> Signature:
    """The operation row of a collective."""
    attributes = (("collective", op), ("payload_bytes", payload_bytes), ("group_size", group_size))
    return Signature(f"c10d.{op}", Kind.COLLECTIVE, (), (), attributes, 0.0, float(payload_bytes), float(payload_bytes), 1)


def move_signature(op: str, n_bytes: int) -> Signature:
    """The operation row of a copy within the device that reads and writes ``n_bytes``."""
    return Signature(op, Kind.MEMORY, (), (), (("bytes", n_bytes),), 0.0, float(n_bytes), float(n_bytes), 1)


def shard_bytes(parameters: tuple[Parameter, ...], ranks: int, dtype: str = "") -> int:
    """Bytes of rank 0's shards, in ``dtype`` or the parameters' own."""
    return sum(shard_numel(p.shape, ranks) * TENSOR_BYTES[dtype or p.dtype] for p in parameters)


def transfer_of(edit: Editor, sharding: Sharding, p: PlannedTransfer) -> Transfer:
    """The transfer at its final position, after the editor has built."""
    size = sharding.ranks // sharding.group if p.replicas else sharding.group
    return Transfer(
        p.op,
        p.payload_bytes,
        size,
        p.replicas,
        int(edit.handle_ops[p.handle]),
        int(edit.handle_ops[p.after]) if p.after >= 0 else -1,
        int(edit.handle_ops[p.needed_handle]) if p.needed_handle >= 0 else int(edit.old_ops[p.needed_op]),
        p.unit,
    )
