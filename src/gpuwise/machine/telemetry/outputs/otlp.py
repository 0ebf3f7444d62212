"""Frames as OpenTelemetry metrics: OTLP/JSON, a line a frame, as the collector's ``otlpjsonfile`` receiver reads it.

Names, units and attributes are those of OpenTelemetry's semantic conventions for hardware
(https://opentelemetry.io/docs/specs/semconv/hardware/gpu/, .../common/, .../temperature/, .../fan/); ``gpuwise.`` where they
have none. The file: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.outputs.exporter import read
from gpuwise.machine.telemetry.outputs.line_file import LineFile
from gpuwise.version import VERSION

CUMULATIVE = 2
"""AggregationTemporality of the protocol: a sum since its start."""
Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the conventions. ``kind``: gauge, counter or updowncounter; ``unit`` is UCUM's; ``more`` are attributes of its
    points; ``part`` names a component of the GPU that has an id of its own."""

    name: str
    kind: str
    unit: str
    about: str
    reading: str = ""
    more: Sequence[tuple[str, str]] = ()
    part: str = ""


def _use(task: str, reading: str) -> Metric:
    about = "Fraction of time spent in a specific task."
    return Metric("hw.gpu.utilization", "gauge", "1", about, reading, (("hw.gpu.task", task),))


def _heat(place: str, reading: str) -> Metric:
    return Metric("hw.temperature", "gauge", "Cel", "Temperature.", reading, (("hw.sensor_location", place),), part=place)


def _errors(kind: str, reading: str) -> Metric:
    return Metric("hw.errors", "counter", "{error}", "Errors since the driver was loaded.", reading, (("error.type", kind),))


METRICS = (
    _use("general", "sample.utilization"),
    _use("encoder", "sample.encoder_utilization"),
    _use("decoder", "sample.decoder_utilization"),
    Metric("hw.gpu.memory.usage", "updowncounter", "By", "GPU memory used.", "sample.memory_used_bytes"),
    Metric("hw.gpu.memory.limit", "updowncounter", "By", "Size of the GPU memory.", "sample.memory_total_bytes"),
    Metric("hw.power", "gauge", "W", "Power drawn by the GPU.", "power_w"),
    Metric("hw.energy", "counter", "J", "Energy used since gpuwise started.", "energy_j"),
    _heat("gpu", "sample.temperature_c"),
    _heat("memory", "sample.memory_temperature_c"),
    Metric("hw.fan.speed_ratio", "gauge", "1", "Fan speed as a fraction of its maximum.", "sample.fan", part="fan"),
    _errors("corrected", "health.ecc_corrected"),
    _errors("uncorrected", "health.ecc_uncorrected"),
)
STATUS = Metric("hw.status", "updowncounter", "1", "1 for the state that the GPU is in, else 0.")
CAUSE = Metric("gpuwise.gpu.cause", "gauge", "1", "1 for each thing that slows the GPU down now.")
STATES = ("ok", "degraded", "failed")


def document(frame: Frame, causes: Iterable[Cause], began_s: float) -> dict[str, Any]:
    """A frame as ``MetricsData`` of the protocol. An unknown reading has no point. ``began_s``: start of what gpuwise counts
    itself, in seconds since 1970."""
    points: dict[str, tuple[Metric, list[dict[str, Any]]]] = {}
    now = _nanoseconds(frame.wall_s)

    def add(metric: Metric, attributes: Attributes, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        start = {"startTimeUnixNano": _nanoseconds(began_s)} if metric.reading == "energy_j" else {}
        point = {"attributes": _attributes(attributes), **start, "timeUnixNano": now, "asDouble": value}
        points.setdefault(metric.name, (metric, []))[1].append(point)

    by_card = [(c, [x for x in causes if x.number == c.number]) for c in frame.cards]
    for card, own in by_card:
        about = _about(card, frame)
        for metric in METRICS:
            part = {"hw.id": f"{about['hw.id']}/{metric.part}", "hw.parent": about["hw.id"]} if metric.part else {}
            kind = {"hw.type": "fan" if metric.part == "fan" else "temperature"} if metric.part else {}
            add(metric, about | part | kind | dict(metric.more), read(card, metric.reading))
        degraded = any(x.severity is Severity.FAULT for x in own)
        state = "failed" if not card.ok else "degraded" if degraded else "ok"
        for each in STATES:
            add(STATUS, about | {"hw.state": each}, float(each == state))
        for cause in own:
            add(CAUSE, about | {"gpuwise.cause": cause.id, "gpuwise.severity": cause.severity.value}, 1.0)
    resource = {"service.name": "gpuwise", "service.version": VERSION, "host.name": frame.host.name or ""}
    scope = {"scope": {"name": "gpuwise", "version": VERSION}, "metrics": [_metric(m, p) for m, p in points.values()]}
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]}


def _metric(metric: Metric, points: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"name": metric.name, "description": metric.about, "unit": metric.unit}
    if metric.kind == "gauge":
        return head | {"gauge": {"dataPoints": points}}
    total = {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": metric.kind == "counter"}
    return head | {"sum": total}


def _about(card: Card, frame: Frame) -> dict[str, str]:
    i = card.identity
    known = {
        "hw.id": i.uuid or i.pci_bus_id or f"{i.vendor}{i.index}",
        "hw.type": "gpu",
        "hw.name": f"{i.vendor}{i.index}",
        "hw.model": i.name,
        "hw.vendor": i.vendor,
        "hw.serial_number": i.serial,
        "hw.firmware_version": i.vbios,
        "hw.driver_version": frame.drivers.get(i.vendor),
    }
    return {k: v for k, v in known.items() if v}


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    return [{"key": k, "value": {"stringValue": v}} for k, v in values.items() if v]


def _nanoseconds(seconds: float) -> str:
    """64-bit integers are strings in the protocol's JSON."""
    return str(round(seconds * 1e9))


class OtlpLog(LineFile):
    """A sink that appends a line a frame to a file. Raises InputError where it cannot be opened."""

    def __init__(self, name: str) -> None:
        super().__init__(name, append=True)
        self._began_s: float | None = None

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Write a frame, and those that wait."""
        if self._began_s is None:
            self._began_s = frame.wall_s
        line = json.dumps(document(frame, causes, self._began_s), separators=(",", ":"), allow_nan=False)
        self.put(line.encode() + b"\n")
