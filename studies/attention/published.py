"""Published figures of attention's training kernels.

The figures (attention_published.csv) are typed from papers, vendors' and authors' benchmark files and issue
threads, each row with its source. A row takes part in the fit when its (family, implementation) lists its
device in :data:`FITTED`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.attention.features import Shape

TABLE = Path(__file__).with_name("attention_published.csv")
FITTED: dict[str, dict[str, tuple[str, ...]]] = {
    "Hopper": {
        "fa3": ("h100-sxm-80gb",),
        "fa2": ("h100-sxm-80gb",),
        "triton": ("h100-sxm-80gb",),
        "cudnn": ("h200-sxm-141gb",),
    },
    "Blackwell": {"cudnn": ("gb200",), "fa4": ("b200-sxm",), "fa2": ("b200-sxm",)},
    "Ampere": {"fa2": ("rtx-a5000",)},
}
WARP_LEVEL = ("Ampere", "Ada", "Blackwell-RTX")
"""Families whose units issue matrix instructions per warp at the same width: one set of shares, from a GA10x
card."""
SOURCES = {
    "fa3-paper": "FlashAttention-3 (arXiv 2407.08608) figure 5 and 6 bar labels",
    "cudnn-2026-04": "NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training, 2026-04-24",
    "cudnn-2025": "NVIDIA/cudnn-frontend benchmark/sdpa_benchmark 2025",
    "cudnn-2026-02": "NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training, 2026-02-27",
    "cudnn-9.10": "NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training, 2025-05 (cuDNN 9.10)",
    "fa-1310": "Dao-AILab/flash-attention issue 1310",
    "ring-10": "gpu-mode/ring-attention issue 10 (benchmark_flash_attention.py)",
    "fa-1589": "Dao-AILab/flash-attention issue 1589 (benchmark_flash_attention.py)",
    "fa-2280": "Dao-AILab/flash-attention pull request 2280",
    "fa-2270": "Dao-AILab/flash-attention pull request 2270",
    "nguyen": "G. Nguyen, Writing Speed-of-Light Flash Attention for 5090 (2025), 400 W",
}
"""Where the figures were published, by the table's last column."""


@dataclass(frozen=True, slots=True)
class PublishedKernel:
    """One published figure."""

    accelerator: Accelerator
    implementation: str
    dtype: str
    shape: Shape
    causal: bool
    phase: str
    seconds: float
    source: str


def read_published() -> list[PublishedKernel]:
    """Every row of the table that ships with the package."""
    runs: list[PublishedKernel] = []
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            shape = Shape(
                *(
                    np.array([float(row[c])])
                    for c in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_head_dim", "window")
                )
            )
            runs.append(
                PublishedKernel(
                    accelerators()[row["accelerator"]],
                    row["implementation"],
                    row["dtype"],
                    shape,
                    row["causal"] == "1",
                    row["phase"],
                    float(row["time_ms"]) * 1e-3,
                    SOURCES[row["source"]],
                )
            )
    return runs


def takes_part(row: PublishedKernel) -> bool:
    """Whether the fit may see ``row``."""
    here = FITTED["Ampere"] if row.accelerator.family in WARP_LEVEL else FITTED.get(row.accelerator.family, {})
    covered = row.dtype == "bf16" or (row.dtype == "fp8" and row.phase == "backward")
    return covered and row.accelerator.id in here.get(row.implementation, ())
