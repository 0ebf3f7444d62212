"""Frames as OpenTelemetry metrics, a line a frame.

Names, units and attributes are those of OpenTelemetry's semantic conventions for hardware
(https://opentelemetry.io/docs/specs/semconv/hardware/gpu/, .../common/, .../temperature/, .../fan/); ``gpuwise.`` where they
have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.outputs.exporter import read
from gpuwise.machine.telemetry.outputs.line_file import LineFile
from gpuwise.machine.telemetry.outputs.otlp_points import Metric, Points, write


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric of the conventions and where its value is in a card (a dotted path). ``more`` are attributes of its points;
    ``part`` names a component of the GPU that has an id of its own."""

    metric: Metric
    path: str
    more: Sequence[tuple[str, str]] = ()
    part: str = ""


def _use(task: str, path: str) -> Reading:
    about = "Fraction of time spent in a specific task."
    return Reading(Metric("hw.gpu.utilization", "gauge", "1", about), path, (("hw.gpu.task", task),))


def _heat(place: str, path: str) -> Reading:
    return Reading(Metric("hw.temperature", "gauge", "Cel", "Temperature."), path, (("hw.sensor_location", place),), place)


def _errors(kind: str, path: str) -> Reading:
    metric = Metric("hw.errors", "counter", "{error}", "Errors since the driver was loaded.")
    return Reading(metric, path, (("error.type", kind),))


READINGS = (
    _use("general", "sample.utilization"),
    _use("encoder", "sample.encoder_utilization"),
    _use("decoder", "sample.decoder_utilization"),
    Reading(Metric("hw.gpu.memory.usage", "updowncounter", "By", "GPU memory used."), "sample.memory_used_bytes"),
    Reading(Metric("hw.gpu.memory.limit", "updowncounter", "By", "Size of the GPU memory."), "sample.memory_total_bytes"),
    Reading(Metric("hw.power", "gauge", "W", "Power drawn by the GPU."), "power_w"),
    Reading(Metric("hw.energy", "counter", "J", "Energy used since gpuwise started."), "energy_j"),
    _heat("gpu", "sample.temperature_c"),
    _heat("memory", "sample.memory_temperature_c"),
    Reading(Metric("hw.fan.speed_ratio", "gauge", "1", "Fan speed as a fraction of its maximum."), "sample.fan", part="fan"),
    _errors("corrected", "health.ecc_corrected"),
    _errors("uncorrected", "health.ecc_uncorrected"),
)
STATUS = Metric("hw.status", "updowncounter", "1", "1 for the state that the GPU is in, else 0.")
CAUSE = Metric("gpuwise.gpu.cause", "gauge", "1", "1 for each thing that slows the GPU down now.")
STATES = ("ok", "degraded", "failed")


def document(frame: Frame, causes: Iterable[Cause], began_s: float) -> dict[str, Any]:
    """A frame as ``MetricsData`` of the protocol. An unknown reading has no point. ``began_s``: start of what gpuwise counts
    itself, in seconds since 1970."""
    points = Points(frame.wall_s)
    by_card = [(c, [x for x in causes if x.number == c.number]) for c in frame.cards]
    for card, own in by_card:
        about = _about(card, frame)
        for each in READINGS:
            part = {"hw.id": f"{about['hw.id']}/{each.part}", "hw.parent": about["hw.id"]} if each.part else {}
            kind = {"hw.type": "fan" if each.part == "fan" else "temperature"} if each.part else {}
            began = began_s if each.path == "energy_j" else None
            points.add(each.metric, about | part | kind | dict(each.more), read(card, each.path), began)
        degraded = any(x.severity is Severity.FAULT for x in own)
        state = "failed" if not card.ok else "degraded" if degraded else "ok"
        for name in STATES:
            points.add(STATUS, about | {"hw.state": name}, float(name == state))
        for cause in own:
            points.add(CAUSE, about | {"gpuwise.cause": cause.id, "gpuwise.severity": cause.severity.value}, 1.0)
    return points.document({"host.name": frame.host.name})


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


class OtlpLog(LineFile):
    """A sink that appends a line a frame to a file. Raises InputError where it cannot be opened."""

    def __init__(self, name: str) -> None:
        super().__init__(name, append=True)
        self._began_s: float | None = None

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Write a frame, and those that wait."""
        if self._began_s is None:
            self._began_s = frame.wall_s
        write(self, document(frame, causes, self._began_s))
