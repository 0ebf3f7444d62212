"""Begin and end of every step of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuwise.train.profile.trace import Floats, Trace, launched_s
from gpuwise.train.ticks import Step, Tick, boundary

_PROFILER = re.compile(r"ProfilerStep#\d+")
_OPTIMIZER = "Optimizer.step#"
PROFILER_STEPS = "profiler steps"


@dataclass(frozen=True, slots=True)
class Steps:
    """Windows of whole steps, [n, 2] seconds on the trace's clock, in order."""

    windows: Floats
    by: str
    """``profiler steps``, ``optimizer steps``, or ``whole trace`` where no step is marked in it."""
    lane: int
    """The thread that trains."""
    waited_s: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    """Waiting seconds of each window, while other programs had the processors. Empty if unknown."""
    bare_s: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    """The loop's own seconds of each window outside passes, loader, optimizer and files, without other programs. Empty if
    unknown."""
    device: Floats = field(default_factory=lambda: np.zeros((0, 2)), repr=False)
    """The same steps on the device, [n, 2]: each ends with the last work issued before the window's end. A host that never
    waits is ahead by the whole launch queue. Empty without a device."""

    @property
    def n(self) -> int:
        """Number of steps."""
        return len(self.windows)

    @property
    def work(self) -> Floats:
        """When the steps were done, [n, 2]: by the device where there is one."""
        return self.device if len(self.device) else self.windows

    @property
    def wall_s(self) -> float:
        """Mean length of a step."""
        return float((self.work[:, 1] - self.work[:, 0]).mean())


def clean_s(steps: Steps, step: Step) -> float:
    """The step without the profiler that traced ones are compared with: without other programs' time where theirs have none."""
    return step.undisturbed_s if len(steps.waited_s) else step.wall_s


def chosen(steps: Steps, at: Sequence[int]) -> Steps:
    """Some of the windows, by their numbers."""
    rows = list(at)
    waited_s, bare_s, device = (a[rows] if len(a) else a for a in (steps.waited_s, steps.bare_s, steps.device))
    return replace(steps, windows=steps.windows[rows], waited_s=waited_s, bare_s=bare_s, device=device)


def with_delays(steps: Steps, timed: Sequence[Step]) -> Steps:
    """The same with this thread's delays that the watch timed in the same steps; without, if their numbers differ. The first
    range in a trace begins after the tick before it, and is dropped if all the others were timed."""
    if steps.by == PROFILER_STEPS and timed and steps.n == len(timed) + 1:
        steps = chosen(steps, range(1, steps.n))
    if len(timed) != steps.n:
        return steps
    bare_s = np.array([max(s.other_s - s.bare_queue_s, 0.0) for s in timed])
    return replace(steps, waited_s=np.array([s.queue_s - s.worker_queue_s for s in timed]), bare_s=bare_s)


def without_tail(steps: Steps, trace: Trace, timed: Sequence[Step]) -> Steps:
    """Each window as long as the watch timed that step: the profiler ends within its last range, after the step."""
    if len(timed) != steps.n:
        return steps
    ends_s = steps.windows[:, 0] + np.array([s.wall_s for s in timed])
    windows = np.stack((steps.windows[:, 0], np.minimum(steps.windows[:, 1], ends_s)), axis=1)
    return replace(steps, windows=windows, device=_on_device(trace, windows) if trace.has_device else steps.device)


def find_steps(trace: Trace, optimizers: Sequence[int] = ()) -> Steps:
    """Steps from ``ProfilerStep#`` ranges if there are any, else from one optimizer step's end to the next. ``optimizers`` are
    the numbers of the optimizers that stepped, in order, if a watch reported them: two of one class have the same name in a
    trace.

    The first window of optimizer steps is dropped, as the trace begins inside it.
    """
    steps = _marked(trace, optimizers)
    return replace(steps, device=_on_device(trace, steps.windows)) if trace.has_device else steps


def _on_device(trace: Trace, windows: Floats) -> Floats:
    """The windows [n, 2] as the device has them: each moment of the host put off to the end of all that was issued before."""
    rows = np.flatnonzero(trace.on_device)
    issued = launched_s(trace, rows)
    order = issued.argsort(kind="stable")
    done = np.concatenate(([-np.inf], np.maximum.accumulate(trace.end_s[rows[order]])))
    return np.maximum(windows, done[np.searchsorted(issued[order], windows, side="right")])


def _marked(trace: Trace, optimizers: Sequence[int]) -> Steps:
    host = ~trace.on_device & ~trace.in_categories(("gpu_user_annotation",))
    rows = np.flatnonzero(trace.named(lambda n: _PROFILER.fullmatch(n)) & host)
    if rows.size:
        windows = np.stack((trace.start_s[rows], trace.end_s[rows]), axis=1)
        return Steps(windows[windows[:, 1] > windows[:, 0]], PROFILER_STEPS, int(trace.lane[rows[0]]))
    rows = np.flatnonzero(trace.named(lambda n: n.startswith(_OPTIMIZER)) & host)
    ends = _turns(trace, rows, optimizers)
    if len(ends) >= 2:
        return Steps(np.stack((ends[:-1], ends[1:]), axis=1), "optimizer steps", int(trace.lane[rows[0]]))
    lane = _busiest(trace)
    return Steps(np.array([[0.0, trace.span_s]]), "whole trace", lane)


def _turns(trace: Trace, rows: np.ndarray[tuple[int], np.dtype[np.intp]], optimizers: Sequence[int]) -> Floats:
    """Ends of the optimizer that closes a turn of the loop."""
    if rows.size < 2:
        return np.zeros(0)
    rows = rows[trace.end_s[rows].argsort(kind="stable")]
    stepped = trace.name[rows].tolist() if len(optimizers) != len(rows) else list(optimizers)
    closing = boundary([Tick(at_s=float(end), optimizer=who) for end, who in zip(trace.end_s[rows], stepped, strict=True)])
    return trace.end_s[rows[np.array(stepped) == closing]]


def _busiest(trace: Trace) -> int:
    ops = trace.in_categories(("cpu_op", "operator", "Operator"))
    lanes = trace.lane[ops] if ops.any() else trace.lane[~trace.on_device]
    return int(np.bincount(lanes).argmax()) if lanes.size else 0
