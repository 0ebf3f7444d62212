"""A training on ranks as metrics for Prometheus and OpenTelemetry, and the Grafana dashboard that shows them: from one table.

OpenTelemetry's names are those that a collector's Prometheus exporter turns into the same names
(https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/): ``gpuwise.rank.step`` in ``s`` is
``gpuwise_rank_step_seconds``.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.machine.telemetry.outputs.exporter import block
from gpuwise.machine.telemetry.outputs.otlp_points import Metric, Points
from gpuwise.train.ranks.launch import RankJournal
from gpuwise.train.ranks.straggler import straggler

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankMetric:
    """One number a rank, of the last line that it wrote. ``unit``: Grafana's."""

    name: str
    kind: str
    help: str
    unit: str
    value: Callable[[Step], float | None]


METRICS = (
    RankMetric("gpuwise_rank_steps_total", "counter", "Updates of the training so far.", "short", lambda s: s["step"]),
    RankMetric("gpuwise_rank_step_seconds", "gauge", "Of the last step.", "s", lambda s: s["step_s"]),
    RankMetric("gpuwise_rank_data_seconds", "gauge", "Of the last step, for its batches.", "s", lambda s: s["data_s"]),
    RankMetric("gpuwise_rank_wait_seconds", "gauge", "Of the last step, in exchanges.", "s", lambda s: s["wait_s"]),
    RankMetric("gpuwise_rank_queue_seconds", "gauge", "Of the last step without a processor.", "s", lambda s: s["queue_s"]),
    RankMetric("gpuwise_rank_samples_per_second", "gauge", "Of its own samples.", "short", lambda s: s["samples"] / s["step_s"]),
    RankMetric("gpuwise_rank_loss", "gauge", "Mean over the global batch.", "none", lambda s: s["loss"]),
    RankMetric("gpuwise_rank_memory_bytes", "gauge", "Of the device, else resident.", "bytes", lambda s: s["memory_bytes"]),
    RankMetric("gpuwise_rank_age_seconds", "gauge", "Since its last step ended.", "s", lambda s: time.time() - s["at_s"]),
)  # fmt: skip
COLLECTED = {
    "gpuwise_rank_collective_bytes": ("gauge", "Exchanged in the last step, by kind.", "bytes"),
    "gpuwise_rank_collectives": ("gauge", "Exchanges of the last step, by kind.", "short"),
    "gpuwise_run_waited_for_seconds": ("gauge", "That all other ranks wait for this one, a step, by cause.", "s"),
    "gpuwise_run_restarts": ("gauge", "Of all ranks, after one died.", "short"),
    "gpuwise_run_saved_step": ("gauge", "Of the newest checkpoint that is whole.", "short"),
}
"""Metrics with labels of their own: kind, help and Grafana's unit."""


Series = tuple[str, str, str, Sequence[tuple[Mapping[str, str], float]]]
"""Name, kind, help, and values by their labels."""


def series(journals: Sequence[RankJournal], run: str) -> list[Series]:
    """All metrics of what the ranks have written. ``run``: a label, the folder's name."""
    labels = [{"run": run, "rank": str(r)} for r in range(len(journals))]
    shown = [(labels_of, j.last) for labels_of, j in zip(labels, journals, strict=True) if j.last]
    found: list[Series] = []
    for metric in METRICS:
        values = [(labels, float(v)) for labels, last in shown if (v := metric.value(last)) is not None]
        found.append((metric.name, metric.kind, metric.help, values))
    slow = straggler([j.steps for j in journals])
    saved = [e["step"] for j in journals for e in j.events if e["event"] in ("saved", "resumed")]
    collected: dict[str, list[tuple[dict[str, str], float]]] = {
        "gpuwise_rank_collective_bytes": [
            (own | {"kind": k}, float(n[1])) for own, last in shown for k, n in last["collectives"].items()
        ],
        "gpuwise_rank_collectives": [
            (own | {"kind": k}, float(n[0])) for own, last in shown for k, n in last["collectives"].items()
        ],
        "gpuwise_run_waited_for_seconds": [] if slow is None else [(labels[slow.rank] | {"cause": slow.cause}, slow.lost_s)],
        "gpuwise_run_restarts": [({"run": run}, float(max((j.attempt for j in journals), default=0)))],
        "gpuwise_run_saved_step": [({"run": run}, float(max(saved)))] if saved else [],
    }
    return found + [(name, *COLLECTED[name][:2], values) for name, values in collected.items()]


def exposition(journals: Sequence[RankJournal], run: str) -> str:
    """Prometheus' text format of :func:`series`."""
    return "\n".join(line for each in series(journals, run) for line in block(*each)) + "\n"


UNITS = {"_per_second": "{sample}/s", "_seconds": "s", "_bytes": "By"}
"""UCUM's unit for the end of a name, which Prometheus' exporters write for it."""


def otlp(journals: Sequence[RankJournal], run: str, now_s: float, began_s: float) -> dict[str, Any]:
    """:func:`series` as ``MetricsData`` of OpenTelemetry's protocol. Times are seconds since 1970."""
    points = Points(now_s)
    for name, kind, about, values in series(journals, run):
        stem = name.removesuffix("_total")
        end = next((e for e in UNITS if stem.endswith(e)), "")
        metric = Metric(stem.removesuffix(end).replace("_", ".", 2), kind, UNITS.get(end, "1"), about)
        for labels, value in values:
            attributes = {".".join(("gpuwise", k)): v for k, v in labels.items()}
            points.add(metric, attributes, value, began_s if kind == "counter" else None)
    return points.document({"host.name": platform.node()})


def dashboard() -> str:
    """A dashboard for Grafana: a panel for each metric, by rank."""
    shown = [(m.name, m.help, m.unit) for m in METRICS] + [(n, about, unit) for n, (_, about, unit) in COLLECTED.items()]
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": "label_values(gpuwise_run_restarts, run)", "refId": "run"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
        },
    ]
    document = {
        "title": "Training on ranks (gpuwise)",
        "uid": "gpuwise-ranks",
        "description": "Activity of every rank, and the straggler. Metrics of `gpuwise run --prometheus`.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(i, *each) for i, each in enumerate(shown)],
    }
    return json.dumps(document, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(at: int, name: str, about: str, unit: str) -> dict[str, Any]:
    counted = name.endswith("_total")
    query = f'{name}{{run=~"$run"}}'
    title = name.removeprefix("gpuwise_").removesuffix("_total").replace("_", " ").capitalize()
    label = "" if name not in COLLECTED else " {{kind}}" if "collective" in name else " {{cause}}" if "waited" in name else ""
    legend = "{{run}}" if name in ("gpuwise_run_restarts", "gpuwise_run_saved_step") else "rank {{rank}}" + label
    return {
        "id": at + 1,
        "title": title + (" a second" if counted else ""),
        "description": about,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"h": 7, "w": 8, "x": at % 3 * 8, "y": at // 3 * 7},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": f"rate({query}[5m])" if counted else query,
                "legendFormat": legend,
            }
        ],
    }


def write_dashboard(path: Path) -> None:
    """Write the dashboard. Raises InputError where it cannot be written."""
    try:
        path.write_text(dashboard(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the folder") from error
