"""The same product on the processor and on GPUs: those here as measured, those that are not as predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuwise.errors import GpuwiseError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.targets import Target
    from gpuwise.machine.bench.expect import Judgement
    from gpuwise.predict.estimate import Estimate

DEFAULT_AGAINST = ("t4", "rtx-4090", "h100-sxm")
"""A small, a desktop and a large GPU to compare with where none is named."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """One product: the processor's seconds, and how much faster a GPU is."""

    product: str
    dtype: str
    processor: str
    processor_s: float
    gpu: str
    measured: float | None
    """Processor's seconds over the GPU's, both measured here."""
    predicted: Estimate | None
    """The same with the GPU's seconds predicted."""
    reason: str = ""


def speedups(judged: Sequence[Judgement], targets: Sequence[Target]) -> list[Speedup]:
    """Every large product that the processor ran, against each GPU that ran it too and each of ``targets``."""
    rows: list[Speedup] = []
    for j in judged:
        p = j.case.parameters
        if j.subject.kind != "cpu" or j.case.family != "matmul" or j.record.time_s is None or min(p.values()) < 2048:
            continue
        seconds = j.record.time_s
        text = f"{p['m']:,} x {p['k']:,} by {p['k']:,} x {p['n']:,}"
        for other in judged:
            if other.subject.kind == "cuda" and other.case.key == j.case.key and other.record.time_s is not None:
                measured = seconds / other.record.time_s
                rows.append(Speedup(text, j.case.dtype, j.subject.name, seconds, other.subject.name, measured, None))
        rows += [_predicted(text, j, seconds, target) for target in targets]
    return rows


def _predicted(text: str, j: Judgement, seconds: float, target: Target) -> Speedup:
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.plan.one_op import matmul

    p = j.case.parameters
    anything: Any = target
    name = str(getattr(anything, "name", None) or anything.accelerator.name)
    try:
        row = matmul(p["m"], p["n"], p["k"], j.case.dtype, [target]).rows[0]
    except GpuwiseError as error:
        missing = isinstance(target, Cluster) and j.case.dtype not in target.accelerator.peak_flop_per_s
        reason = f"has no {j.case.dtype} unit, or none is published" if missing else error.message
        return Speedup(text, j.case.dtype, j.subject.name, seconds, name, None, None, reason)
    faster = row.time_s.inverse(seconds)
    return Speedup(text, j.case.dtype, j.subject.name, seconds, row.device, None, faster)
