"""The straggler among the ranks, and the reason, from each rank's own step records."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwise.machine.devices.readings import EventReason

NOTICEABLE = 0.05
"""Minimum share of a step to report. Rule of this project."""
LEAST_STEPS = 3
Step = Mapping[str, Any]
CAUSES = {
    "data_s": "its loader gives batches late",
    "queue_s": "other programs are on its processor",
    "rest_s": "it computes longer: a slower or throttled device, or more work",
}
HELD = {
    EventReason.SW_THERMAL: "too hot",
    EventReason.HW_THERMAL: "too hot",
    EventReason.HW_POWER_BRAKE: "slowed from outside: its power supply",
    EventReason.HW_SLOWDOWN: "slowed by its board",
    EventReason.SW_POWER_CAP: "at its power limit",
    EventReason.APPLICATION_CLOCKS: "its clocks were set lower",
}
"""Reasons for a reduced clock; the first that applies counts."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that waits least, because all others wait for it."""

    rank: int
    lost_s: float
    """Seconds per step that the others wait more than it does."""
    share: float
    """Share of a step."""
    cause: str


def straggler(ranks: Sequence[Sequence[Step]]) -> Straggler | None:
    """From the steps of every rank; None where all wait alike, or where there are few steps. On GPUs the process does not see its
    kernels wait: there a rank is named by its loader, its processor, or its GPU's clock. The first step, in which things are
    made, does not count."""
    if len(ranks) < 2 or not ranks[0]:
        return None
    seen = Counter(n for steps in ranks for n in {int(s["step"]) for s in steps})
    common = sorted(n for n, times in seen.items() if times == len(ranks))[1:]
    if len(common) < LEAST_STEPS:
        return None
    shared = [[s for s in steps if s["step"] in common] for steps in ranks]
    if any(s["wait_s"] is None for steps in shared for s in steps):
        return _late_host(shared) or _slow_clock(shared)
    means = [_means(steps) for steps in shared]
    last = min(range(len(means)), key=lambda r: means[r]["wait_s"])
    others = [m for r, m in enumerate(means) if r != last]
    lost_s = statistics.fmean(m["wait_s"] for m in others) - means[last]["wait_s"]
    share = lost_s / means[last]["step_s"]
    if share < NOTICEABLE:
        return None
    more = {name: means[last][name] - statistics.fmean(m[name] for m in others) for name in CAUSES}
    return Straggler(last, lost_s, share, CAUSES[max(more, key=lambda name: more[name])])


def _late_host(ranks: Sequence[Sequence[Step]]) -> Straggler | None:
    """The rank whose program comes late to its GPU."""
    late = {name: [statistics.fmean(s[name] for s in steps) for steps in ranks] for name in ("data_s", "queue_s")}
    sums = [sum(each) for each in zip(*late.values(), strict=True)]
    last = max(range(len(sums)), key=lambda r: sums[r])

    def more(each: Sequence[float]) -> float:
        return each[last] - statistics.fmean(v for r, v in enumerate(each) if r != last)

    share = more(sums) / statistics.fmean(s["step_s"] for s in ranks[last])
    if share < NOTICEABLE:
        return None
    return Straggler(last, more(sums), share, CAUSES[max(late, key=lambda name: more(late[name]))])


def _slow_clock(ranks: Sequence[Sequence[Step]]) -> Straggler | None:
    """The rank whose GPU runs slower than the others'; the time lost is that of steps that are all computing."""
    clocks = [[float(s["sm_clock_hz"]) for s in steps if s.get("sm_clock_hz")] for steps in ranks]
    if min(map(len, clocks)) < LEAST_STEPS:
        return None
    means = [statistics.fmean(each) for each in clocks]
    last = min(range(len(means)), key=lambda r: means[r])
    others = statistics.median(m for r, m in enumerate(means) if r != last)
    share = 1.0 - means[last] / others
    if share < NOTICEABLE:
        return None
    held = Counter(bit for s in ranks[last] for bit in HELD if int(s.get("held_by") or 0) & bit)
    why = f" ({HELD[held.most_common(1)[0][0]]})" if held else ""
    words = f"its GPU runs at {means[last] / 1e6:,.0f} MHz, the others' at {others / 1e6:,.0f}{why}"
    return Straggler(last, share * statistics.fmean(s["step_s"] for s in ranks[last]), share, words)


def _means(steps: Sequence[Step]) -> dict[str, float]:
    found = {name: statistics.fmean(s[name] for s in steps) for name in ("step_s", "data_s", "wait_s", "queue_s")}
    found["rest_s"] = found["step_s"] - found["data_s"] - found["wait_s"] - found["queue_s"]
    return found


def usual_counts(steps: Sequence[Step]) -> dict[str, list[int]]:
    """The collectives that most steps had, the first not counted."""
    seen = Counter(tuple(sorted((k, *v) for k, v in s["collectives"].items())) for s in steps[1:] or steps)
    return {k: [n, size] for k, n, size in seen.most_common(1)[0][0]} if seen else {}
