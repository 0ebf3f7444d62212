"""First physical version: latency plus bytes over bus bandwidth. Replaced by fitted curves."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.facts.systems import System
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernel_time import F64


class Fabric(NamedTuple):
    """What of a system its collectives depend on (hashable)."""

    family: str
    link_kind: str
    topology: str
    link_bytes_per_s: float
    domain_size: int
    count: int
    network_bytes_per_s: float
    network_kind: str

    @classmethod
    def of(cls, system: System) -> Fabric:
        return cls(
            system.accelerator.family, system.link_kind, system.topology, system.link_bytes_per_s,
            system.domain_size, system.count, system.network_bytes_per_s, system.network_kind,
        )  # fmt: skip


_FACTOR = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0}


def bus_bytes(op: str, n: int) -> float:
    """Bytes a rank's link carries in one direction per payload byte (nccl-tests' bus bandwidth factor)."""
    return _FACTOR[op] * (n - 1) / n if op in _FACTOR else 1.0


def build_curve(
    fabric: Fabric, op: str, n: int, ranks: int, library: str, graph: bool, concurrent: int
) -> tuple[F64, F64, F64, Basis]:
    """(bytes, seconds, log sigma, basis) of the knots."""
    knots = np.concatenate([[0.0], 2.0 ** np.arange(8, 41)])
    if n == 1:
        return knots, np.zeros_like(knots), np.full_like(knots, 0.1), "specified"
    latency = 8e-6 * (1 + 0.5 * math.log2(n))
    rate = 0.8 * fabric.link_bytes_per_s
    if ranks < n:
        if fabric.network_bytes_per_s <= 0:
            raise UnpredictableError(
                "no network between systems", "the group spans systems that have no network",
                hint="choose a system with a network, or keep the group inside one",
            )  # fmt: skip
        share = min(ranks * fabric.network_bytes_per_s, fabric.count * fabric.network_bytes_per_s / concurrent)
        across = share if op != "all_to_all" else share / ranks * (n - 1) / (n - ranks)
        rate = min(rate, 0.85 * across)
        latency += 6e-6 * math.log2(-(-n // ranks)) + 10e-6
    return knots, latency + knots * bus_bytes(op, n) / rate, np.full_like(knots, 0.25), "specified"
