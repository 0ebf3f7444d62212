"""Output of nccl-tests (NVIDIA/nccl-tests src/common.cu): times of collectives by size.

Which collective it is follows from its two bandwidths: of an all-reduce the bus moves 2 (n - 1) / n of the algorithm's bytes
(doc/PERFORMANCE.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwise.machine.model_speeds.fields import refuse

PROGRAM = "nccl-tests"
_RANK = re.compile(r"^#\s+Rank\s+\d+.*? on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+?)\s*$", re.MULTILINE)
_LINE = re.compile(
    r"^\s*(?P<size>\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+(?P<time>[\d.]+)\s+(?P<alg>[\d.]+)\s+(?P<bus>[\d.]+)\s+\S+\s+[\d.]+",
    re.MULTILINE,
)
_BUILD = re.compile(r"NCCL version (\S+)|nccl-library=(\d+)")
_PRECISION = 0.02
"""Of the ratio of two rounded bandwidths."""


@dataclass(frozen=True, slots=True)
class Timed:
    """All-reduces over ``ranks`` GPUs of one kind, on ``hosts``: bytes and seconds out of place."""

    device: str
    ranks: int
    hosts: int
    build: str
    rows: tuple[tuple[float, float], ...]


def is_nccl_tests(text: str) -> bool:
    """Whether the text has the table of its tests."""
    return "busbw" in text and "#wrong" in text


def read_nccl_tests(text: str, name: str) -> Timed:
    """The all-reduces of ``text``, called ``name`` in errors. Raises FileError for another collective, GPUs that differ, and an
    output without ranks or times."""
    ranks = _RANK.findall(text)
    devices = sorted({device for _, device in ranks})
    if len(devices) != 1:
        refuse(name, f"names {len(devices)} kinds of GPUs; one is read")
    n = len(ranks)
    if n < 2:
        refuse(name, "has one rank, which exchanges nothing")
    rows: list[tuple[float, float]] = []
    for found in _LINE.finditer(text):
        size, time_us, alg, bus = (float(found[part]) for part in ("size", "time", "alg", "bus"))
        if min(size, time_us, alg) <= 0 or alg < 1.0:  # too small for two digits of a bandwidth
            continue
        if abs(bus / alg / (2 * (n - 1) / n) - 1) > _PRECISION:
            refuse(name, "is of another collective than all_reduce_perf")
        rows.append((size, time_us * 1e-6))
    if not rows:
        refuse(name, "has no size with a bandwidth of at least 1 GB/s")
    build = _BUILD.search(text)
    version = "" if build is None else build[1] or build[2]
    return Timed(devices[0], n, len({host for host, _ in ranks}), version, tuple(rows))
