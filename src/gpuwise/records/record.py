"""One stored measurement: quantity, device, software, conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from gpuwise.errors import DataError

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command that measures. ``machine`` and ``software`` are names to values; neither names the host."""

    id: str
    """Random, 32 hexadecimal digits."""
    at_s: float
    """Time of ``time.time`` when the run began."""
    machine_id: str
    """The same for every run on one machine, and nothing else can be read from it."""
    machine: Mapping[str, Value] = field(default_factory=dict[str, Value])
    software: Mapping[str, Value] = field(default_factory=dict[str, Value])
    command: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement on one device. ``value`` is None if it failed, with the reason in ``failed``."""

    at_s: float
    """Time of ``time.time`` when the measurement ended."""
    measurement: str
    """Key of the measurement: ``matmul-bf16-8192x8192x8192``."""
    family: str
    """``matmul``, ``attention``, ``memory``, ``launch``, ``copy``, ``collective``, ``disk``, ``loader``."""
    device: str
    """``cpu``, or the driver's unique name of the device."""
    device_name: str
    """The driver's name of the device."""
    accelerator: str | None
    """Id in the catalogue of accelerators or processors; None where it is in none."""
    dtype: str
    parameters: Mapping[str, Value]
    """Sizes and settings, enough to measure it again."""
    unit: str
    """``FLOP/s``, ``B/s``, ``s`` or ``1/s``."""
    value: float | None
    """Median of the samples."""
    low: float | None = None
    """95 % interval of the median."""
    high: float | None = None
    samples: int = 0
    time_s: float | None = None
    """Seconds of one execution, median: what models are fitted to."""
    correct: bool | None = None
    """Against the reference; None where nothing is computed."""
    error: float | None = None
    """Largest error over the bound: at most 1 is correct."""
    conditions: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """Conditions during it: clocks, power, temperature, share of the time for each event reason, unreadable values."""
    failed: str | None = None
    run: Run | None = None
    """Filled in when read."""


COLUMNS = tuple(f.name for f in fields(Record) if f.name != "run")
MAPPINGS = ("parameters", "conditions")
_NUMBERS = ("value", "low", "high", "time_s", "error")


def check_record(record: Record, where: str = "record") -> Record:
    """``record`` itself. Raises DataError for what no measurement gives: no name, a number that is not finite."""
    for name in ("measurement", "family", "device", "unit"):
        if not isinstance(getattr(record, name), str) or not getattr(record, name):
            raise DataError(f"{where}: {name} is empty", hint="a record names what was measured, on what, in which unit")
    for name in ("at_s", *_NUMBERS):
        value = getattr(record, name)
        wrong = value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value))
        if wrong or (value is None and name == "at_s"):
            raise DataError(f"{where}: {name} is {value!r}", hint="a measurement is a finite number, or left out")
    if record.value is None and not record.failed:
        raise DataError(f"{where}: neither a value nor the reason why it is missing", hint="give `value` or `failed`")
    return record


def record_document(record: Record) -> dict[str, Any]:
    """A record as one JSON object, with its run inside."""
    document: dict[str, Any] = {name: getattr(record, name) for name in COLUMNS}
    document |= {name: dict(document[name]) for name in MAPPINGS}
    if record.run is not None:
        document["run"] = run_document(record.run)
    return document


def run_document(run: Run) -> dict[str, Any]:
    """A run as one JSON object."""
    return {
        "id": run.id,
        "at_s": run.at_s,
        "machine_id": run.machine_id,
        "machine": dict(run.machine),
        "software": dict(run.software),
        "command": run.command,
    }


def record_from(document: Any, where: str) -> Record:
    """The record of one JSON object. Raises DataError on a field that is unknown, missing or of the wrong kind."""
    values = dict(cast("dict[str, Any]", document)) if isinstance(document, dict) else {}
    inside: Any = values.pop("run", None)
    if not isinstance(inside, dict):
        raise DataError(f"{where}: not a record with its run", hint="`gpuwise bench --export FILE` writes what can be read here")
    inside = cast("dict[str, Any]", inside)
    for what, have, columns in (("record", values, COLUMNS), ("run", inside, tuple(f.name for f in fields(Run)))):
        if unknown := sorted(set(have) - set(columns)):
            raise DataError(f"{where}: a {what} has no {unknown[0]!r}", hint="was it written by a newer gpuwise?")
    for have, names in ((values, MAPPINGS), (inside, ("machine", "software"))):
        for name in names:
            if not isinstance(have.get(name, {}), dict):
                raise DataError(f"{where}: {name} is not an object", hint="names to values")
    if not isinstance(inside.get("id"), str) or not isinstance(inside.get("machine_id"), str):
        raise DataError(f"{where}: the run has no id", hint="`id` and `machine_id` are texts")
    if isinstance(inside.get("at_s"), bool) or not isinstance(inside.get("at_s"), int | float):
        raise DataError(f"{where}: the run has no time", hint="`at_s` is in seconds")
    try:
        return check_record(Record(**values, run=Run(**inside)), where)
    except TypeError as error:
        raise DataError(f"{where}: {str(error).partition(') ')[2] or error}", hint="a field is missing") from None
