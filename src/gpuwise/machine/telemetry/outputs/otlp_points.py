"""OpenTelemetry metrics as OTLP/JSON, a line a document, as the collector's ``otlpjsonfile`` receiver reads it.

The file: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuwise.machine.telemetry.outputs.line_file import LineFile
from gpuwise.version import VERSION

CUMULATIVE = 2
"""AggregationTemporality of the protocol: a sum since its start."""
Attributes = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """``kind``: gauge, counter, updowncounter or histogram; ``unit`` is UCUM's; ``bounds`` are a histogram's upper bounds."""

    name: str
    kind: str
    unit: str
    about: str
    bounds: Sequence[float] = ()


@dataclass(slots=True)
class Points:
    """Data points of one moment, by metric. ``now_s`` and ``began_s``: seconds since 1970, the latter where a sum began."""

    now_s: float
    found: dict[str, tuple[Metric, list[dict[str, Any]]]] = field(default_factory=dict[str, tuple[Metric, list[dict[str, Any]]]])

    def add(self, metric: Metric, attributes: Attributes, value: float | None, began_s: float | None = None) -> None:
        """A number; an unknown one has no point."""
        if value is not None and math.isfinite(value):
            self._append(metric, attributes, {"asDouble": float(value)}, began_s)

    def distribute(self, metric: Metric, attributes: Attributes, values: Sequence[float], began_s: float) -> None:
        """The values of a histogram, counted by its bounds; no values have no point."""
        if not len(values):
            return
        counts = np.bincount(np.searchsorted(metric.bounds, values), minlength=len(metric.bounds) + 1)
        point = {"count": str(len(values)), "sum": float(sum(values)), "min": float(min(values)), "max": float(max(values))}
        counted = {"bucketCounts": [str(n) for n in counts.tolist()], "explicitBounds": list(metric.bounds)}
        self._append(metric, attributes, point | counted, began_s)

    def _append(self, metric: Metric, attributes: Attributes, value: dict[str, Any], began_s: float | None) -> None:
        start = {} if began_s is None else {"startTimeUnixNano": _nanoseconds(began_s)}
        point = {"attributes": _attributes(attributes), **start, "timeUnixNano": _nanoseconds(self.now_s), **value}
        self.found.setdefault(metric.name, (metric, []))[1].append(point)

    def document(self, resource: Attributes) -> dict[str, Any]:
        """All points as ``MetricsData`` of the protocol. ``resource``: attributes of what was measured."""
        about = _attributes({"service.name": "gpuwise", "service.version": VERSION, **resource})
        scope = {"scope": {"name": "gpuwise", "version": VERSION}, "metrics": [_metric(m, p) for m, p in self.found.values()]}
        return {"resourceMetrics": [{"resource": {"attributes": about}, "scopeMetrics": [scope]}]}


def write(file: LineFile, document: Mapping[str, Any]) -> None:
    """Append a document as one line."""
    file.put(json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def _metric(metric: Metric, points: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"name": metric.name, "description": metric.about, "unit": metric.unit}
    if metric.kind == "gauge":
        return head | {"gauge": {"dataPoints": points}}
    since = {"dataPoints": points, "aggregationTemporality": CUMULATIVE}
    if metric.kind == "histogram":
        return head | {"histogram": since}
    return head | {"sum": since | {"isMonotonic": metric.kind == "counter"}}


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for k, v in values.items()
        if v not in ("", None)
    ]


def _nanoseconds(seconds: float) -> str:
    """64-bit integers are strings in the protocol's JSON."""
    return str(round(seconds * 1e9))
