"""Which rank the others wait for, and why, from what each wrote of its own steps."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTICEABLE = 0.05
"""Of a step: less is not worth a name. Rule of this project."""
LEAST_STEPS = 3
Step = Mapping[str, Any]
CAUSES = {
    "data_s": "its loader gives batches late",
    "queue_s": "other programs are on its processor",
    "rest_s": "it computes longer: a slower or throttled device, or more work",
}


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that waits least, because all others wait for it."""

    rank: int
    lost_s: float
    """That the others wait more than it does, a step."""
    share: float
    """Of a step."""
    cause: str


def straggler(ranks: Sequence[Sequence[Step]]) -> Straggler | None:
    """From the steps of every rank; None where all wait alike, where there are few steps, or on GPUs, whose waiting the process
    does not see. The first step, in which things are made, does not count."""
    if len(ranks) < 2 or not ranks[0]:
        return None
    seen = Counter(n for steps in ranks for n in {int(s["step"]) for s in steps})
    common = sorted(n for n, times in seen.items() if times == len(ranks))[1:]
    if len(common) < LEAST_STEPS or any(s["wait_s"] is None for s in ranks[0]):
        return None
    means = [_means([s for s in steps if s["step"] in common]) for steps in ranks]
    last = min(range(len(means)), key=lambda r: means[r]["wait_s"])
    others = [m for r, m in enumerate(means) if r != last]
    lost_s = statistics.fmean(m["wait_s"] for m in others) - means[last]["wait_s"]
    share = lost_s / means[last]["step_s"]
    if share < NOTICEABLE:
        return None
    more = {name: means[last][name] - statistics.fmean(m[name] for m in others) for name in CAUSES}
    return Straggler(last, lost_s, share, CAUSES[max(more, key=lambda name: more[name])])


def _means(steps: Sequence[Step]) -> dict[str, float]:
    found = {name: statistics.fmean(s[name] for s in steps) for name in ("step_s", "data_s", "wait_s", "queue_s")}
    found["rest_s"] = found["step_s"] - found["data_s"] - found["wait_s"] - found["queue_s"]
    return found


def usual_counts(steps: Sequence[Step]) -> dict[str, list[int]]:
    """The collectives that most steps had, the first not counted."""
    seen = Counter(tuple(sorted((k, *v) for k, v in s["collectives"].items())) for s in steps[1:] or steps)
    return {k: [n, size] for k, n, size in seen.most_common(1)[0][0]} if seen else {}
