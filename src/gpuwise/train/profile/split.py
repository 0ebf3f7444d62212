"""A step's time split into parts that add up to it.

Every moment of the step belongs to the first matching part. On a GPU: compute by family of operation, exposed communication,
exposed copies; then, with the device idle, the host's activity: loaders, saving and logging, the allocator, a call that waits
for the device (until the next work reaches it), launching (``host gaps``), and its own Python (``other``). Occasional work of
a watched loop between two updates is ``between updates``. On a processor the operations are the device's work: loaders
(including writes to their workers), saving and logging, communication, the optimizer, operations by family; between
operations, gaps as short as an interpreter makes them (``host gaps``), and longer ones (``other``). First of all on either:
moves of an environment, if every update has them (``between updates``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuwise.train.profile.families import COMMUNICATION, COPIES_ON_DEVICE, OTHER_OPS, family
from gpuwise.train.profile.operations import OP_CATEGORIES, Operations, operations
from gpuwise.train.profile.passes import MODULE, MOVES, sampling
from gpuwise.train.profile.spans import NO_SPANS, difference, inside, intersection, length, spans, union
from gpuwise.train.profile.steps import Steps
from gpuwise.train.profile.trace import NONE, RUNTIME_CATEGORIES, Flags, Floats, Ints, Trace, launched_s, rows_of
from gpuwise.train.ticks import CLOSURE

DATA, COPIES, OPTIMIZER, HOST_GAPS, SYNC = "data wait", "copies", "optimizer", "host gaps", "sync points"
SAVE, ALLOCATOR, OTHER, PAUSES = "save and log", "allocator", "other", "between updates"
PARTS = (DATA, COPIES, "compute", COMMUNICATION, OPTIMIZER, HOST_GAPS, SYNC, SAVE, ALLOCATOR, OTHER, PAUSES)
SHORT_GAP_S = 200e-6
"""Longest gap between two operations on a processor from PyTorch's dispatch and the interpreter, beside the profiler's
recording time if known. Rule of this project."""
RECORDED = ("cpu_op", "python_function", "user_annotation")
"""Events of the host that the profiler takes time for."""


CROWD = 0.3
"""Share of a step that other programs had, from which only what they cannot have made is a gap of the script's own. Rule of this
project."""
STALL_S = 1e-3
"""Beyond the usual length of an operation, from which it may have stood still: about a slice of Linux's scheduler (0.75 ms of
``sched_min_granularity``, kernel/sched/fair.c), and more in a crowd."""


@dataclass(frozen=True, slots=True)
class Split:
    """Seconds of a step by part, mean over the steps."""

    device: str
    """``gpu`` or ``cpu``."""
    n_steps: int
    wall_s: float
    parts: Mapping[str, float]
    """Every name of ``PARTS``; they add up to ``wall_s``."""
    families: Mapping[str, float]
    """Parts of ``compute``, largest first; the sum equals it."""
    busy_s: float
    """Seconds in which the device works on anything."""
    layers: tuple[tuple[str, Floats], ...] = field(repr=False, default=())
    """(part or family, disjoint stretches): what was split, on the trace's clock."""

    @property
    def busy_share(self) -> float:
        """Share of the step in which the device computes."""
        return self.busy_s / self.wall_s if self.wall_s > 0 else 0.0

    def share(self, part: str) -> float:
        """Share of a part of the step."""
        return self.parts[part] / self.wall_s if self.wall_s > 0 else 0.0


def split_step(trace: Trace, steps: Steps, without: Floats = NO_SPANS, event_s: float = 0.0) -> Split:
    """The parts of the steps of a trace; stretches ``without`` are not in them. ``event_s`` is what the profiler takes to record
    an event of the host."""
    layers = [(PAUSES, "", played_of(trace, steps)[1])]
    layers += _gpu_layers(trace, steps) if trace.has_device else _cpu_layers(trace, steps)
    windows = difference(union([steps.work]), without)
    covered, found = NO_SPANS, list[tuple[str, str, Floats]]()
    for part, name, raw in layers:
        stretch = difference(intersection(raw, windows), covered)
        if len(stretch):
            found.append((part, name, stretch))
            covered = union([covered, stretch])
    rest = difference(windows, covered)
    if trace.has_device:
        found.append((OTHER, "", rest))
    else:
        recorded = np.sort(trace.start_s[trace.in_categories(RECORDED)])
        n_events = np.searchsorted(recorded, rest[:, 1]) - np.searchsorted(recorded, rest[:, 0])
        short = (rest[:, 1] - rest[:, 0]) - event_s * n_events <= SHORT_GAP_S
        found += [(HOST_GAPS, "", rest[short]), (OTHER, "", rest[~short])]
    return _added_up("gpu" if trace.has_device else "cpu", steps, windows, found, _busy(trace, windows))


def _added_up(device: str, steps: Steps, windows: Floats, rows: list[tuple[str, str, Floats]], busy_s: float) -> Split:
    n = steps.n
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    families: dict[str, float] = {}
    for part, name, stretch in rows:
        seconds = length(stretch) / n
        parts[part] += seconds
        if part == "compute":
            families[name] = families.get(name, 0.0) + seconds
    ordered = dict(sorted(families.items(), key=lambda p: -p[1]))
    layers = tuple((name or part, own) for part, name, own in rows)
    return Split(device, n, length(windows) / n, parts, ordered, busy_s / n, layers)


def _busy(trace: Trace, windows: Floats) -> float:
    if trace.has_device:
        work = trace.on_device
    else:
        ranges = _ranges(trace, DATA)
        ops = np.flatnonzero(trace.in_categories(OP_CATEGORIES))
        return length(difference(intersection(spans(trace.start_s[ops], trace.end_s[ops]), windows), ranges))
    return length(intersection(spans(trace.start_s[work], trace.end_s[work]), windows))


def _ranges(trace: Trace, part: str) -> Floats:
    """Annotated ranges of the host that are one part's. What an optimizer's step calls to compute the loss is not the
    optimizer's."""
    host = trace.in_categories(("user_annotation", *OP_CATEGORIES))
    rows = host & trace.named(lambda n: family("range", n) == part)
    ranges = spans(trace.start_s[rows], trace.end_s[rows])
    return difference(ranges, closures(trace)) if part == OPTIMIZER else ranges


def closures(trace: Trace) -> Floats:
    """Intervals ``[n, 2]`` of the closures that optimizers called: by the range that the watch writes around them, else by the
    names of Python's functions."""
    rows = trace.in_categories(("user_annotation", *OP_CATEGORIES)) & trace.named(lambda n: n == CLOSURE)
    if not rows.any():
        functions = trace.in_categories(("python_function",))
        rows = functions & trace.named(lambda n: n.endswith(": closure") or "optimization/closure.py(" in n)
    return spans(trace.start_s[rows], trace.end_s[rows])


def played_of(trace: Trace, steps: Steps) -> tuple[Floats, Floats, float | None]:
    """Environment work before every update: intervals ``[n, 2]`` of its turns, and the spans from the first to the last of
    them. Turns are moves of an environment (None), or sampling passes of the model, with the share of them that does not grow
    with their rows."""
    calls, whole = moves_of(trace, steps)
    return (calls, whole, None) if len(calls) else sampling(trace, steps, _ranges(trace, OPTIMIZER))


def moves_of(trace: Trace, steps: Steps) -> tuple[Floats, Floats]:
    """Intervals ``[n, 2]`` of the moves of an environment (calls of ``step`` outside of PyTorch and of modules, with no
    optimizer's in them), and of the spans from the first to the last move before each update, including passes of a model
    between them; both empty if one of the steps has fewer than ``MOVES``. Identified by the names of Python functions."""
    functions = trace.in_categories(("python_function",)) & (trace.lane == steps.lane)
    rows = functions & trace.named(lambda n: n.endswith("): step") and "torch/" not in n)
    if not rows.any():
        return NO_SPANS, NO_SPANS
    calls = spans(trace.start_s[rows], trace.end_s[rows])
    modules = functions & trace.named(lambda n: n.startswith(MODULE))
    passes = spans(trace.start_s[modules], trace.end_s[modules])
    updates = _ranges(trace, OPTIMIZER)
    calls = calls[~inside(calls[:, 0], passes) & (_begun(updates, calls[:, 1]) == _begun(updates, calls[:, 0]))]
    whole = list[tuple[float, float]]()
    for low, high in steps.windows.tolist():
        within = calls[(calls[:, 0] >= low) & (calls[:, 1] <= high)]
        if len(within) < MOVES or np.ptp(_begun(passes, within[[0, -1], 0])) == 0:
            return NO_SPANS, NO_SPANS
        whole.append((float(within[0, 0]), float(within[-1, 1])))
    return calls, np.array(whole, np.float64)


def _begun(calls: Floats, at_s: Floats) -> Ints:
    """Number of the intervals ``[n, 2]`` that have begun at each moment."""
    return np.searchsorted(calls[:, 0], at_s)


def _functions(trace: Trace, lane: int, part: str) -> Floats:
    """Python functions of the training thread that are one part's."""
    rows = trace.in_categories(("python_function",)) & (trace.lane == lane) & trace.named(lambda n: family("python", n) == part)
    return spans(trace.start_s[rows], trace.end_s[rows])


def _runtime(trace: Trace, part: str) -> Flags:
    return trace.in_categories(RUNTIME_CATEGORIES) & trace.named(lambda n: family("runtime", n) == part)


def _cpu_layers(trace: Trace, steps: Steps) -> list[tuple[str, str, Floats]]:
    ops = operations(trace, steps.lane, float(steps.windows[0, 0]), float(steps.windows[-1, 1]))
    layers = [
        (DATA, "", _ranges(trace, DATA)),
        (SAVE, "", _functions(trace, steps.lane, SAVE)),
        (COMMUNICATION, "", _by_family(ops).get(COMMUNICATION, NO_SPANS)),
        (OPTIMIZER, "", _ranges(trace, OPTIMIZER)),
    ]
    layers += [("compute", name, stretches) for name, stretches in _by_family(ops).items() if name != COMMUNICATION]
    # another thread's operations, if the training thread waits for them
    others = trace.in_categories(OP_CATEGORIES) & (trace.lane != steps.lane)
    sent = others & trace.named(lambda n: family("op", n) == COMMUNICATION)
    layers.append((COMMUNICATION, "", spans(trace.start_s[sent], trace.end_s[sent])))
    layers.append(("compute", OTHER_OPS, spans(trace.start_s[others], trace.end_s[others])))
    return layers


def _by_family(ops: Operations) -> dict[str, Floats]:
    names = ops.families
    kinds = {name: i for i, name in enumerate(dict.fromkeys(names))}
    ids = np.array([kinds[n] for n in names], np.int64)
    of = ids[ops.owner] if len(ops.owner) else np.zeros(0, np.int64)
    return {name: spans(ops.segments[of == i, 0], ops.segments[of == i, 1]) for name, i in kinds.items()}


def _gpu_layers(trace: Trace, steps: Steps) -> list[tuple[str, str, Floats]]:
    layers: list[tuple[str, str, Floats]] = []
    kernels = np.flatnonzero(trace.on_device)
    names = np.array(kernel_families(trace, kernels), dtype=object)
    by_optimizer = inside(launched_s(trace, kernels), _ranges(trace, OPTIMIZER))
    copies = trace.in_categories(("gpu_memcpy",))[kernels]
    crossing = copies & ~trace.named(lambda n: "DtoD" in n)[kernels]
    sent = names == COMMUNICATION
    compute = ~crossing & ~sent
    for name in dict.fromkeys(names[compute & ~by_optimizer].tolist()):
        rows = kernels[compute & ~by_optimizer & (names == name)]
        layers.append(("compute", name, spans(trace.start_s[rows], trace.end_s[rows])))
    for part, rows in ((OPTIMIZER, kernels[compute & by_optimizer]), (COMMUNICATION, kernels[sent]), (COPIES, kernels[crossing])):
        layers.append((part, "", spans(trace.start_s[rows], trace.end_s[rows])))
    allocator, waiting = _runtime(trace, ALLOCATOR), np.flatnonzero(_runtime(trace, "sync"))
    busy = np.sort(trace.start_s[kernels])
    until = trace.end_s[waiting].copy()
    following = np.searchsorted(busy, until)
    has = following < len(busy)
    until[has] = busy[following[has]]
    host = trace.in_categories((*OP_CATEGORIES, *RUNTIME_CATEGORIES))
    return [
        *layers,
        (DATA, "", _ranges(trace, DATA)),
        (SAVE, "", _functions(trace, steps.lane, SAVE)),
        (ALLOCATOR, "", spans(trace.start_s[allocator], trace.end_s[allocator])),
        (SYNC, "", spans(trace.start_s[waiting], until)),
        (HOST_GAPS, "", spans(trace.start_s[host], trace.end_s[host])),
    ]


def undisturbed_s(traced: Split, steps: Steps, trace: Trace) -> list[float]:
    """Seconds of Python between operations in each traced step, less what other programs took of them. Their turns come
    wherever the time is spent: they lengthen long gaps by their share of the step, and make long ones of short ones. Where they
    have ``CROWD`` of it, where they came is chance, and all of them are taken from the long gaps; below zero where some came
    elsewhere. Outside of the model's passes the gaps hold no more than the watch timed there of this thread."""
    long, short = (union([stretches for name, stretches in traced.layers if name == part]) for part in (OTHER, HOST_GAPS))
    waits, bare = ((a.tolist() if len(a) else [0.0] * steps.n) for a in (steps.waited_s, steps.bare_s))
    passes = _passes(trace, steps.lane)
    outside = difference(long, passes) if len(passes) and len(steps.bare_s) else NO_SPANS
    seconds: list[float] = []
    for window, waited, bare_s in zip(steps.windows, waits, bare, strict=True):
        own_s = max(float(window[1] - window[0]) - waited, 1e-12)
        long_s, short_s, outside_s = (length(intersection(gaps, window.reshape(1, 2))) for gaps in (long, short, outside))
        whole_s = own_s + waited
        # in a crowd the turns of the others may be all of the long gaps
        least_s = long_s - waited if waited > CROWD * whole_s else long_s * own_s / whole_s - short_s * waited / own_s
        seconds.append(min(least_s, long_s - max(outside_s - bare_s, 0.0)))
    return seconds


def _passes(trace: Trace, lane: int) -> Floats:
    """Intervals ``[n, 2]`` of the passes of models, forward and backward, by the names of Python's functions."""
    functions = trace.in_categories(("python_function",)) & (trace.lane == lane)
    rows = functions & trace.named(lambda n: n.startswith(MODULE) or ("torch/autograd/" in n and n.endswith(": backward")))
    return spans(trace.start_s[rows], trace.end_s[rows])


def stalls(trace: Trace, steps: Steps) -> tuple[Floats, Steps]:
    """Stretches in which a processor's thread was stalled by other programs: single operations far longer than usual for their
    name and shapes, and gaps far longer than the same gap of another step, longest first, up to the waiting time of their
    step. If that is ``CROWD`` of the step, all of them, as such a machine has uncounted delays (page faults, another virtual
    machine's turns). Returned with the remaining steps."""
    if trace.has_device or not steps.waited_s.any():
        return NO_SPANS, steps
    ops = operations(trace, steps.lane, float(steps.windows[0, 0]), float(steps.windows[-1, 1]))
    stretches, beyond = (np.concatenate(both) for both in zip(_long_operations(trace, ops), _long_gaps(ops, steps), strict=True))
    crowded = steps.waited_s > CROWD * (steps.windows[:, 1] - steps.windows[:, 0])
    gaps: list[tuple[float, float]] = []
    rest_s = steps.waited_s.copy()
    for at in beyond.argsort()[::-1][: int(np.count_nonzero(beyond))].tolist():
        end = float(stretches[at, 1])
        window = int(np.searchsorted(steps.windows[:, 0], end, side="left")) - 1
        if window < 0 or end > steps.windows[window, 1]:
            continue
        cut = float(beyond[at]) if crowded[window] else min(float(beyond[at]), float(rest_s[window]))
        if cut > 0:
            gaps.append((end - cut, end))
            rest_s[window] = max(rest_s[window] - cut, 0.0)
    stalled = spans(*np.array(sorted(gaps)).T) if gaps else NO_SPANS
    for window in np.flatnonzero(crowded & (rest_s > 0)).tolist():
        most = float(steps.waited_s[window] / np.ptp(steps.windows[window]))
        slow, taken_s = _shared(ops, stalled, steps.windows[window], float(rest_s[window]), most)
        stalled, rest_s[window] = union([stalled, slow]), rest_s[window] - taken_s
    return stalled, replace(steps, waited_s=rest_s)


def _shared(ops: Operations, stalled: Floats, window: Floats, waited_s: float, most: float) -> tuple[Floats, float]:
    """The ends of a step's operations that are as long as a turn of another program or longer, and how long all of them are
    together: what its long gaps cannot hold of ``waited_s``, as the usual length of such operations has it too, shared out by
    length; of each at most the share ``most``."""
    within = difference(intersection(ops.segments, window.reshape(1, 2)), stalled)
    gaps = difference(window.reshape(1, 2), union([ops.segments, stalled]))
    long, gaps = within[np.ptp(within, axis=1) > STALL_S], gaps[np.ptp(gaps, axis=1) > SHORT_GAP_S]
    whole_s, cut_s = length(long), max(waited_s - length(gaps), 0.0)
    if not cut_s or not whole_s:
        return NO_SPANS, 0.0
    share = min(cut_s / whole_s, most)
    ends = long[:, 1]
    return np.stack((ends - share * np.ptp(long, axis=1), ends), axis=1), share * whole_s


def event_cost_s(trace: Trace, steps: Steps, without: Floats, clean_s: float) -> float:
    """Seconds that the profiler takes to record one event of the host, where a step without it takes ``clean_s``: what the traced
    steps have beyond it and beside the delays by other programs; 0 on a GPU."""
    recorded = trace.start_s[trace.in_categories(RECORDED)]
    n = int(np.count_nonzero(inside(recorded, steps.windows)))
    own_s = length(difference(union([steps.windows]), without)) - float(steps.waited_s.sum())
    return max(own_s - clean_s * steps.n, 0.0) / n if n and not trace.has_device else 0.0


def _long_operations(trace: Trace, ops: Operations) -> tuple[Floats, Floats]:
    """Stretches of operations ``[n, 2]``, and by how much each is longer than usual; 0 where it may be so of itself."""
    lengths = ops.segments[:, 1] - ops.segments[:, 0]
    # an operation is several stretches where others are called in it
    whole = np.bincount(ops.owner, lengths, len(ops.rows))
    beyond = np.zeros(len(whole))
    for at in _alike(trace, ops, np.flatnonzero(whole > STALL_S)):
        beyond[at] = np.maximum(whole[at] - float(np.median(whole[at])), 0.0)
    beyond[(beyond <= STALL_S) | (beyond * 2.0 <= whole)] = 0.0
    excess = np.zeros(len(lengths))
    order = np.lexsort((lengths, ops.owner))
    longest = order[np.flatnonzero(np.diff(ops.owner[order], append=-1))]
    excess[longest] = np.minimum(beyond[ops.owner[longest]], lengths[longest])
    return ops.segments, excess


def _long_gaps(ops: Operations, steps: Steps) -> tuple[Floats, Floats]:
    """Stretches ``[n, 2]`` between operations inside the steps, and by how much each is longer than usual: than the shortest
    between the same two operations at the same turn of another step, or the shorter ones between such two where the steps
    differ. The loop's own Python is there in every step, a program that takes the processor is not."""
    names, stretches = ops.trace.name[ops.rows[ops.owner]], list[tuple[float, float]]()
    places: dict[tuple[int, int, int], list[int]] = {}
    kinds: dict[tuple[int, int], list[int]] = {}
    for low, high in steps.windows.tolist():
        here = np.flatnonzero((ops.segments[:, 1] > low) & (ops.segments[:, 0] < high))
        around = [NONE, *names[here].tolist(), NONE]
        ends = [low, *np.minimum(ops.segments[here, 1], high).tolist()]
        starts = [*np.maximum(ops.segments[here, 0], low).tolist(), high]
        turns: dict[tuple[int, int], int] = {}
        for pair, start, end in zip(itertools.pairwise(around), ends, starts, strict=True):
            if end > start:
                turn = turns[pair] = turns.get(pair, 0) + 1
                places.setdefault((*pair, turn), []).append(len(stretches))
                kinds.setdefault(pair, []).append(len(stretches))
                stretches.append((start, end))
    gaps = np.array(stretches, np.float64).reshape(-1, 2)
    lengths, beyond = gaps[:, 1] - gaps[:, 0], np.zeros(len(gaps))
    for (one, other, _), at in places.items():
        if lengths[at].max() > STALL_S:
            same = steps.n > 1 and len(at) == steps.n
            usual = lengths[at].min() if same else np.percentile(lengths[kinds[one, other]], 25)
            beyond[at] = lengths[at] - usual
    beyond[(beyond <= STALL_S) | (beyond * 2.0 <= lengths)] = 0.0
    return gaps, beyond


def _alike(trace: Trace, ops: Operations, long: Ints) -> list[Ints]:
    """Numbers of the operations of one name on tensors of the same shapes, wherever one of the name is among ``long``."""
    names = trace.name[ops.rows]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at in np.flatnonzero(np.isin(names, np.unique(names[long]))).tolist():
        shapes = trace.inputs(int(ops.rows[at])).shapes
        groups.setdefault((int(names[at]), *(tuple(s or ()) for s in shapes)), []).append(at)
    return [np.array(at, np.int64) for at in groups.values()]


def undisturbed(traced: Split, steps: Steps, trace: Trace) -> Split:
    """The split of a processor's traced steps without the gaps caused by other programs; unchanged if those are unknown."""
    if traced.device != "cpu" or not len(steps.waited_s):
        return traced
    # what came elsewhere in one step is made up for by the others
    own_s = max(float(np.mean(undisturbed_s(traced, steps, trace))), 0.0)
    taken_s = max(traced.parts[OTHER] - own_s, 0.0)
    parts = {**traced.parts, OTHER: traced.parts[OTHER] - taken_s}
    return replace(traced, wall_s=traced.wall_s - taken_s, parts=parts)


def kernel_families(trace: Trace, kernels: Ints) -> list[str]:
    """Family of each kernel: by the operation that launched it, else by its own name; copies by what they are."""
    owners = launching_ops(trace, kernels)
    copy = trace.in_categories(("gpu_memcpy",))
    names: list[str] = []
    for row, owner in zip(kernels.tolist(), owners.tolist(), strict=True):
        name = trace.text(row)
        by_name = family("kernel", name)
        if copy[row]:
            names.append(COPIES_ON_DEVICE)
        elif by_name in (COMMUNICATION, "compiled kernels"):
            names.append(by_name)
        else:
            names.append((family("op", trace.text(owner)) if owner != NONE else "") or by_name or OTHER_OPS)
    return names


def launching_ops(trace: Trace, kernels: Ints) -> Ints:
    """Row of the operation of the host that launched each kernel; -1 where the trace does not say."""
    return rows_of(trace.in_categories(OP_CATEGORIES), trace.external, trace.external[kernels])
