"""Shares of a processor's peak that published measurements reach (``coefficients/cpu.json``).

Per kind of work the share is reached / peak at the all-core clock (for streams: over the channels' bandwidth). Readings of one
processor are first averaged in log, then processors: the share is their geometric mean, its width that of one more processor.
``data/cpu_measured.csv`` holds every row with its source. Refit: ``python -m studies.cpu_fit``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.facts.loading import Field, Record, parse_csv
from gpuwise.facts.sources import sources
from gpuwise.interval import Z80

DATA = Path(__file__).parent / "data" / "cpu_measured.csv"
SCHEMA = {
    "kind": Field("text", choices=("product", "matrix", "network", "stream")),
    "reached": Field("number"),
    "notes": Field("text", required=False),
    **dict.fromkeys(("cpu", "dtype", "source"), Field("text")),
}
MATRIX_UNITS = {"Apple": "matrix-apple", "Intel": "matrix-intel"}
LEAST_SIGMA = {"matrix-intel": 0.5, "network": 0.25}
"""Judgement, not fit: kinds read on one to three processors, whose own spread says too little. AMX products
of PyTorch ran at a quarter of the fastest ones (same source)."""


def fit() -> dict[str, Any]:
    """The coefficient document."""
    log_shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    cited: set[str] = set()
    for row in rows():
        cpu = find_cpu(row.text("cpu"))
        kind = MATRIX_UNITS[cpu.vendor] if row.text("kind") == "matrix" else row.text("kind")
        log_shares[kind][cpu.id].append(math.log(row.number("reached") * 1e9 / peak_of(cpu, row)))
        cited.add(row.text("source"))
    shares: dict[str, Any] = {}
    for kind, by_cpu in sorted(log_shares.items()):
        mean, spread = predicted([sum(logs) / len(logs) for logs in by_cpu.values()])
        shares[kind] = {
            "share": round(math.exp(mean), 4),
            "log_sigma": round(max(spread, LEAST_SIGMA.get(kind, 0.0)), 4),
            "measured": sorted(by_cpu),
        }
    return {
        "shares": shares,
        "fork_s": 1e-5,
        "call_s": 1.6e-6,
        "provenance": {
            "sources": {key: sources()[key].title for key in sorted(cited)},
            "method": "geometric mean over processors of reached / peak; studies/cpu_fit.py",
            "fork_s": "estimate: waking and joining a pool of threads",
            "call_s": "numpy's fp32 product of 16 x 16 on an EPYC (Zen 3): benchmarks/records/lab/lab_2026-11-28.md",
        },
    }


def predicted(values: list[float]) -> tuple[float, float]:
    """Mean of ``values`` and the sigma of one more of them, such that the normal 80 % interval holds what
    Student's t says: s sqrt(1 + 1/n) t / z, with t / z = 1 + (z^2 + 1) / (4 (n - 1)) (Cornish-Fisher), and four in five
    of those left out in turn."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0.0
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    student = spread * math.sqrt(1 + 1 / n) * (1 + (Z80**2 + 1) / (4 * (n - 1)))
    left_out = sorted(abs(v - (mean * n - v) / (n - 1)) for v in values)
    return mean, max(student, left_out[math.ceil(0.8 * n) - 1] / Z80)


def rows() -> list[Record]:
    """The measured rows. Raises FieldError."""
    return parse_csv(DATA.read_text(encoding="utf-8"), SCHEMA, DATA.name)


def peak_of(cpu: Cpu, row: Record) -> float:
    """What the reading is a share of: FLOP/s of its format, or bytes/s."""
    if row.text("kind") == "stream":
        return cpu.memory_bandwidth_bytes_per_s
    if row.text("dtype") == "fp64":
        return cpu.peak("fp32") / 2  # half as many lanes
    return cpu.peak(row.text("dtype"))


if __name__ == "__main__":
    from studies.coefficient_files import write

    write("cpu", fit())
