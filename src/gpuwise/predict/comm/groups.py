"""Where the ranks of each parallel group sit. Order of ranks, innermost first: tensor, context, data, pipeline.

Expert groups run over tensor, context and data ranks together (with an expert tensor degree: over context and data ranks).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import System

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


class RankGroup(NamedTuple):
    """``size`` members, ``local`` of them inside one scale-up domain, ``concurrent`` such groups in a domain."""

    size: I64
    local: I64
    concurrent: I64


def _group(domain: int, size: I64, stride: I64) -> RankGroup:
    local = np.minimum(size, np.maximum(domain // np.maximum(stride, 1), 1))
    local = largest_divisor(size, local)
    return RankGroup(size, local, np.maximum(np.minimum(domain, size * stride) // np.maximum(local, 1), 1))


def largest_divisor(n: I64, limit: I64) -> I64:
    """The largest divisor of each ``n`` that is at most ``limit``: schedulers fill domains evenly (64 of an NVL72)."""
    n, limit = np.broadcast_arrays(n, limit)
    out = limit.copy()
    for value, top in np.unique(np.stack([n.ravel(), limit.ravel()]), axis=1).T if (n % limit != 0).any() else ():
        best = next(d for d in range(int(top), 0, -1) if value % d == 0)
        out[(n == value) & (limit == top)] = best
    return out


def neighbours(system: System, size: I64) -> RankGroup:
    """Groups of ``size`` accelerators next to one another: what a plain program's collectives run over."""
    return _group(system.domain_size, size, np.ones_like(size))


def tensor_group(system: System, tp: I64) -> RankGroup:
    """Ranks of tensor parallelism: next to one another."""
    return neighbours(system, tp)


def context_group(system: System, tp: I64, cp: I64) -> RankGroup:
    """Ranks of context parallelism: ``tp`` apart."""
    return _group(system.domain_size, cp, tp)


def expert_group(system: System, ep: I64, etp: int = 1) -> RankGroup:
    """Ranks of expert parallelism: next to one another, or ``etp`` apart where experts are divided over tensor ranks."""
    return _group(system.domain_size, ep, np.full_like(ep, etp))


def data_group(system: System, tp: I64, cp: I64, dp: I64) -> RankGroup:
    """Dense gradients are summed over data and context ranks."""
    return _group(system.domain_size, dp * cp, tp)


def expert_data_group(system: System, tp: I64, cp: I64, dp: I64, ep: I64) -> RankGroup:
    """Replicas of one expert shard."""
    return _group(system.domain_size, np.maximum(dp * cp * tp // ep, 1), ep)


def pipeline_neighbours_local(system: System, tp: I64, cp: I64, dp: I64) -> NDArray[np.bool_]:
    """Whether the next pipeline stage is in the same scale-up domain."""
    return tp * cp * dp < system.domain_size


def travelling(copies: I64, reachable: F64, size: I64, local: I64) -> F64:
    """Share of an exchange's payload that travels when each of a token's ``copies`` to one place is sent once; 1 where
    ``copies`` is 0.

    Places are the domains of the group, or its ranks where it is inside one; ``reachable`` of them can have any. Of m places
    that k copies go to at random, m (1 - (1 - 1/m)^k) have one (DeepEP, github.com/deepseek-ai/DeepEP: one copy to a node,
    which forwards it).
    """
    domains = size // np.maximum(local, 1)
    places = np.maximum(np.where(domains > 1, domains, size) * reachable, 1.0)
    k = np.maximum(copies, 1)
    distinct = places * (1.0 - (1.0 - 1.0 / places) ** k)
    return np.where(copies > 0, distinct / k, 1.0)
