"""The split of a trace scaled to the length of a step without the profiler.

The profiler makes the host slower, not the device. The added time is subtracted from the host's parts by the number of events
recorded in each; parts timed by the watch without it (on a processor: loaders, optimizer, saving) keep those times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.train.profile.families import COMMUNICATION
from gpuwise.train.profile.spans import inside
from gpuwise.train.profile.split import COPIES, DATA, HOST_GAPS, OPTIMIZER, OTHER, PARTS, PAUSES, RECORDED, SAVE, Split
from gpuwise.train.profile.trace import Trace
from gpuwise.train.ticks import Step

JUST_BEFORE_S = 1e-9
"""The resolution of a trace."""
LEAST_LEFT = 0.1
"""Minimum remaining share of a part, for any number of events: the cost of an event differs. Rule of this project."""


def fit_to(
    split: Split, trace: Trace, step: Step, extra_s: float = 0.0, pauses_s: float = 0.0, *, clean_s: float | None = None
) -> Split:
    """The same parts, adding up to ``step.wall_s``, with ``extra_s`` (compiling) that belongs to none of them and ``pauses_s``
    between updates. ``clean_s`` is the step without the profiler that ``split`` is compared with, where that is not
    ``step.wall_s``: both with or both without what other programs took."""
    parts, families = dict(split.parts), dict(split.families)
    if pauses_s:
        # timed by the watch, in steps that exclude the usual one
        parts[PAUSES] = 0.0
    for name, seconds in _recording_s(split, trace, max(split.wall_s - (clean_s or step.wall_s), 0.0)).items():
        own = families if name in families else parts
        if name in own:
            own[name] = max(own[name] - seconds, LEAST_LEFT * own[name])
    parts["compute"] = sum(families.values())
    if split.device == "cpu":
        fixed = {DATA: step.data_s, OPTIMIZER: step.optimizer_s, SAVE: max(step.save_s, min(parts[SAVE], step.other_s))}
    else:
        fixed = {name: parts[name] for name in ("compute", COMMUNICATION, OPTIMIZER, COPIES)}
        if step.save_s > parts[SAVE]:
            # in steps that were not traced
            fixed[SAVE] = step.save_s
        # under the profiler a loader keeps up that does not without; at most all of the device's work hides it
        waited_s = step.data_s - sum(fixed[name] for name in ("compute", COMMUNICATION, OPTIMIZER))
        if waited_s > parts[DATA]:
            fixed[DATA] = waited_s
    fixed_s = sum(fixed.values())
    if fixed_s > step.wall_s > 0:
        fixed = {k: v * step.wall_s / fixed_s for k, v in fixed.items()}
        fixed_s = step.wall_s
    free = {k: v for k, v in parts.items() if k not in fixed}
    total = sum(free.values())
    left = step.wall_s - fixed_s
    free = {k: v * left / total for k, v in free.items()} if total > 0 else {**free, OTHER: left}
    parts = {name: {**fixed, **free}[name] for name in split.parts}
    parts[OTHER] += extra_s
    parts[PAUSES] += pauses_s
    whole = sum(families.values())
    scale = parts["compute"] / whole if whole > 0 else 0.0
    busy = min(split.busy_s, step.wall_s)
    if split.device == "cpu":
        busy = parts["compute"] + parts[COMMUNICATION] + parts[OPTIMIZER]
    return replace(
        split,
        wall_s=sum(parts.values()),
        parts=parts,
        families={k: v * scale for k, v in families.items()},
        busy_s=busy,
    )


def of_phases(step: Step, device: str = "cpu", pauses_s: float = 0.0) -> Split:
    """The split without a trace: the phases that the watch timed on the host, and ``pauses_s`` between updates."""
    compute = step.forward_s + step.backward_s
    parts = {
        **dict.fromkeys(PARTS, 0.0),
        DATA: step.data_s,
        COPIES: step.copy_s,
        "compute": compute,
        OPTIMIZER: step.optimizer_s,
        SAVE: step.save_s,
        OTHER: step.other_s,
        PAUSES: pauses_s,
    }
    families = {"forward": step.forward_s, "backward": step.backward_s}
    return Split(device, 1, sum(parts.values()), parts, families, compute + step.optimizer_s)


def _recording_s(split: Split, trace: Trace, excess_s: float) -> dict[str, float]:
    """Profiler time in each part of the host out of ``excess_s``, by the events recorded there: before an event begins, in the
    part around it."""
    recorded = trace.in_categories(RECORDED)
    starts = trace.start_s[recorded] - JUST_BEFORE_S
    host = (HOST_GAPS, OTHER, PAUSES, "sync points", "allocator", DATA, SAVE)
    counted: dict[str, int] = {}
    for name, own in split.layers:
        if split.device == "cpu" or name in host:
            counted[name] = counted.get(name, 0) + int(np.count_nonzero(inside(starts, own)))
    total = max(sum(counted.values()), 1)
    return {name: excess_s * n / total for name, n in counted.items()}
