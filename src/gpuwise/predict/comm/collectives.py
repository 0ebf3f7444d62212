"""Time of collectives inside a scale-up domain and across a scale-out network.

Payload by operation (``payload_bytes`` is always what one rank holds of the *full* buffer):

``all_reduce``      bytes of the buffer on each rank
``reduce_scatter``  bytes of the full buffer each rank gives in (``group_size`` times the shard it keeps)
``all_gather``      bytes of the full gathered buffer
``all_to_all``      bytes each rank holds and sends in total, its own part included
``broadcast``       bytes of the message
``send_recv``       bytes of the message (the group is a pair)

``ranks_per_system`` is how many members of the group live in one scale-up domain: a group of 64 with 8 per
node is hierarchical, a data-parallel group with stride 8 has one member per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.comm.fabric import (
    KNOTS,
    SWITCH_REDUCTION,
    Coefficients,
    Fabric,
    bus_factor,
    domain_time,
    log_sigmas,
    shipped,
)
from gpuwise.predict.comm.network import Local, scale_out_time
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.kernel_time import F64, KernelTime

OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
LIBRARIES = ("nccl", "custom", "vllm", "sglang", "sglang-0.5.10", "trtllm")
"""``nccl`` means the vendor's library (RCCL, oneCCL). The others are serving engines' own all-reduce kernels, which hand large
payloads to NCCL; ``sglang-0.5.10`` is SGLang before 0.5.12, ``custom`` the mean of the current three."""
_CURRENT = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCurve:
    """Seconds against payload bytes for one group on one system, linear between knots.

    ``bytes`` [K] increasing, first 0; ``seconds`` [K] non-decreasing; ``log_sigma`` [K].
    """

    bytes: F64
    seconds: F64
    log_sigmas: F64
    basis: Basis

    def time_s(self, payload_bytes: ArrayLike) -> F64:
        """[R] seconds of ``payload_bytes`` [R]; nothing to send costs nothing."""
        size = np.asarray(payload_bytes, dtype=np.float64)
        return np.interp(size, self.bytes, self.seconds) * (size > 0)

    def log_sigma(self, payload_bytes: ArrayLike) -> F64:
        """[R] standard deviation of log(measured / predicted) at ``payload_bytes`` [R]."""
        return np.interp(np.asarray(payload_bytes, dtype=np.float64), self.bytes, self.log_sigmas)


def curve(
    system: System,
    op: str,
    group_size: int,
    ranks_per_system: int,
    *,
    library: str = "nccl",
    graph: bool = False,
    concurrent: int = 1,
    element_bytes: int = 2,
) -> CollectiveCurve:
    """The curve of ``op`` for one kind of group on ``system``. Cached: a search uses a handful.

    ``concurrent``: number of such groups of one node that use its network at the same time; they share the node's NICs when
    they would need more. ``library`` chooses the kernels; ``graph`` says a CUDA graph launches them (an engine's eager
    all-reduce first copies its input). One-byte elements cannot be summed in the switch, so a reduction of them takes another
    curve. Host time to issue the call is not included (:func:`host_call_s`). Raises InputError on an unknown operation or
    library or an impossible group, UnpredictableError when the group spans systems without a network.
    """
    if op not in OPS:
        raise InputError(f"unknown collective {op!r}", hint="one of " + ", ".join(OPS))
    if library not in LIBRARIES:
        raise InputError(f"unknown collective library {library!r}", hint="one of " + ", ".join(LIBRARIES))
    if not 1 <= ranks_per_system <= group_size:
        raise InputError(
            f"a group of {group_size} cannot have {ranks_per_system} members in one system",
            hint="ranks_per_system is between 1 and group_size",
        )
    if concurrent < 1:
        raise InputError(f"{concurrent} concurrent groups", hint="at least 1")
    fabric = Fabric.of(system)
    if ranks_per_system > fabric.host_size:
        raise InputError(
            f"{ranks_per_system} ranks do not fit in one {system.name} ({fabric.host_size} accelerators)",
            hint="give the number of members in one system",
        )
    group = CollectiveShape(op, group_size, ranks_per_system, concurrent)
    if op != "all_reduce" or ranks_per_system < group_size:
        library = "nccl"
    made = _cached(fabric, group, library, graph or library == "nccl", 1 if element_bytes == 1 else 2)
    key = f"collective/{op}/{group_size}"
    return _as_measured(system.accelerator, key, made) if key in system.accelerator.corrections else made


def _as_measured(accelerator: Accelerator, key: str, made: CollectiveCurve) -> CollectiveCurve:
    """The curve as this machine's own collectives of the group were measured; never falling with the payload."""
    knots = KernelTime(made.seconds, made.log_sigmas, made.basis)
    time = corrected(accelerator, key, knots, np.maximum(made.bytes, 1.0))
    return CollectiveCurve(
        made.bytes, np.maximum.accumulate(time.time_s), np.broadcast_to(time.log_sigma, made.bytes.shape), time.basis
    )


class CollectiveShape(NamedTuple):
    """One collective of one kind of group."""

    op: str
    size: int
    ranks: int
    concurrent: int


@lru_cache(maxsize=8192)
def _cached(fabric: Fabric, group: CollectiveShape, library: str, graph: bool, element_bytes: int) -> CollectiveCurve:
    return build_curve(shipped(), fabric, group, library, graph, element_bytes)


def build_curve(
    c: Coefficients, fabric: Fabric, group: CollectiveShape, library: str, graph: bool, element_bytes: int
) -> CollectiveCurve:
    """The curve with coefficients ``c`` (calibration tries others than the shipped ones)."""
    if group.size == 1:
        return CollectiveCurve(KNOTS, np.zeros_like(KNOTS), np.zeros_like(KNOTS), "measured")
    if group.ranks == group.size:
        return _inside(c, fabric, group, library, graph, element_bytes)
    local: Local | None = None
    basis: Basis = "derived"
    if group.ranks > 1:
        local, basis = _local(c, fabric, group, element_bytes)
    seconds = scale_out_time(c, fabric, group.op, group.size, group.ranks, group.concurrent, local)
    network_basis: Basis = "derived" if fabric.network_kind in c.constants["network"] else "specified"
    basis = weakest(network_basis, basis)
    return CollectiveCurve(KNOTS, seconds, log_sigmas(c, "network", "nccl", basis), basis)


def _local(c: Coefficients, fabric: Fabric, group: CollectiveShape, element_bytes: int) -> tuple[Local, Basis]:
    """Link parameters of one system for a group that spans several."""
    inside = domain_time(c, fabric, group.op, group.ranks, "nccl", element_bytes)
    # One-byte sums cannot use the switch: their curve is the ring's.
    ring = domain_time(c, fabric, group.op, group.ranks, "nccl", 1)
    factor = bus_factor(group.op, group.ranks)
    seconds = inside.seconds
    if group.op == "all_to_all":
        seconds = np.interp(KNOTS * group.ranks / group.size, KNOTS, seconds)
    switch = inside.link_class in SWITCH_REDUCTION and element_bytes != 1
    return Local(seconds, inside.slope_s_per_byte / factor, ring.slope_s_per_byte / factor, switch), inside.basis


def _inside(
    c: Coefficients, fabric: Fabric, group: CollectiveShape, library: str, graph: bool, element_bytes: int
) -> CollectiveCurve:
    """A group within one domain or host."""
    which = _CURRENT if library == "custom" else (library,)
    parts = [domain_time(c, fabric, group.op, group.size, one, element_bytes) for one in which]
    seconds = np.exp(np.mean([np.log(p.seconds) for p in parts], axis=0)) if len(parts) > 1 else parts[0].seconds
    bases: list[Basis] = [p.basis for p in parts]
    basis = weakest(*bases)
    sigmas = log_sigmas(c, parts[0].link_class, which[-1], basis)
    if not graph:
        eager = c.constants["eager"]
        seconds = seconds + 2 * KNOTS / (eager["copy_fraction"] * fabric.memory_bytes_per_s)
        sigmas = np.maximum(sigmas, eager["log_sigma"])
    return CollectiveCurve(KNOTS, seconds, sigmas, basis)


def host_call_s(accelerator: Accelerator, library: str = "vllm", c: Coefficients | None = None) -> float:
    """Host seconds of one eager collective call from Python, below which an eager call cannot finish.

    Measured on engines' eager all-reduce of small messages. It depends on the host processor, which the
    catalogue does not know: Grace for superchips, else the hosts the tables' accelerators of that year sat
    in; without a device link engines take the longer way through NCCL.
    """
    eager = (c or shipped()).constants["eager"]
    seconds = eager["host_call_s"]
    factor = float(eager["host_call_factor"].get(library, 1.0))
    if accelerator.name.startswith(("GB2", "GB3", "GH")):
        return factor * float(seconds["grace"])
    if accelerator.link_bytes_per_s is not None:
        return factor * float(seconds["recent" if accelerator.year >= 2022 else "older"])
    if accelerator.vendor == "NVIDIA" and accelerator.year >= 2025:
        factor *= seconds["recent"] / seconds["older"]
    return factor * float(seconds["pcie"])


def collective_time(
    system: System,
    op: str,
    payload_bytes: ArrayLike,
    group_size: ArrayLike,
    ranks_per_system: ArrayLike,
    *,
    library: str = "nccl",
    graph: bool = False,
    concurrent: int = 1,
    element_bytes: int = 2,
) -> KernelTime:
    """Device time of ``op`` for arrays [R] (broadcast together) of payloads and groups; see the module's
    docstring.

    One :func:`curve` per distinct (group_size, ranks_per_system); the numbers are exactly the curve's.
    Raises what :func:`curve` raises.
    """
    size, group, ranks = np.broadcast_arrays(
        np.asarray(payload_bytes, dtype=np.float64), np.asarray(group_size), np.asarray(ranks_per_system)
    )
    size, group, ranks = np.atleast_1d(size), np.atleast_1d(group), np.atleast_1d(ranks)
    time_s, sigma = np.empty(size.shape), np.empty(size.shape)
    basis: Basis = "measured"
    pairs = group.astype(np.int64) << 32 | ranks.astype(np.int64)
    for pair in sorted(set(pairs.tolist())):
        here = pairs == pair
        n, r = pair >> 32, pair & 0xFFFFFFFF
        one = curve(system, op, n, r, library=library, graph=graph, concurrent=concurrent, element_bytes=element_bytes)
        time_s[here], sigma[here] = one.time_s(size[here]), one.log_sigma(size[here])
        basis = weakest(basis, one.basis)
    return KernelTime(time_s, sigma, basis)
