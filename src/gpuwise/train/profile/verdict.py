"""The verdict on a step in one sentence, the same on every run of an unchanged script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.train.profile.findings.finding import Finding
from gpuwise.train.profile.split import Split
from gpuwise.units import format_duration

NAMED, STILL_NAMED = 0.12, 0.08
"""Share of the step that a waste has to cost to be the verdict; and to stay it, where it was at the last run. Rules of this
project: steps of a healthy loop differ by a few per cent from run to run."""
BUSY = 0.9
HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind`` is that of the finding, or ``healthy``."""

    kind: str
    sentence: str


def decide(findings: Sequence[Finding], split: Split, before: str | None = None) -> Verdict:
    """The verdict: the largest finding that matters; of two within a small margin, the one that was named ``before``."""
    wall = split.wall_s
    heavy = [f for f in findings if f.saved_s >= (STILL_NAMED if f.kind == before else NAMED) * wall]
    if not heavy:
        return Verdict(HEALTHY, _healthy(split))
    first = heavy[0]
    kept = next((f for f in heavy if f.kind == before), None)
    if kept is not None and kept.saved_s >= first.saved_s * STILL_NAMED / NAMED:
        first = kept
    share = 100 * min(first.saved_s / wall, 1.0)
    return Verdict(
        first.kind, f"{first.title}: about {format_duration(first.saved_s)} of {format_duration(wall)} a step ({share:.0f} %)."
    )


def _healthy(split: Split) -> str:
    device = "GPU" if split.device == "gpu" else "processor"
    largest = next(iter(split.families.items()), None)
    most = f", most of it on {largest[0]}" if largest is not None else ""
    return f"Nothing is wasted that would be worth a change: the {device} works {100 * split.busy_share:.0f} % of the step{most}."
