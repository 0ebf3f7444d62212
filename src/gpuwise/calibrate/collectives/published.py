"""Published figures of collectives across systems and of host copies, each with its source.

Bus bandwidth as nccl-tests defines it: all-reduce 2 (n-1)/n S/t, others (n-1)/n S/t.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuwise.predict.comm.fabric import bus_factor
from gpuwise.units import GIB, GIGA, MIB

AWS_SOURCE = (
    "github.com/crazyguitar/aws-gpu-communication-benchmark data/, 2025-10, CC BY 4.0: nccl-tests in place, "
    "p5.48xlarge (8 H100, EFA 8x400 Gb/s)"
)
AWS_SIZES_MIB = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
AWS_P5: dict[str, dict[int, tuple[float, ...]]] = {
    "all_reduce": {
        2: (147.2, 226, 300.3, 365.8, 396.8, 436, 444.6, 465.6, 477.7),
        4: (100.2, 152.6, 229.8, 274.1, 278.7, 280.3, 347.6, 354.2, 357.1),
        8: (89.6, 102.5, 154.3, 234.2, 271.6, 273.7, 279.6, 351.7, 353.6),
        16: (77.8, 96.1, 128.7, 148.3, 230.4, 268, 274.4, 311.6, 353.9),
        32: (66, 82.9, 117.5, 139.5, 160.9, 220.9, 270.7, 299.8, 321.4),
    },
    "all_gather": {
        2: (136.4, 204.1, 237.8, 214.1, 276.8, 325.8, 334.3),
        4: (84.7, 144.1, 209.1, 255, 219.5, 288.8, 331.1),
        8: (45.8, 87, 144.4, 214, 262.8, 226.2, 295.2),
        16: (25.5, 46.6, 87.3, 146.7, 221.4, 261.4, 264.5),
        32: (12.7, 24.5, 45.9, 88, 148.1, 225.4, 263.7),
    },
    "all_to_all": {
        2: (47.5, 62.1, 69.4, 74, 75.8, 77.8, 79.3),
        4: (39.1, 43, 52.2, 54.1, 53.6, 53.6, 54),
        8: (31.8, 35.1, 36.2, 44.7, 46.2, 48.4, 50),
        16: (25.8, 26.2, 31.7, 34.7, 40.2, 42.5, 44.2),
        32: (20.2, 25, 26.4, 30.4, 32.8, 38.7, 41.1),
    },
}
"""GB/s by operation, number of nodes and size."""


class PublishedCollective(NamedTuple):
    """One figure: ``ranks_per_system`` of ``group_size`` on ``system`` (a key of the scorer's systems)."""

    system: str
    op: str
    group_size: int
    ranks_per_system: int
    payload_bytes: float
    seconds: float
    source: str

    @classmethod
    def bus(cls, system: str, op: str, n: int, r: int, size: float, gb_per_s: float, source: str) -> PublishedCollective:
        return cls(system, op, n, r, size, size * bus_factor(op, n) / (gb_per_s * GIGA), source)


_DSTACK, _AWSOME = (
    "dstackai/dstack#3961, 2026-06, 2 nodes",
    "awslabs/awsome-distributed-ai#1255, 2026-09, 2 nodes",
)


def fitted_on() -> list[PublishedCollective]:
    """The rows the network model is fitted on, all on EFA."""
    return [
        PublishedCollective("b200 efa 400", "all_reduce", 16, 8, 256, 57.1e-6, _DSTACK),
        PublishedCollective.bus("b300 efa 800", "all_reduce", 16, 8, 8 * MIB, 90.5, _AWSOME),
    ] + [
        PublishedCollective.bus("h100 efa 400", op, 8 * nodes, 8, mib * MIB, figure, AWS_SOURCE)
        for op, by_nodes in AWS_P5.items()
        for nodes, figures in by_nodes.items()
        for mib, figure in zip(AWS_SIZES_MIB, figures, strict=False)
    ]


_CW = "github.com/coreweave/nccl-tests README, 2025"
OTHERS: tuple[PublishedCollective, ...] = (
    # 72 and 1440 GB200 in NVL72 racks, 400 Gb/s InfiniBand per GPU, NCCL 2.26.2.
    PublishedCollective("gb200 nvl72", "all_reduce", 72, 72, 512 * MIB, 1835.9e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 72, 72, GIB, 2924.7e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 72, 72, 4 * GIB, 10141e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 72, 72, 8 * GIB, 20006e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 144, 72, 512 * MIB, 2093.7e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 144, 72, 8 * GIB, 21525e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 1440, 72, 512 * MIB, 7145.8e-6, _CW),
    PublishedCollective("gb200 nvl72", "all_reduce", 1440, 72, 8 * GIB, 44930e-6, _CW),
    # 96 H100, 8x400 Gb/s InfiniBand per node.
    PublishedCollective("h100 infiniband 400", "all_reduce", 96, 8, 512 * MIB, 2979.7e-6, _CW),
    PublishedCollective("h100 infiniband 400", "all_reduce", 96, 8, GIB, 5882.2e-6, _CW),
    PublishedCollective("h100 infiniband 400", "all_reduce", 96, 8, 8 * GIB, 44094e-6, _CW),
    PublishedCollective.bus("h100 infiniband 400", "all_reduce", 16, 8, 16 * GIB, 470, "NVIDIA/nccl-tests#309, 2025-05"),
    PublishedCollective.bus("h100 infiniband 400", "all_reduce", 32, 8, 16 * GIB, 365.8, "NVIDIA/nccl-tests#309, 2025-05"),
    PublishedCollective("h100 infiniband 400", "all_reduce", 128, 8, 128, 62.2e-6, "NVIDIA/nccl#1469, 2024-10, 16 nodes"),
    PublishedCollective("h100 infiniband 400", "all_reduce", 128, 8, 4096, 76.6e-6, "NVIDIA/nccl#1469, 2024-10, 16 nodes"),
    PublishedCollective.bus("h100 infiniband 400", "all_reduce", 128, 8, 64 * MIB, 150, "NVIDIA/nccl#1469, 2024-10, 16 nodes"),
    PublishedCollective("h20 infiniband 400", "all_reduce", 16, 8, 512, 46.5e-6, "NVIDIA/nccl#1244, 2024-04, 2 nodes"),
    PublishedCollective("h20 infiniband 400", "all_reduce", 16, 8, 128, 47.1e-6, "NVIDIA/nccl#1244, 2024-04, 2 nodes"),
    # A100 nodes with four 200 Gb/s cards: 12.5 GB/s per GPU.
    PublishedCollective(
        "a100 infiniband 100",
        "all_reduce",
        24,
        8,
        133169160,
        2660.4e-6,
        "NVIDIA/nccl-tests#119, 2022-11, 3 nodes",
    ),
    PublishedCollective.bus("a100 infiniband 100", "all_reduce", 16, 8, 8 * GIB, 91, "NVIDIA/nccl-tests#100, 2022-01, 2 nodes"),
    PublishedCollective.bus("v100 mesh", "all_reduce", 8, 8, 512 * MIB, 134, "vTrain trace/v100, MIT, 8 of a hybrid cube mesh"),
)
"""Rows that only check the model."""

NCCL_STEPS: dict[str, float] = {
    "inner_step_s": 3.4e-6,
    "inner_tree_step_s": 4.0e-6,
    "inner_low_step_s": 0.6e-6,
    "ring_step_s": 14e-6,
    "half_step_s": 14e-6,
    "half_low_step_s": 2.7e-6,
    "tree_step_s": 14e-6,
    "base_s": 8.4e-6,
    "tree_base_s": 8.4e-6,
    "half_base_s": 8.4e-6,
    "half_low_fraction": 0.1,
}
"""Seconds of a step inside a node and across InfiniBand, and the ring's low-latency share of 400 GB/s
(llMaxBws 45 and 35 GB/s on 2 and 4 Hopper nodes): NCCL's own tuning constants (src/graph/tuning.cc, BSD)."""
NVLINK_RING_STEP_S = NCCL_STEPS["inner_step_s"]
FILL_BYTES = 64 * MIB
"""Payload from which a ring's pipeline is filled on every channel (the 72-rank figures above, 512 MiB and up,
and the 8-rank tables, which show no step term below it)."""

LOW_LATENCY: dict[str, float] = {"low_base_s": 42e-6, "low_step_s": 5e-6}
"""All-reduce of a few bytes: 47 us on 2 nodes (NVIDIA/nccl#1244, #182), 62 us on 16 (nccl#1469): 42 + 5
log2(nodes)."""
LINE_FRACTION: dict[str, float] = {"infiniband": 0.96, "roce": 0.92, "ethernet": 0.6}
"""Share of the line rate for large messages. InfiniBand: 24 of 25 GB/s per 200 Gb/s card, 46-49 of 50 per 400 Gb/s
(NVIDIA/nccl-tests#119, #252, #290). RoCE: NVIDIA/nccl#495 reads 0.75 as a little low; between. TCP: NVIDIA/nccl#209."""

XGMI_FRACTION = 0.75
"""48 of 64 GB/s per link (rocm.blogs.amd.com, Understanding RCCL Bandwidth and xGMI Performance on MI300X,
2025-03)."""
GEFORCE_PCIE: dict[int, float] = {4: 35 / 63, 8: 28 / 63}
"""Bus bandwidth over PCIe 5 x16 of 4 and 8 GeForce 5090, whose driver has no peer access (NVIDIA/nccl#1639,
2025-03)."""
