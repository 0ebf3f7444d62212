"""Collectives that leave the scale-up domain: NCCL's ring and tree over the scale-out network.

``n`` ranks sit ``r`` to a system in ``m`` systems; each has its own network card (rail-optimised), so a
group's share of a system's network is ``r`` cards, less when ``concurrent`` groups of the system need more
than it has. Every algorithm is latency + bytes x the slower of the two levels, as in NCCL's own tuning model:

    ring   2 (n - m) intra + 2 m inter steps (half for gather and scatter); 2 (n-1)/n S over the share
    tree   2 ((r - 1) intra + log2(m) inter) steps; on two systems with in-switch reduction S over the share,
    else a
           fraction of the ring's bandwidth
    low    NCCL's low-latency protocols: short steps, a fraction of the bandwidth
    all-to-all   the part that leaves, S (n - r)/n, over each rank's own card

SHARP in the network switches is not assumed. Steps and fractions by network kind are in the coefficient file.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.predict.comm.fabric import KNOTS, Coefficients, Fabric, bus_factor
from gpuwise.predict.kernels.kernel_time import F64


def network_share(fabric: Fabric, ranks: int, concurrent: int) -> float:
    """Bytes/s that one group may send from one system.

    Raises UnpredictableError when the systems have no network.
    """
    if not fabric.network_bytes_per_s > 0 or fabric.network_kind == "none":
        raise UnpredictableError(
            "no network between systems",
            "the group spans systems that have no network between them",
            hint="choose a system with a network, or keep the group inside one system",
        )
    return min(ranks, fabric.host_size / concurrent) * fabric.network_bytes_per_s


class Local(NamedTuple):
    """The same payload inside one system, and the seconds per byte of bus traffic its links allow."""

    seconds: F64
    switch_s_per_byte: float
    """Seconds per byte with in-switch reduction, if available."""
    ring_s_per_byte: float
    has_switch_reduction: bool


def scale_out_time(
    coefficients: Coefficients,
    fabric: Fabric,
    op: str,
    n: int,
    ranks: int,
    concurrent: int,
    local: Local | None,
) -> F64:
    """[K] seconds of ``op`` over ``ceil(n / ranks)`` systems; ``local`` is None with one rank per system."""
    share = network_share(fabric, ranks, concurrent)
    kinds = coefficients.constants["network"]
    c = kinds.get(fabric.network_kind, kinds["ethernet"])
    m = -(-n // ranks)
    if op == "all_reduce":
        seconds = _all_reduce(c, n, ranks, m, share, local)
    elif op == "all_to_all":
        leaving = KNOTS * (n - ranks) / n
        seconds = c["pair_base_s"] + c["pair_rank_s"] * n + leaving / (share / ranks * c["pair_fraction"])
    elif op == "send_recv":
        seconds = c["send_base_s"] + KNOTS / (share * c["send_fraction"])
    else:
        seconds = _ring_half(c, op, n, m, share, local.ring_s_per_byte if local else 0.0)
    return np.maximum.accumulate(np.maximum(seconds, local.seconds) if local else seconds)


def _all_reduce(c: dict[str, float], n: int, ranks: int, m: int, share: float, local: Local | None) -> F64:
    hops = math.log2(m)
    ring_s = c["base_s"] + 2 * (n - m) * c["inner_step_s"] + 2 * m * c["ring_step_s"]
    tree_s = c["tree_base_s"] + 2 * ((ranks - 1) * c["inner_tree_step_s"] + hops * c["tree_step_s"])
    low_s = c["low_base_s"] + hops * c["low_step_s"]
    wire = KNOTS * bus_factor("all_reduce", n)
    ring = ring_s + wire * max(local.ring_s_per_byte if local else 0.0, 1 / (share * c["ring_fraction"]))
    inside = local.switch_s_per_byte if local else 0.0
    if m == 2 and (local is None or local.has_switch_reduction):
        # Two systems exchange S once, each way, and the switches do the rest.
        tree = tree_s + np.maximum(KNOTS / (share * c["ring_fraction"]), wire * inside)
    else:
        # Up and down the same links of a system.
        tree = tree_s + wire * max(1 / (share * c["tree_fraction"]), 2 * inside)
    low = low_s + wire / (share * c["low_fraction"])
    return np.minimum(np.minimum(ring, tree), low)


def _ring_half(c: dict[str, float], op: str, n: int, m: int, share: float, inside: float) -> F64:
    simple_s = c["half_base_s"] + (n - m) * c["inner_step_s"] + (m - 1) * c["half_step_s"]
    low_s = c["low_base_s"] / 2 + (n - m) * c["inner_low_step_s"] + (m - 1) * c["half_low_step_s"]
    wire = KNOTS * bus_factor(op, n)
    simple = simple_s + wire * max(inside, 1 / (share * c["half_fraction"]))
    return np.minimum(simple, low_s + wire / (share * c["half_low_fraction"]))
