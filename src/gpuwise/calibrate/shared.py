"""Measurements that people share: one file each, without names; read, predicted and scored here.

A file has rows of hardware, software, question, and seconds measured and predicted. Its digest tells a file that was edited.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.errors import FieldError, GpuwiseError, InputError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.cpus import Cpu, cpus
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.files import convert, read_json
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.local_measured import MeasuredSpeed, predicted
from gpuwise.version import VERSION

SUFFIX = ".gpuwise.json"
HINT = "it is what `gpuwise share FILE --out NAME.gpuwise.json` writes"
_Text = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[\w .:+@/()-]*$")]
_Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


Kind = Literal["decode", "prompt", "total", "all_reduce"]


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``device`` is an id of the catalogues of accelerators and processors."""

    device: _Text
    count: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What measured, what ran, and its version."""

    program: _Text
    engine: _Text = ""
    build: _Text = ""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was timed: writing a token, reading a prompt, tokens of many requests, or a collective of ``bytes``."""

    kind: Kind
    model: _Text = ""
    """Id of the catalogue."""
    weights: _Text = ""
    tokens: _Count = 0
    before: _Count = 0
    sequences: _Count = 1
    whole: bool = True
    bytes: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)] = 0.0


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement beside its prediction."""

    hardware: Hardware
    software: Software
    question: Question
    measured_s: _Positive
    """Seconds of one token, of the prompt, or of the collective."""
    predicted_s: dict[str, Any] | None = None
    """The estimate when it was shared."""


class SharedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shared file."""

    version: Literal[1]
    gpuwise: _Text
    month: Annotated[str, msgspec.Meta(pattern=r"^20\d\d-[01]\d$")]
    rows: Annotated[list[Row], msgspec.Meta(min_length=1, max_length=10_000)]
    digest: _Text


def shared_document(rows: Sequence[Row], month: str) -> dict[str, Any]:
    """The content of a file with these rows, which are predicted here."""
    known = [msgspec.structs.replace(row, predicted_s=to_document(predict(row))) for row in rows]
    content = {"version": 1, "gpuwise": VERSION, "month": month, "rows": msgspec.to_builtins(known)}
    return {**content, "digest": _digest(content)}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_shared(path: Path) -> SharedFile:
    """A shared file. Raises FieldError for another one, and for one that was edited."""
    document = read_json(path, hint=HINT)
    made = convert(document, SharedFile, str(path), hint=HINT)
    content = {k: v for k, v in cast("dict[str, Any]", document).items() if k != "digest"}
    if made.digest != _digest(content):
        raise FieldError(
            "was edited: its digest is of other content", file=str(path), hint="share the measurement again from its own output"
        )
    return made


def device_of(hardware: Hardware) -> Accelerator | Cpu:
    """The device as the catalogues have it. Raises InputError where neither does."""
    found: Accelerator | Cpu | None = accelerators().get(hardware.device) or cpus().get(hardware.device)
    if found is None:
        raise InputError(f"{hardware.device!r} is in no catalogue", hint="`gpuwise gpus` and `gpuwise cpus` list the ids")
    return found


def predict(row: Row) -> Estimate | None:
    """Seconds that this version predicts; None for what it does not predict. Raises InputError for unknown names."""
    q, device = row.question, device_of(row.hardware)
    if q.kind == "all_reduce":
        cluster = find_cluster(f"{row.hardware.count}x{row.hardware.device}")
        local = min(row.hardware.count, cluster.system.count)
        time = collective_time(cluster.system, q.kind, q.bytes, row.hardware.count, local)
        return Estimate.from_log_sigma(float(time.time_s[0]), float(time.log_sigma[0]), time.basis)
    # a rate of 1: only what was asked is read
    speed = MeasuredSpeed(q.kind, row.software.program, row.software.engine, 1.0, q.tokens, q.before)
    speed = replace(speed, sequences=q.sequences, whole=q.whole)
    rate = predicted(speed, find_model(q.model), device, q.weights, row.hardware.count)
    return None if rate is None else rate.inverse(1 if q.kind == "decode" else q.tokens)


def score(folder: Path, all_check: bool) -> Scores | None:
    """Every row of the shared files in ``folder``, by month and device; no fit has seen one. None without such files."""
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    rows = [(made.month, row) for made in map(read_shared, files) for row in made.rows]
    if not rows:
        return None
    found: list[Estimate | None] = []
    reasons: list[str] = []
    for _, row in rows:
        estimate, reason = None, "not predicted"
        try:
            estimate = predict(row)
        except GpuwiseError as error:
            reason = error.message
        found.append(estimate)
        reasons.append("" if estimate is not None else reason)
    return Scores(
        source=[f"{row.software.program} {month}" for month, row in rows],
        gpu=[row.hardware.device for _, row in rows],
        split=["check"] * len(rows),
        measured=np.array([row.measured_s for _, row in rows]),
        predicted=np.array([math.nan if e is None else e.expected for e in found]),
        log_sigma=np.array([math.nan if e is None else e.log_sigma for e in found]),
        baseline=np.full(len(rows), math.nan),
        reason=reasons,
    )
