"""The verdict on a step in one sentence, the same on every run of an unchanged script: the last one is remembered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpuwise.errors import FileError
from gpuwise.files import read_json
from gpuwise.records.store import records_path
from gpuwise.train.profile.finding import OF_GAPS, Finding
from gpuwise.train.profile.split import ALLOCATOR, COPIES, DATA, HOST_GAPS, OTHER, PAUSES, SAVE, SYNC, Split
from gpuwise.units import format_duration

NAMED, STILL_NAMED = 0.12, 0.08
"""Share of the step that a waste has to cost to be the verdict; and to stay it, where it was at the last run. Rules of this
project: steps of a healthy loop differ by a few per cent from run to run."""
NAMED_IN_CROWD = 0.15
"""The same if other programs used the processors for more than ``CROWDED`` of the run: three classifiers of digits that wait
for data in 6 to 9 % of their steps on an idle machine did in 11 to 12.5 % there (records of 23 and 25 November 2026)."""
BUSY = 0.8
"""Share of the step in which the device works, from which nothing is called wasted. Rule of this project."""
TOGETHER = 0.25
"""Share of the step that several wastes, none of which is named alone, save together: the step is not healthy. Rule of this
project: those of healthy foreign scripts add up to 14 % at most (record of 27 November 2026)."""
CROWDED = 0.3
"""Share of the step in gaps by other programs above which the rest cannot be judged; and share of a run with busy processors
that counts as crowded. Rule of this project."""
MOSTLY = 0.5
"""Share of the step between updates above which that is the verdict, regardless of other savings. Rule of this project."""
MOST_REMEMBERED = 200
"""Scripts that are remembered; the oldest is forgotten first."""
HEALTHY, SPREAD = "healthy", "no single waste"
IDLE = (DATA, COPIES, HOST_GAPS, SYNC, SAVE, ALLOCATOR, OTHER, PAUSES)
"""Parts of the step in which the device does nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind`` is that of the finding, ``healthy``, or ``no single waste`` where the device idles for reasons that are no
    finding."""

    kind: str
    sentence: str


def decide(
    findings: Sequence[Finding],
    split: Split,
    before: str | None = None,
    elsewhere_s: float = 0.0,
    *,
    traced: bool = True,
    queue_share: float = 0.0,
) -> Verdict:
    """The verdict: the largest relevant finding; of two within a small margin, the one named ``before``.

    For ``elsewhere_s`` of a step other programs had the processor: that time is not counted as the script's waste. Without a
    trace (``traced`` False) only the phases are known, and no step is reported as healthy. ``queue_share`` is that of the
    whole run.
    """
    wall, named = split.wall_s, NAMED_IN_CROWD if queue_share > CROWDED else NAMED
    own = max(1.0 - elsewhere_s / wall, 0.0) if wall > 0 else 1.0

    def saved_s(f: Finding) -> float:
        return f.saved_s * (own if f.kind in OF_GAPS else 1.0)

    heavy = [f for f in findings if saved_s(f) >= (STILL_NAMED if f.kind == before else named) * wall]
    if not heavy and not traced:
        return Verdict(SPREAD, _untraced(split))
    if not heavy:
        # a program that takes the processor leaves a gap longer than Python's own
        lost_s = min(split.parts[OTHER], elsewhere_s)
        idle = max(split.parts[p] - lost_s * (p == OTHER) for p in IDLE)
        together_s = sum(saved_s(f) for f in findings) if len(findings) > 1 else 0.0
        if together_s >= TOGETHER * wall and lost_s < CROWDED * wall:
            return Verdict(SPREAD, _several(findings, split, together_s))
        if split.busy_s > BUSY * (wall - lost_s) and idle < named * wall and lost_s < CROWDED * wall:
            return Verdict(HEALTHY, _healthy(split, lost_s))
        return Verdict(SPREAD, _spread(findings, split, lost_s))
    first = heavy[0]
    if split.share(PAUSES) > MOSTLY:
        # what is saved within the update is saved of the rest
        first = next((f for f in heavy if f.kind == PAUSES), first)
    finding = next((f for f in heavy if f.kind == before), None)
    if finding is not None and finding.saved_s >= first.saved_s * STILL_NAMED / NAMED:
        first = finding
    share = 100 * min(first.saved_s / wall, 1.0)
    return Verdict(
        first.kind, f"{first.title}: about {format_duration(first.saved_s)} of {format_duration(wall)} a step ({share:.0f} %)."
    )


def _spread(findings: Sequence[Finding], split: Split, lost_s: float) -> str:
    if lost_s >= CROWDED * split.wall_s:
        share = f"other programs had the processor for {100 * lost_s / split.wall_s:.0f} % of the step"
        return f"The machine is too busy to judge the script: {share}. Run it again when it is idle."
    parts = sorted(((split.parts[p], p) for p in IDLE), reverse=True)
    text = " and ".join(f"{name} {100 * s / split.wall_s:.0f} %" for s, name in parts[:2] if s > 0) or "no part of its own"
    largest = f"{findings[0].kind}, {100 * findings[0].saved_s / split.wall_s:.0f} %" if findings else "under 2 %"
    return (
        f"No single waste, but the {_device(split)} works only {100 * split.busy_share:.0f} % of the step: {text}; "
        f"the largest that one change would save: {largest}."
    )


def _several(findings: Sequence[Finding], split: Split, together_s: float) -> str:
    text = ", ".join(f"{f.kind} {100 * f.saved_s / split.wall_s:.0f} %" for f in findings[:3])
    return f"No single waste, but several that add up to {100 * together_s / split.wall_s:.0f} % of the step: {text}."


def _untraced(split: Split) -> str:
    phases = ", ".join(f"{name} {100 * s / split.wall_s:.0f} %" for name, s in split.families.items() if s > 0)
    return f"The run was too short to see what is wasted: {phases} of the step; let it train for 40 steps or more."


def _device(split: Split) -> str:
    return "GPU" if split.device == "gpu" else "processor"


def _healthy(split: Split, lost_s: float) -> str:
    largest = next(iter(split.families.items()), None)
    most = f", most of it on {largest[0]}" if largest is not None else ""
    busy = f"the {_device(split)} works {100 * split.busy_share:.0f} % of the step"
    if split.busy_share <= BUSY:
        busy += f", and waits for other programs for {100 * lost_s / split.wall_s:.0f} %"
    return f"No change would save enough to be worth it: {busy}{most}."


def _file() -> Path:
    return records_path().parent / "profile_verdicts.json"


def _key(script: str, arguments: tuple[str, ...]) -> str:
    place = script if not Path(script).exists() else str(Path(script).resolve())
    return hashlib.sha256("\0".join((place, *arguments)).encode()).hexdigest()[:24]


def _load() -> dict[str, str]:
    with suppress(FileError):
        kept = read_json(_file())
        if isinstance(kept, dict):
            return {str(k): str(v) for k, v in cast("dict[object, object]", kept).items()}
    return {}


def verdict_before(script: str, arguments: tuple[str, ...]) -> str | None:
    """Kind of the last verdict on this script with these arguments; None without one."""
    return _load().get(_key(script, arguments))


def remember(script: str, arguments: tuple[str, ...], kind: str) -> None:
    """Store the verdict; ignored where the folder cannot be written."""
    key, kept = _key(script, arguments), _load()
    kept.pop(key, None)
    kept[key] = kind
    file = _file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dict(list(kept.items())[-MOST_REMEMBERED:])), "utf-8")
        part.replace(file)
