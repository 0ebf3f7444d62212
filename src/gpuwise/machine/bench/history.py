"""Contents of the records for each device: the newest value of each measurement beside the median of all and the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.cpus import cpus
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.expect import Judgement, judge
from gpuwise.machine.bench.sampling import summarise
from gpuwise.machine.bench.subjects import Subject
from gpuwise.records.record import Record


@dataclass(frozen=True, slots=True)
class Past:
    """One measurement of one device. ``median`` is None if all of its ``count`` records failed."""

    newest: Judgement
    median: float | None
    count: int


@dataclass(frozen=True, slots=True)
class DevicePast:
    """All measurements of one device of one machine, by their keys."""

    name: str
    machine_id: str
    rows: tuple[Past, ...]


def history(records: Sequence[Record]) -> list[DevicePast]:
    """The devices in order of first appearance. Records without a run are skipped."""
    by_device: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.run is not None:
            by_device.setdefault((record.run.machine_id, record.device, record.device_name), []).append(record)
    return [DevicePast(name, machine, _rows(rows)) for (machine, _, name), rows in by_device.items()]


def _rows(records: Sequence[Record]) -> tuple[Past, ...]:
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.measurement, []).append(record)
    made = list[Past]()
    for key in sorted(by_key):
        rows = sorted(by_key[key], key=lambda r: r.at_s)
        values = [r.value for r in rows if r.value is not None]
        judged = judge(case_of(rows[-1]), subject_of(rows[-1]), rows[-1], rows[:-1])
        made.append(Past(judged, summarise(values).median if values else None, len(rows)))
    return tuple(made)


def case_of(record: Record) -> BenchCase:
    """The case that a record is of: its variant is what the key holds between the family and the format or size."""
    head = record.measurement.removeprefix(record.family + "-").rpartition("-")[0]
    sizes = {name: int(v) for name, v in record.parameters.items() if isinstance(v, int | float)}
    return BenchCase(record.family, head.removesuffix(record.dtype).strip("-") or "product", record.dtype, sizes)


def subject_of(record: Record) -> Subject:
    """The device of a record, as far as the catalogue knows it."""
    name, processor = record.accelerator or "", record.device == "cpu"
    cores = record.run.machine.get("cores") if record.run is not None else None
    return Subject(
        "cpu" if processor else "cuda",
        0,
        record.device_name,
        record.device,
        accelerator=None if processor else accelerators().get(name),
        processor=cpus().get(name) if processor else None,
        units=int(cores) if isinstance(cores, int | float) else 0,
    )
