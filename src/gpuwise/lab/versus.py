"""The same product measured on this machine and predicted on others, with the bottleneck of each.

Predictions are those of ``gpuwise op`` (``predict.kernels.single`` and ``predict.cpu``); this module has no rates of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.naming import USUAL, find_accelerator
from gpuwise.plan.one_op import OperationTime, matmul
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.predict.stack_costs import find_stack_costs

REPEATS, PATIENCE_S = 7, 2.0
"""Runs that are measured, and after how many seconds of them no further one begins."""
BUSY = 0.05
"""Share of the cores taken by others that is worth a word."""


@dataclass(frozen=True, slots=True)
class Versus:
    """One device: seconds of the product, and where it is a GPU, of its launch and of the copies of three matrices."""

    device: str
    basis: str
    """``measured`` here, or the basis of the prediction."""
    time_s: float
    launch_s: float
    copy_s: float | None
    why: str

    @property
    def with_copies_s(self) -> float:
        return self.time_s + self.launch_s + (self.copy_s or 0.0)

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "with_copies_s": self.with_copies_s}


def compare_product(n: int, gpus: Sequence[str], cpu: Cpu | None = None) -> list[Versus]:
    """This CPU first (measured), then this machine's GPU if PyTorch reaches one (measured), then the predicted ones.

    Raises UnknownNameError, AmbiguousNameError for a name, UnpredictableError for a GPU without an fp32 rate.
    """
    cards = [find_accelerator(name, prefer=USUAL) for name in gpus]
    rows = [_here(n), *_gpu_here(n)]
    if cpu is not None:
        predicted = matmul(n, n, n, "fp32", [cpu]).rows[0]
        rows.append(Versus(predicted.device, predicted.time_s.basis, predicted.time_s.expected, 0.0, None, _why(predicted, n)))
    return rows + [_predicted(card, n) for card in cards]


def measure_product(n: int) -> float:
    """Least seconds of numpy's fp32 product of n x n here."""
    dice = np.random.default_rng(1)
    a, b = (dice.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    out, taken = np.empty_like(a), list[float]()
    np.matmul(a, b, out=out)
    while len(taken) < REPEATS and sum(taken) < PATIENCE_S:
        began = time.perf_counter()
        np.matmul(a, b, out=out)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _here(n: int) -> Versus:
    from gpuwise.machine.bench.subjects import this_processor
    from gpuwise.machine.bench.watch import Watch

    subject = this_processor()
    with Watch(subject) as watch:
        seconds = measure_product(n)
    why = "numpy's product, on its library's number of threads here"
    busy = watch.conditions.get("others_busy")
    if isinstance(busy, float) and busy > BUSY:
        why += f"; other programs took {busy:.0%} of the cores meanwhile, so it is too slow: measure again when they rest"
    return Versus(f"{subject.name} (this CPU)", "measured", seconds, 0.0, None, why)


def _gpu_here(n: int) -> list[Versus]:
    """This machine's first GPU, by the same measurement as ``gpuwise bench``; none where PyTorch reaches none."""
    from gpuwise.machine.bench.cases import product_case
    from gpuwise.machine.bench.run import Limits, run_case
    from gpuwise.machine.bench.subjects import find_subjects, has_torch
    from gpuwise.machine.devices.find import find_devices

    try:
        backends = find_devices().backends
    except ImportError:
        return []
    try:
        seen = any(backend.identities() for backend in backends)
        subject = next((s for s in find_subjects(backends) if s.kind == "cuda"), None) if seen and has_torch() else None
        if subject is None:
            return []
        record = run_case(product_case("fp32", n, n, n, frozenset({"cuda"})), subject, Limits(each_s=PATIENCE_S))
    finally:
        for backend in backends:
            backend.close()
    if record.time_s is None:
        return []
    launch, copies = launch_s(), None
    if subject.accelerator is not None:
        copies = copies_s(subject.accelerator, 8.0 * n * n, 4.0 * n * n)
    why = "as `gpuwise bench` measures it"
    return [Versus(f"{subject.name} (this GPU)", "measured", record.time_s, launch, copies, why)]


def launch_s() -> float:
    """Seconds of the host to issue a kernel."""
    return find_stack_costs("eager").launch_s


def copies_s(a: Accelerator, there: float, back: float) -> float:
    """Seconds of two copies, of bytes to the GPU and from it; 0 where the GPU works in the host's memory.

    Each is issued as a kernel is: 64 KiB of pinned memory take 7.1 us to an H100, of which its link needs 1.2
    (benchmarks/records/gpu/card_2026-11-26.md)."""
    if a.unified_memory:
        return 0.0
    moved = transfer_time(a, there, "h2d").time_s[0] + transfer_time(a, back, "d2h").time_s[0]
    return float(moved) + 2 * launch_s()


def _predicted(a: Accelerator, n: int) -> Versus:
    from gpuwise.facts.hardware.systems import Cluster, default_system

    row = matmul(n, n, n, "fp32", [Cluster(default_system(a), 1)]).rows[0]
    copies = copies_s(a, 8.0 * n * n, 4.0 * n * n)
    return Versus(a.name, row.time_s.basis, row.time_s.expected, launch_s(), copies, _why(row, n))


def _why(row: OperationTime, n: int) -> str:
    """In words: what binds, and how far from the peak."""
    share = f"{100 * row.share_of_peak:.0f} % of its peak"
    return {
        "compute": f"arithmetic binds: {share}; {2 * n / 12:.0f} FLOP for each byte that must move",
        "cache": f"the L2 cache binds: {share}; the matrices fit in it",
        "memory": f"memory binds: {share}; the matrices are too small to reuse what is read",
        "latency": f"it waits: {share}; {n:,} x {n:,} has too few tiles to fill it",
        "launch": f"the launch takes longer than the product: {share}",
    }.get(row.bound, share)
