"""Time of collectives inside a scale-up domain and across a scale-out network.

Payload by operation (``payload_bytes`` is always what one rank holds of the *full* buffer):

``all_reduce``      bytes of the buffer on each rank
``reduce_scatter``  bytes of the full buffer each rank gives in (``group_size`` times the shard it keeps)
``all_gather``      bytes of the full gathered buffer
``all_to_all``      bytes each rank holds and sends in total, its own part included
``broadcast``       bytes of the message
``send_recv``       bytes of the message (the group is a pair)

``ranks_per_system`` is how many members of the group live in one scale-up domain: a group of 64 with 8 per node is
hierarchical, a data-parallel group with stride 8 has one member per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.errors import InputError
from gpuwise.facts.systems import System
from gpuwise.predict.collectives_fabric import Fabric, build_curve
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernel_time import F64, KernelTime

OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
LIBRARIES = ("nccl", "custom", "vllm", "sglang", "trtllm")


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
) -> CollectiveCurve:
    """The curve of ``op`` for one kind of group on ``system``. Cached: a search asks for a handful.

    ``concurrent`` is how many such groups of one node use its network at the same time; they share the node's cards
    when they would need more than it has. ``library`` and ``graph`` choose the kernels (``custom`` is the one-shot or
    two-shot all-reduce of serving engines; others fall back to NCCL).
    Raises InputError on an unknown operation or library, or a group that cannot exist.
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
    return _cached(Fabric.of(system), op, group_size, ranks_per_system, library, graph, concurrent)


@lru_cache(maxsize=4096)
def _cached(
    fabric: Fabric, op: str, group_size: int, ranks_per_system: int, library: str, graph: bool, concurrent: int
) -> CollectiveCurve:
    return CollectiveCurve(*build_curve(fabric, op, group_size, ranks_per_system, library, graph, concurrent))


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
) -> KernelTime:
    """Device time of ``op`` for arrays [R] (broadcast together) of payloads and groups; see the module's docstring.

    One :func:`curve` per distinct (group_size, ranks_per_system); the numbers are exactly the curve's.
    Raises what :func:`curve` raises.
    """
    size, group, ranks = np.broadcast_arrays(
        np.asarray(payload_bytes, dtype=np.float64), np.asarray(group_size), np.asarray(ranks_per_system)
    )
    size, group, ranks = np.atleast_1d(size), np.atleast_1d(group), np.atleast_1d(ranks)
    time_s, sigma = np.empty(size.shape), np.empty(size.shape)
    basis: Basis = "measured"
    for n, r in np.unique(np.stack([group.ravel(), ranks.ravel()]), axis=1).T:
        here = (group == n) & (ranks == r)
        one = curve(system, op, int(n), int(r), library=library, graph=graph, concurrent=concurrent)
        time_s[here], sigma[here] = one.time_s(size[here]), one.log_sigma(size[here])
        basis = weakest(basis, one.basis)
    return KernelTime(time_s, sigma, basis)
