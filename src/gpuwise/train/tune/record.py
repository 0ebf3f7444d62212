"""Predictions and measurements of a user's own runs, stored as records; the next prediction starts from them.

A record names a script by a one-way number of its text and arguments, and holds neither its name, its place nor its user's.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.files import read_bytes
from gpuwise.records.record import Record, Run, Value
from gpuwise.records.store import Records
from gpuwise.train.config import TunedSpeed
from gpuwise.train.tune.peak import Device

if TYPE_CHECKING:
    from gpuwise.train.tune.search import Result
    from gpuwise.train.tune.trial import Trial

FAMILY, LEVER_FAMILY = "train", "train-lever"
TUNED, RAN, UNTOUCHED = "tune", "run", "untouched"
MOST_RECENT = 8
"""Number of a script's newest runs used for predictions. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its arguments as one-way hashes."""

    text: str
    job: str
    """Text and arguments together."""


@dataclass(frozen=True, slots=True)
class RateMeasurement:
    """One measured rate of a script under some levers on one device, and its prediction."""

    kind: str
    """``tune``, ``run``, ``untouched``."""
    rate: float
    per: str
    step_s: float
    levers: Mapping[str, object]
    predicted_rate: float | None = None
    predicted_by: str | None = None
    memory_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    energy_j: float | None = None
    """Energy per sample."""
    utilisation: float | None = None
    n_steps: int = 0


def script_of(script: str, arguments: Sequence[str], *, module: bool = False) -> Script:
    """Identity of a script by its text; of a module that is not in this folder, by its name."""
    places = [Path(script)]
    if module:
        place = Path(script.replace(".", "/"))
        places = [place / "__main__.py", place.with_suffix(".py")]
    text = next((read_bytes(p) for p in places if p.is_file()), f"module {script}".encode())
    text_hash = hashlib.sha256(text)
    whole = hashlib.sha256(text_hash.digest() + json.dumps(list(arguments)).encode())
    return Script(text_hash.hexdigest()[:16], whole.hexdigest()[:16])


def keep(
    script: Script, device: Device, torch: str | None, measured: Sequence[RateMeasurement], levers: Sequence[Record] = ()
) -> Path:
    """Store measurements as one run; returns the file. Raises DataError where it cannot be written."""
    now_s = time.time()
    run = _run(device, torch, now_s)
    with Records() as records:
        records.start(run)
        for n, one in enumerate(measured):
            # a run may measure one thing twice, and records differ by their time
            records.add(run, _record(script, device, one, now_s + n * 1e-3))
        for record in levers:
            records.add(run, record)
        return records.path


def _run(device: Device, torch: str | None, now_s: float) -> Run:
    from gpuwise.machine.bench.run import new_run
    from gpuwise.machine.bench.subjects import Subject, this_processor

    subjects = [this_processor()]
    if device.kind == "cuda":
        subjects = [Subject("cuda", i, device.name, device.id) for i in range(device.count)] + subjects
    run = new_run(subjects, "gpuwise tune or run", now_s)
    software = dict(run.software) if torch is None else {**run.software, "torch": torch}
    return Run(run.id, run.at_s, run.machine_id, run.machine, software, run.command)


def _record(script: Script, device: Device, one: RateMeasurement, at_s: float) -> Record:
    parameters: dict[str, Value] = {
        "script": script.text,
        "job": script.job,
        "levers": _levers(one.levers),
        "per": one.per,
        "kind": one.kind,
        "steps": one.n_steps,
    }
    conditions: dict[str, Value] = {
        "predicted_rate": one.predicted_rate,
        "predicted_by": one.predicted_by,
        "memory_bytes": one.memory_bytes,
        "predicted_memory_bytes": one.predicted_memory_bytes,
        "energy_j_per_sample": one.energy_j,
        "utilisation": one.utilisation,
    }
    known = {name: value for name, value in conditions.items() if value is not None}
    return Record(
        at_s,
        f"train-{script.job[:12]}",
        FAMILY,
        device.id,
        device.name,
        device.accelerator,
        "",
        parameters,
        "1/s",
        one.rate,
        samples=max(one.n_steps, 1),
        time_s=one.step_s,
        conditions=known,
    )


def _levers(levers: Mapping[str, object]) -> str:
    return json.dumps(dict(sorted(levers.items())), separators=(",", ":"))


def keep_tuning(result: Result, script: Script, torch: str | None, utilisation: tuple[float | None, float | None]) -> Path | None:
    """The untouched script, all levers together beside what one by one they promised, and each lever beside the most it could
    give. None where nothing was measured."""
    before, after, device = result.before, result.after, result.before.device
    if device is None or before.rate is None or before.step_s is None:
        return None
    measured = [_of(UNTOUCHED, before, {}, utilisation[0])]
    if result.levers and after.rate is not None and after.step_s is not None:
        gains = [t.gain.ratio for t in result.tried if t.result == "kept" and t.gain is not None]
        promised = before.rate * math.prod(gains)
        measured.append(_of(TUNED, after, result.levers, utilisation[1], promised, "levers one by one"))
    return keep(script, device, torch, measured, _lever_records(result, script, device))


def _of(
    kind: str,
    trial: Trial,
    levers: Mapping[str, object],
    utilisation: float | None,
    predicted: float | None = None,
    by: str | None = None,
) -> RateMeasurement:
    assert trial.rate is not None and trial.step_s is not None
    return RateMeasurement(
        kind,
        trial.rate,
        trial.per,
        trial.step_s,
        levers,
        predicted,
        by,
        trial.memory_bytes,
        energy_j=trial.energy.energy_j,
        utilisation=utilisation,
        n_steps=trial.n_steps,
    )


def _lever_records(result: Result, script: Script, device: Device) -> list[Record]:
    now_s = time.time()
    records: list[Record] = []
    for n, t in enumerate(result.tried):
        if t.gain is None:
            continue
        parameters: dict[str, Value] = {"job": script.job, "lever": t.name, "value": json.dumps(t.value), "result": t.result}
        conditions: dict[str, Value] = {} if t.ceiling is None else {"most_possible": t.ceiling}
        high = t.gain.high if math.isfinite(t.gain.high) else None
        records.append(
            Record(
                now_s + n * 1e-3,
                f"lever-{t.label}-{script.job[:12]}",
                LEVER_FAMILY,
                device.id,
                device.name,
                device.accelerator,
                "",
                parameters,
                "1",
                t.gain.ratio,
                t.gain.low,
                high,
                t.gain.n_pairs,
                conditions=conditions,
            )
        )
    return records


# -- reading


def expected_from(script: Script, device: Device, levers: Mapping[str, object], given: TunedSpeed | None) -> TunedSpeed | None:
    """The best prediction of a run: the median of the newest runs of this script with these levers on such a device, else
    ``given`` where it was measured on such a device, else what an earlier tuning measured here. Raises DataError where the
    records cannot be read."""
    rows = _past(script, device, levers)
    same = given is not None and given.device_name in (None, device.name) and given.device in (None, device.kind)
    ran = [r for r in rows if r.parameters["kind"] == RAN][-MOST_RECENT:]
    if ran:
        return _median(ran, given if same else None, f"{len(ran)} earlier run{'s' if len(ran) > 1 else ''}")
    if same:
        return given
    tuned = [r for r in rows if r.parameters["kind"] in (TUNED, UNTOUCHED)][-MOST_RECENT:]
    return _median(tuned, None, "an earlier tuning") if tuned else None


def _past(script: Script, device: Device, levers: Mapping[str, object]) -> list[Record]:
    from gpuwise.machine.bench.subjects import machine_id
    from gpuwise.records.store import records_path

    if not records_path().exists():
        return []
    # virtual machines all name their processor alike
    here = machine_id() if device.kind == "cpu" else None
    with Records(create=False) as records:
        rows = records.query(measurement=f"train-{script.job[:12]}", family=FAMILY, machine_id=here)
    return [
        r
        for r in rows
        if r.parameters.get("job") == script.job
        and r.parameters.get("levers") == _levers(levers)
        and r.device_name == device.name
        and r.value
        and r.time_s
    ]


def _median(rows: Sequence[Record], given: TunedSpeed | None, basis: str) -> TunedSpeed:
    per = str(rows[-1].parameters["per"])
    rows = [r for r in rows if r.parameters["per"] == per]
    energies = [float(e) for r in rows if (e := r.conditions.get("energy_j_per_sample")) is not None]
    memories = [int(m) for r in rows if (m := r.conditions.get("memory_bytes")) is not None]
    rate = statistics.median(r.value or 0.0 for r in rows)
    return TunedSpeed(
        rate,
        per,
        statistics.median(r.time_s or 0.0 for r in rows),
        rate if given is None else given.before_rate,
        max(memories) if memories else None,
        None,
        rows[-1].device_name,
        statistics.median(energies) if energies else None,
        basis,
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """Predictions of this user's own tunings and runs against what was measured; of one kind."""

    kind: str
    n: int
    scripts: int
    median_error: float
    """Median of |predicted / measured - 1|."""
    bias: float
    """Median of predicted / measured - 1."""
    worst: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prediction of a training of this user's beside what was measured, in ``per`` (samples, tokens) a second."""

    at_s: float
    kind: str
    job: str
    """Hash of script and arguments that does not reveal them."""
    device: str
    per: str
    predicted: float
    measured: float
    basis: str

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0


def comparisons() -> list[Comparison]:
    """Oldest first; empty without records. Raises DataError for unreadable records."""
    from gpuwise.records.store import records_path

    if not records_path().exists():
        return []
    with Records(create=False) as records:
        rows = records.query(family=FAMILY)
    return [
        Comparison(
            r.at_s,
            str(r.parameters.get("kind")),
            str(r.parameters.get("job")),
            r.device_name,
            str(r.parameters.get("per") or "samples"),
            float(p),
            r.value,
            str(r.conditions.get("predicted_by") or ""),
        )
        for r in sorted(rows, key=lambda r: r.at_s)
        if r.parameters.get("kind") in (TUNED, RAN) and r.value and (p := r.conditions.get("predicted_rate")) is not None
    ]


def prediction_errors() -> list[Errors]:
    """By kind (``tune``, ``run``); empty without records. Raises DataError for unreadable records."""
    rows = comparisons()
    found: list[Errors] = []
    for kind in (TUNED, RAN):
        errors = [r.error for r in rows if r.kind == kind]
        if errors:
            sizes = [abs(e) for e in errors]
            jobs = len({r.job for r in rows if r.kind == kind})
            found.append(Errors(kind, len(errors), jobs, statistics.median(sizes), statistics.median(errors), max(sizes)))
    return found
