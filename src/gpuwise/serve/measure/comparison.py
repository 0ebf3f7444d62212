"""Measured against predicted performance of a server, stored as records, and the correction learnt from them.

    slowdown = exp(sum_i w_i log(measured_i / predicted_i) / (sum_i w_i + w_0)),    w_i requests of run i, w_0 = 1

of the median time per output token (of the time to first token where answers have one token): one factor on all times of an
engine, model and accelerator. ``w_0`` is the weight of the prediction in requests: (s / s_0)^2, where s is the scatter of a
request's log time about its load's median and s_0 the predictor's own (0.16 to 0.17 of a step, ``inference.json``). With 20, a
server ten times slower than predicted would still be predicted half as slow after 40 requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.records.record import Record
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.capacity.rate import Point, value_of
from gpuwise.serve.load.targets import Target
from gpuwise.serve.measure.measured import LoadResult

FAMILY = "serving"
PRIOR_REQUESTS = 1.0
USUAL = (("ttft", 50.0), ("ttft", 95.0), ("tpot", 50.0), ("itl", 99.0), ("e2e", 50.0))
"""Figures shown for any targets."""
LEARNT = ("tpot_p50", "ttft_p50")
"""Metrics for the factor: the first that was measured counts."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One latency, measured and predicted, in seconds; ``limit_s`` where it is a target. ``predicted_s`` is None if predicted
    past saturation."""

    metric: str
    percentile: float | None
    measured_s: float | None
    low_s: float | None
    high_s: float | None
    predicted_s: float | None
    limit_s: float | None

    @property
    def key(self) -> str:
        """``ttft_p95``, ``e2e_mean``: the name under which both sides have it."""
        return f"{self.metric}_mean" if self.percentile is None else f"{self.metric}_p{self.percentile:g}"

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        if self.measured_s is None or not self.predicted_s:
            return None
        return self.measured_s / self.predicted_s


def figures(measured: LoadResult, predicted: Point, targets: Sequence[Target]) -> tuple[Figure, ...]:
    """The usual figures and those of the targets."""
    limits = {(t.metric, t.percentile): t.limit_s for t in targets}
    found: list[Figure] = []
    for metric, percentile in dict.fromkeys([*USUAL, *limits]):
        low, high = measured.interval(metric, percentile) or (None, None)
        expected = None if predicted.saturated else value_of(predicted.run, metric, percentile)
        value = measured.value(metric, percentile)
        found.append(Figure(metric, percentile, value, low, high, expected, limits.get((metric, percentile))))
    return tuple(found)


def records_of(
    rows: Sequence[Figure], measured: LoadResult, configuration: Configuration, rate_per_s: float, at_s: float
) -> tuple[Record, ...]:
    """One record for each latency that was measured and predicted."""
    accelerator = configuration.system.accelerator
    base = {
        "model": configuration.arch.id,
        "engine": configuration.config.engine,
        "configuration": configuration.words,
        "requests_per_s": rate_per_s,
    }
    return tuple(
        Record(
            at_s,
            f"serving-{row.key}-{configuration.arch.id}",
            FAMILY,
            accelerator.id,
            accelerator.name,
            accelerator.id,
            configuration.config.weights,
            base | {"predicted_s": row.predicted_s / configuration.slowdown, "latency": row.key},
            "s",
            row.measured_s,
            row.low_s,
            row.high_s,
            len(measured.whole),
        )
        for row in rows
        if row.measured_s is not None and row.predicted_s is not None
    )


def slowdown(records: Sequence[Record], model: str, engine: str, accelerator: str) -> tuple[float, int]:
    """The factor on all times from ``records``, and the number of requests behind it; 1 and 0 without measurements."""
    mine = [
        r
        for r in records
        if (r.parameters.get("model"), r.parameters.get("engine"), r.accelerator) == (model, engine, accelerator)
        and r.value is not None
    ]
    for latency in LEARNT:
        rows = [r for r in mine if r.parameters.get("latency") == latency]
        if rows:
            weight = sum(r.samples for r in rows)
            total = sum(r.samples * math.log((r.value or 1.0) / _predicted(r)) for r in rows)
            return math.exp(total / (weight + PRIOR_REQUESTS)), weight
    return 1.0, 0


def _predicted(record: Record) -> float:
    """Before any correction, in seconds."""
    return float(record.parameters.get("predicted_s") or record.value or 1.0)
