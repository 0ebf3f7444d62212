"""This machine's own coefficients: from the records of ``gpuwise bench`` to corrections of the kernel model.

One fit per device, family and format, each with its error before and after on held-out shapes. They are stored beside the
records (``$GPUWISE_HOME/coefficients.json``) and read by ``--on this``.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuwise.errors import DataError, FileError, GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.corrections import LAUNCH_KEY, Correction
from gpuwise.files import read_json
from gpuwise.records.record import Record
from gpuwise.records.store import records_path

if TYPE_CHECKING:
    from gpuwise.calibrate.machine.fit import FamilyFit

SCHEMA = 1
SHORTEST_S = 5e-6
"""Shorter kernels are launches and clocks of events, which no kernel model should learn."""
CACHES = 4.0
"""Arrays this many times the last-level cache are the memory's alone, as STREAM asks (McCalpin, run rules)."""
_HINT = "`gpuwise bench --calibrate` writes it anew"


@dataclass(frozen=True, slots=True)
class FamilyCoefficients:
    """Fit of one family and format. Errors are mean absolute ones on held-out shapes."""

    key: str
    rows: int
    before: float | None
    after: float | None
    bias: float
    """Measured over predicted, minus 1: median over the shapes, before the fit."""
    correction: Correction | None


@dataclass(frozen=True, slots=True)
class DeviceCoefficients:
    """Fits of one device. ``rates`` are the best measured: FLOP/s by format, and ``memory`` in bytes/s."""

    device: str
    name: str
    accelerator: str | None
    at_s: float
    """Time of ``time.time`` when the newest measurement ended."""
    rates: Mapping[str, float]
    families: Mapping[str, FamilyCoefficients]
    software: Mapping[str, Any] = field(default_factory=dict[str, Any])


def coefficients_path() -> Path:
    """Beside the record file."""
    return records_path().with_name("coefficients.json")


def fit_device(records: Sequence[Record], accelerator: Accelerator | None) -> DeviceCoefficients:
    """The coefficients of the device all ``records`` are of. Raises DataError when there is nothing to learn from."""
    usable = newest(records)
    if not usable:
        raise DataError("this device has not been measured", hint="run `gpuwise bench --calibrate`")
    last = usable[-1]
    fits: dict[str, FamilyCoefficients] = {}
    if accelerator is not None:
        plain = replace(accelerator, corrections={})
        for key, rows in by_family(usable, accelerator.l2_bytes or 0.0).items():
            fit = _fit(key, rows, plain)
            if fit is not None:
                fits[key] = FamilyCoefficients(key, fit.rows, fit.before, fit.after, fit.bias, fit.correction)
    return DeviceCoefficients(
        last.device,
        last.device_name,
        last.accelerator,
        last.at_s,
        best_rates(usable),
        fits,
        {} if last.run is None else dict(last.run.software),
    )


def newest(records: Sequence[Record]) -> list[Record]:
    """The last right answer of each measurement, oldest first. Wrong and failed ones teach nothing."""
    by_measurement: dict[str, Record] = {}
    for r in sorted(records, key=lambda r: r.at_s):
        if r.failed is None and r.correct is not False and r.time_s is not None and r.value is not None:
            by_measurement[r.measurement] = r
    return sorted(by_measurement.values(), key=lambda r: r.at_s)


def by_family(records: Sequence[Record], l2_bytes: float = 0.0) -> dict[str, list[Record]]:
    """Measurements by key of a correction: ``matmul/bf16``, ``memory``, ``copy/h2d-pinned``, ``collective/all_reduce/8``,
    ``launch/eager``. Kernels as short as a launch, and streams of at most a few cache sizes, are excluded."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        if r.family == "matmul":
            key = f"matmul/{'fp8_gemm' if r.dtype == 'fp8' else r.dtype}"
        elif r.family == "memory":
            if float(r.parameters.get("bytes") or 0) < CACHES * l2_bytes:
                continue  # measured from memory, where the model has the cache in it
            key = "memory"
        elif r.family == "copy" and float(r.parameters.get("bytes") or 0) >= 2**24:
            key = f"copy/{r.parameters.get('variant')}"
        elif r.family == "launch" and r.parameters.get("variant") == "eager" and r.device != "cpu":
            groups.setdefault(LAUNCH_KEY, []).append(r)  # the host's seconds
            continue
        elif r.family == "collective" and r.parameters.get("op") and r.device != "cpu":
            key = f"collective/{r.parameters['op']}/{r.parameters.get('ranks')}"
        else:
            continue
        if (r.time_s or 0.0) >= SHORTEST_S:
            groups.setdefault(key, []).append(r)
    return groups


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """The largest measured: FLOP/s of products by format, and ``memory`` in bytes/s."""
    best: dict[str, float] = {}
    for r in records:
        key = r.dtype if r.family == "matmul" else r.family if r.family == "memory" else None
        if key is not None and r.value is not None:
            best[key] = max(best.get(key, 0.0), r.value)
    return best


def _fit(key: str, rows: Sequence[Record], accelerator: Accelerator) -> FamilyFit | None:
    """None where the model has no prediction for it."""
    import numpy as np

    from gpuwise.calibrate.machine.fit import fit_constant, fit_family

    try:
        predicted, sigma, points, groups = _predictions(key, rows, accelerator)
    except GpuwiseError:
        return None
    y = np.log(np.array([r.time_s for r in rows], dtype=float) / predicted)
    if key == LAUNCH_KEY:
        return fit_constant(key, float(y[-1]))
    return fit_family(key, np.log2(points), y, groups, float(np.median(sigma)))


def _predictions(key: str, rows: Sequence[Record], accelerator: Accelerator) -> tuple[Any, Any, Any, list[object]]:
    """Seconds [R], their spread [R], sizes [R, D] and the group of each row: products by weight matrix, others by size."""
    import numpy as np

    from gpuwise.predict.kernels import single
    from gpuwise.predict.kernels.transfer import transfer_time
    from gpuwise.predict.step.host_time import launch_time

    family, _, kind = key.partition("/")

    def column(name: str) -> Any:
        return np.array([float(r.parameters[name]) for r in rows])  # type: ignore[arg-type]

    if key == LAUNCH_KEY:
        time, n = launch_time(accelerator), len(rows)
        return np.full(n, time.time_s[0]), np.full(n, time.log_sigma[0]), np.ones((n, 1)), list(range(n))
    if family == "matmul":
        m, n, k = column("m"), column("n"), column("k")
        time = single.matmul(accelerator, rows[0].dtype, m, n, k)
        return time.time_s, time.log_sigma, np.stack([m, n, k], axis=1), list(zip(n.tolist(), k.tolist(), strict=True))
    size = column("bytes")
    if family == "collective":
        from gpuwise.facts.hardware.naming import find_cluster
        from gpuwise.predict.comm.collectives import curve

        op, _, n = kind.partition("/")
        system = replace(find_cluster(f"{n}x{accelerator.id}").system, accelerator=accelerator)
        plain = curve(system, op, int(n), int(n))
        return plain.time_s(size), plain.log_sigma(size), size[:, None], size.tolist()
    if family == "memory":
        triad = np.array([r.parameters.get("variant") == "triad" for r in rows])
        passes = np.where(triad, 3.0, 2.0)
        one, other = (single.stream(accelerator, (passes - 1.0) * size, size, f) for f in ("copy", "elementwise"))
        seconds, spread = np.where(triad, other.time_s, one.time_s), np.where(triad, other.log_sigma, one.log_sigma)
        return seconds, spread, (passes * size)[:, None], size.tolist()
    direction, _, pinned = kind.partition("-")
    time = transfer_time(accelerator, size, direction, pinned == "pinned")
    return time.time_s, time.log_sigma, size[:, None], size.tolist()


def corrected_accelerator(accelerator: Accelerator, coefficients: DeviceCoefficients) -> Accelerator:
    """``accelerator`` as this device was measured."""
    return replace(accelerator, name=f"{accelerator.name} (this machine)", corrections=corrections_of(coefficients))


def corrections_of(coefficients: DeviceCoefficients) -> dict[str, Correction]:
    """The corrections of a device by key."""
    return {key: f.correction for key, f in coefficients.families.items() if f.correction is not None}


# --- the file ---


def save(devices: Sequence[DeviceCoefficients], path: Path | None = None) -> Path:
    """Add ``devices`` to the file, each replacing the earlier entry of that device. The file is replaced atomically."""
    path = coefficients_path() if path is None else path
    by_device = {d.device: d for d in load(path)} | {d.device: d for d in devices}
    document = {"schema": SCHEMA, "devices": [asdict(d) for d in by_device.values()]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".coefficients-", delete=False, encoding="utf-8") as out:
            json.dump(document, out, allow_nan=False)
            out.flush()
            os.fsync(out.fileno())
        Path(out.name).replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}", hint="set GPUWISE_HOME to another folder") from None
    return path


def load(path: Path | None = None) -> list[DeviceCoefficients]:
    """Fits of this machine; may be empty. Raises DataError on a corrupt or newer file."""
    path = coefficients_path() if path is None else path
    if not path.exists():
        return []
    try:
        document = read_json(path)
    except FileError as error:
        raise DataError(error.message, hint=f"remove it; {_HINT}") from None
    newer = isinstance(document, dict) and cast("dict[str, Any]", document).get("schema")
    if isinstance(newer, int) and newer > SCHEMA:
        raise DataError(f"{path} was written by a newer gpuwise", hint="pip install -U gpuwise")
    try:
        return [_device(d) for d in cast("dict[str, Any]", document)["devices"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path} is corrupt", hint=f"remove it; {_HINT}") from None


def _device(d: dict[str, Any]) -> DeviceCoefficients:
    families = {key: _family(f) for key, f in d["families"].items()}
    rates = {str(k): float(v) for k, v in d["rates"].items()}
    return DeviceCoefficients(d["device"], d["name"], d["accelerator"], float(d["at_s"]), rates, families, d["software"])


def _family(f: dict[str, Any]) -> FamilyCoefficients:
    c = f["correction"]
    if c is not None:
        points = tuple(tuple(float(x) for x in p) for p in c["points"])
        weights = tuple(float(w) for w in c["weights"])
        numbers = [float(c[n]) for n in ("constant_variance", "shape_variance", "length", "log_sigma")]
        if len(points) != len(weights) or len({len(p) for p in points}) != 1 or not all(n >= 0 for n in numbers):
            raise ValueError("a correction whose parts do not fit together")
        c = Correction(points, weights, *numbers)
    return FamilyCoefficients(f["key"], int(f["rows"]), f["before"], f["after"], float(f["bias"]), c)
