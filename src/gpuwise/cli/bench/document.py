"""A run of ``gpuwise bench`` as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwise.cli.bench.against import Speedup
    from gpuwise.machine.bench.cases import BenchCase
    from gpuwise.machine.bench.expect import Judgement
    from gpuwise.machine.bench.run import Outcome


def document(
    outcome: Outcome,
    judged: Sequence[Judgement],
    compared: Sequence[Speedup],
    below: Sequence[Judgement],
    without: tuple[str, Sequence[BenchCase]] = ("", ()),
) -> dict[str, Any]:
    """``results`` in the order measured; rates in FLOP/s and bytes/s, times in seconds. ``without`` is why there is no
    GPU, and what was to run on one."""
    from gpuwise.predict.estimate import to_document
    from gpuwise.records.record import run_document

    return {
        "run": run_document(outcome.run),
        "interrupted": outcome.interrupted,
        "results": [_result(j) for j in judged],
        "not_here": [
            *({"device": s.label, "measurement": c.key, "reason": why} for c, s, why in outcome.skipped),
            *({"device": "gpu", "measurement": c.key, "reason": without[0]} for c in without[1]),
        ],
        "no_time_left": [{"device": s.label, "measurement": c.key} for c, s in outcome.late],
        "speedups": to_document(compared),
        "wrong": [r.measurement for r in outcome.wrong],
        "failed": [r.measurement for r in outcome.failed],
        "below": [j.record.measurement for j in below],
    }


def _result(j: Judgement) -> dict[str, Any]:
    from gpuwise.records.record import record_document

    result = record_document(j.record)
    e = j.expectation
    result["label"] = j.subject.label
    result["verdict"] = str(j.verdict)
    result["reason"] = j.reason
    result["expected"] = None
    if e is not None:
        result["expected"] = {"low": e.low, "expected": e.expected, "high": e.high, "basis": e.basis, "source": e.source}
    result["peak"] = None if e is None else e.peak
    result["of_expected"], result["of_peak"], result["before"] = j.of_expected, j.of_peak, j.before
    result["slow_among_siblings"] = j.slow_among or None
    return result
