"""CSV output: one line for each device and refresh, readings in SI units with the unit in the column's name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime

from gpuwise.machine.devices.readings import EventReason
from gpuwise.machine.telemetry.causes.cause import Cause
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.machine.telemetry.outputs.line_file import LineFile

_SAMPLE = (
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_limit_w",
    "temperature_c",
    "memory_temperature_c",
    "fan",
    "sm_clock_hz",
    "memory_clock_hz",
    "performance_state",
    "pcie_generation",
    "pcie_width",
    "encoder_utilization",
    "decoder_utilization",
)
COLUMNS: dict[str, Callable[[Frame, Card, tuple[Cause, ...]], object]] = {
    "time": lambda f, c, w: time_words(f.wall_s),
    "monotonic_s": lambda f, c, w: round(f.at_s, 3),
    "gpu": lambda f, c, w: c.number,
    "name": lambda f, c, w: c.identity.name,
    "uuid": lambda f, c, w: c.identity.uuid,
    "state": lambda f, c, w: c.sample.state.value,
    **{n: (lambda f, c, w, n=n: getattr(c.sample, n)) for n in _SAMPLE},
    "power_w": lambda f, c, w: c.power_w,
    "power_basis": lambda f, c, w: c.power_basis,
    "energy_j": lambda f, c, w: c.energy_j,
    "pcie_sent_bytes_per_s": lambda f, c, w: c.pcie_sent_bytes_per_s,
    "pcie_received_bytes_per_s": lambda f, c, w: c.pcie_received_bytes_per_s,
    "nvlink_sent_bytes_per_s": lambda f, c, w: c.nvlink_sent_bytes_per_s,
    "nvlink_received_bytes_per_s": lambda f, c, w: c.nvlink_received_bytes_per_s,
    "event_reasons": lambda f, c, w: reason_names(c.sample.event_reasons),
    "n_processes": lambda f, c, w: None if c.processes is None else len(c.processes),
    "causes": lambda f, c, w: ";".join(x.id for x in w if x.number == c.number),
}
"""Column -> its value. An unknown reading is an empty cell; shares are 0 to 1."""


def time_words(wall_s: float) -> str:
    """The time of day in UTC: ``2026-11-22T02:13:32.120Z``."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return ""


def reason_names(bits: int | None) -> str | None:
    """``SW_POWER_CAP;0x1000``: names of the bits, and in hexadecimal those that have none."""
    if bits is None:
        return None
    names, unnamed_bits = list[str](), bits
    for reason in EventReason:
        if bits & reason:
            names.append(str(reason.name))
            unnamed_bits &= ~int(reason)
    return ";".join([*names, *([f"{unnamed_bits:#x}"] if unnamed_bits else [])])


def header() -> bytes:
    """The header line."""
    return _line(list(COLUMNS))


def lines(frame: Frame, causes: tuple[Cause, ...]) -> bytes:
    """One line for each card of a frame."""
    return b"".join(_line([reader(frame, card, causes) for reader in COLUMNS.values()]) for card in frame.cards)


def _line(values: list[object]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values])
    return buffer.getvalue().encode("utf-8", "backslashreplace")


class CsvLog(LineFile):
    """A sink that writes CSV to a new file, or to stdout for ``-``. Raises InputError."""

    def __init__(self, name: str) -> None:
        super().__init__(name, header())

    def write(self, frame: Frame, causes: tuple[Cause, ...]) -> None:
        """Write a frame's lines, and those that wait."""
        self.put(lines(frame, causes))
