"""``gpuwise.toml``: the levers that a tuning chose and what it measured. Written for people to read and change."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import FieldError
from gpuwise.files import parse_toml, read_text

FILE = "gpuwise.toml"
VERSION = 1
HINT = "`gpuwise tune script.py` writes it"
NUMBERS = {"batch": (1, 2**24), "micro_batches": (1, 2**24)}
"""Allowed numbers of levers, other than workers and threads."""


@dataclass(frozen=True, slots=True)
class TunedSpeed:
    """Speed measured by the tuning with these levers."""

    rate: float
    """Samples (or steps) a second."""
    per: str
    step_s: float
    before_rate: float
    """Rate of the untouched script."""
    memory_bytes: int | None = None
    device: str | None = None
    """``cuda`` or ``cpu``."""
    device_name: str | None = None
    """Name of the device from its driver or the system: the rest is only valid there."""
    energy_j: float | None = None
    """Energy per sample (or step), idle power included."""
    basis: str = "the tuning"
    """Basis of the figures, in words."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The intended length of a run and its prices; None is unknown."""

    epochs: float | None = None
    """Passes over the training data."""
    total_steps: float | None = None
    """Turns of the training loop."""
    price_per_hour: float | None = None
    """US dollars for the machine."""
    usd_per_kwh: float | None = None
    """US dollars for electricity, of what is metered."""
    country: str | None = None
    """Country of the default electricity price."""


NO_PLAN = Plan()


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """The contents of one ``gpuwise.toml``."""

    script: str
    levers: Mapping[str, object] = field(default_factory=dict[str, object])
    expected: TunedSpeed | None = None
    plan: Plan = field(default_factory=Plan)


def write(tuned: TunedConfig, path: Path, notes: Mapping[str, str]) -> None:
    """Write the file. ``notes`` is a comment for each lever."""
    lines = [
        "# Written by gpuwise tune. `gpuwise run` puts these on the unmodified script; delete a line to leave a lever out.",
        f"version = {VERSION}",
        f"script = {json.dumps(tuned.script)}",
        "",
        "[levers]",
    ]
    for name, value in tuned.levers.items():
        note = f"  # {notes[name]}" if name in notes else ""
        lines.append(f"{name} = {json.dumps(value)}{note}")
    if tuned.expected is not None:
        e = tuned.expected
        lines += ["", "[expected]", f"rate = {e.rate:.6g}", f"per = {json.dumps(e.per)}", f"step_s = {e.step_s:.6g}"]
        lines.append(f"before_rate = {e.before_rate:.6g}")
        if e.memory_bytes is not None:
            lines.append(f"memory_bytes = {e.memory_bytes}")
        for name, text in (("device", e.device), ("device_name", e.device_name)):
            if text is not None:
                lines.append(f"{name} = {json.dumps(text)}")
        if e.energy_j is not None:
            lines.append(f"energy_j = {e.energy_j:.6g}")
    plan = {name: value for name, value in asdict(tuned.plan).items() if value is not None}
    if plan:
        lines += ["", "[run]", *(f"{name} = {json.dumps(value)}" for name, value in plan.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> TunedConfig:
    """Read the file. Raises InputError where it is not such a file, FieldError for an unknown lever or value."""
    document = parse_toml(read_text(path, hint=HINT), str(path), hint=HINT)
    if document.get("version") != VERSION:
        raise FieldError(
            f"version {document.get('version')!r} is not known", file=str(path), hint=f"this gpuwise reads {VERSION}"
        )
    unknown = sorted(set(document) - {"version", "script", "levers", "expected", "run"})
    if unknown:
        raise FieldError(f"unknown field {unknown[0]!r}", file=str(path))
    levers = document.get("levers", {})
    if not isinstance(levers, dict):
        raise FieldError("levers is not a table", file=str(path))
    table = cast("dict[str, Any]", levers)
    for name, value in table.items():
        _check(str(path), name, value)
    held = {k: v for k, v in table.items() if v is not False}
    return TunedConfig(
        str(document.get("script", "")), held, _expected(path, document), _plan(str(path), document.get("run", {}))
    )


def _check(file: str, name: str, value: object) -> None:
    from gpuwise.train.levers.table import BY_NAME

    if name not in BY_NAME:
        raise FieldError(f"there is no lever {name!r}", file=file, field=name, hint="there are " + ", ".join(BY_NAME))
    if value is False:
        return
    values = BY_NAME[name].put_on.values
    if name == "pruning":
        if value != "2:4" and not (isinstance(value, float) and 0 < value < 1):
            raise FieldError(f"pruning = {value!r}", file=file, field=name, hint='for example pruning = 0.5, or "2:4"')
        return
    numbers = not values or all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    least, most = NUMBERS.get(name, (0, 4096))
    if numbers and not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
        raise FieldError(f"{name} takes a whole number", file=file, field=name, hint=f"for example {name} = 2")
    # a cache may be given its bytes
    is_cache = name in ("cache_decode", "cache_items") and isinstance(value, int) and value > 0
    if not numbers and value not in values and not is_cache and name != "allocator":
        raise FieldError(
            f"{name} = {value!r}", file=file, field=name, hint="it takes " + " or ".join(json.dumps(v) for v in values)
        )


def _expected(path: Path, document: Mapping[str, Any]) -> TunedSpeed | None:
    expected = document.get("expected")
    if expected is None:
        return None
    try:
        return TunedSpeed(
            float(expected["rate"]),
            str(expected["per"]),
            float(expected["step_s"]),
            float(expected["before_rate"]),
            None if expected.get("memory_bytes") is None else int(expected["memory_bytes"]),
            expected.get("device"),
            expected.get("device_name"),
            None if expected.get("energy_j") is None else float(expected["energy_j"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FieldError(f"expected: {error} is missing or not a number", file=str(path)) from None


def _plan(file: str, given: object) -> Plan:
    if not isinstance(given, dict):
        raise FieldError("run is not a table", file=file)
    names, table = [f.name for f in fields(Plan)], cast("dict[str, Any]", given)
    for name, value in table.items():
        if name not in names:
            raise FieldError(f"unknown field {name!r} of run", file=file, field=name, hint="there are " + ", ".join(names))
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        if name != "country" and not number:
            raise FieldError(f"{name} = {value!r} is not a number above zero", file=file, field=name)
        if name == "country" and not (isinstance(value, str) and value):
            raise FieldError(f"{name} = {value!r} is not a name", file=file, field=name, hint='write it like country = "DE"')
    return Plan(**table)
