"""The data that a rule of the profiler reads: the split of a step, its trace, and facts about run and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gpuwise.train.profile.finding import Evidence
from gpuwise.train.profile.operations import OP_CATEGORIES, Lines, Operations, operations
from gpuwise.train.profile.passes import MODULE, NODE, Passes, passes_of
from gpuwise.train.profile.products import Product, key_of, product_of
from gpuwise.train.profile.run_facts import RunFacts
from gpuwise.train.profile.spans import NO_SPANS, difference, inside, intersection, length, spans
from gpuwise.train.profile.split import CROWD, RECORDED, Split, closures, kernel_families, launching_ops
from gpuwise.train.profile.steps import Steps, clean_s
from gpuwise.train.profile.trace import NONE, RUNTIME_CATEGORIES, Flags, Floats, Ints, Trace, launched_s


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Peak rates and memory of the device, where known."""

    name: str = ""
    peak_flop_per_s: Mapping[str, float] | None = None
    memory_bytes: float | None = None
    n_cores: int = 1
    """Cores of the host available to the process."""


LAUNCH_S = 10e-6
"""A kernel shorter than it takes to launch one: 5 to 20 us (HolisticTraceAnalysis, documentation of its launch statistics)."""
WAITING_CALL_S = 20e-6
"""Length of a driver call above which it waits for the device: longer than any launch of the same source."""
FEWEST_STEPS = 3
"""Steps from which a median leaves one out."""
BUSY_ENOUGH = 0.9
"""Share of the step above which a busy device is not slowed down by the host."""


@dataclass(frozen=True, eq=False)
class RankView:
    """The trace of one rank of several."""

    rank: int
    trace: Trace
    steps: Steps


@dataclass(frozen=True, eq=False)
class ProfileData:
    """``split`` adds up to the step as it is without the profiler; ``traced`` to the step of the trace."""

    split: Split
    traced: Split | None = None
    trace: Trace | None = None
    steps: Steps | None = None
    facts: RunFacts | None = None
    device: DeviceFacts = DeviceFacts()
    ranks: Sequence[RankView] = ()
    stalled: Floats = field(default_factory=lambda: NO_SPANS)
    """Stretches ``[n, 2]`` of the trace in which other programs had the processor: no operation's own time."""

    @property
    def on_gpu(self) -> bool:
        """Whether the step ran on a GPU."""
        return self.split.device == "gpu"

    @property
    def wall_s(self) -> float:
        """Seconds of a step without the profiler."""
        return self.split.wall_s

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the traced GPU (NVIDIA); None otherwise."""
        return None if self.trace is None else self.trace.capability

    @property
    def factor(self) -> float:
        """Seconds of the host's work without the profiler over those in the trace; 1 for what a GPU does."""
        if self.on_gpu or self.traced is None or self.traced.parts["compute"] <= 0:
            return 1.0
        return self.split.parts["compute"] / self.traced.parts["compute"]

    @property
    def crowded(self) -> bool:
        """Whether other programs used so much of the traced steps that a short gap may be theirs."""
        timed = self.facts.traced if self.facts is not None else ()
        return sum(s.queue_s for s in timed) > CROWD * sum(s.wall_s for s in timed) if timed else False

    @property
    def lengthening(self) -> float:
        """Length of the step with the time of other programs, which the parts share, over that without; 1 where the traced steps
        have it too."""
        if self.steps is None or self.facts is None:
            return 1.0
        clean = clean_s(self.steps, self.facts.step)
        return self.facts.step.wall_s / clean if clean > 0 else 1.0

    @cached_property
    def event_s(self) -> float:
        """Seconds that the profiler takes to record one host event; 0 if the step without it is unknown."""
        if self.trace is None or self.traced is None or self.facts is None or self.steps is None:
            return 0.0
        n = len(self.rows(RECORDED))
        return max(self.traced.wall_s - clean_s(self.steps, self.facts.step), 0.0) * self.n_steps / n if n else 0.0

    def part(self, name: str) -> float:
        """Seconds a step of a part or a family."""
        return self.split.parts.get(name, self.split.families.get(name, 0.0))

    # -- the trace's events

    @cached_property
    def n_steps(self) -> int:
        """Steps in the trace."""
        return 1 if self.steps is None else self.steps.n

    @cached_property
    def ops(self) -> Operations | None:
        """Operations of the training thread."""
        if self.trace is None or self.steps is None:
            return None
        windows = self.steps.windows
        return operations(self.trace, self.steps.lane, float(windows[0, 0]), float(windows[-1, 1]))

    @cached_property
    def passes(self) -> Passes | None:
        """The outermost passes of models; None without a trace."""
        return None if self.trace is None or self.steps is None else passes_of(self.trace, self.steps)

    @cached_property
    def lines(self) -> Lines | None:
        """Lines of the script that the training thread was in; None without a trace."""
        return None if self.trace is None or self.steps is None else Lines(self.trace, self.steps.lane)

    def rows(self, categories: Sequence[str], matches: Callable[[str], object] = lambda n: True) -> Ints:
        """Events that begin inside the steps, by category and name; what a device does, inside the steps as it does them."""
        if self.trace is None or self.steps is None:
            return np.zeros(0, np.int64)
        found = self.trace.in_categories(categories) & self.trace.named(matches)
        rows = np.flatnonzero(found)
        began, works = self.trace.start_s[rows], self.trace.on_device[rows]
        return rows[np.where(works, inside(began, self.steps.work), inside(began, self.steps.windows))]

    def seconds(self, rows: Ints) -> float:
        """Length of the union of these events, seconds a step."""
        if self.trace is None or self.steps is None or not len(rows):
            return 0.0
        stretches = spans(self.trace.start_s[rows], self.trace.end_s[rows])
        windows = self.steps.work if self.trace.on_device[rows].all() else self.steps.windows
        return length(difference(intersection(stretches, windows), self.stalled)) / self.n_steps

    def own_s(self, rows: Ints) -> Floats:
        """Seconds of each of these events, without those in which other programs had the processor."""
        if self.trace is None or not len(self.stalled):
            return np.zeros(0) if self.trace is None else self.trace.duration_s[rows]
        edges = self.stalled.ravel()
        passed = np.concatenate(([0.0], np.cumsum(self.stalled[:, 1] - self.stalled[:, 0])))
        sums = np.stack((passed[:-1], passed[1:]), axis=1).ravel()
        lost = np.interp(self.trace.end_s[rows], edges, sums) - np.interp(self.trace.start_s[rows], edges, sums)
        return self.trace.duration_s[rows] - lost

    @cached_property
    def host_ops(self) -> Ints:
        """Operations of all threads."""
        return self.rows(OP_CATEGORIES)

    @cached_property
    def kernels(self) -> Ints:
        """Rows of the kernels inside the steps."""
        return self.rows(("kernel",))

    @cached_property
    def kernel_family(self) -> list[str]:
        """Family of each kernel."""
        return [] if self.trace is None else kernel_families(self.trace, self.kernels)

    @cached_property
    def kernel_owner(self) -> Ints:
        """Row of the operation that launched each kernel."""
        return self.kernels[:0] if self.trace is None else launching_ops(self.trace, self.kernels)

    @cached_property
    def kernel_launched_s(self) -> Floats:
        """When the host launched each kernel, seconds."""
        return np.zeros(0) if self.trace is None else launched_s(self.trace, self.kernels)

    @cached_property
    def launch_s(self) -> float:
        """From one launch to the next (median), seconds as they are without the profiler; 0 where nothing was launched."""
        if self.trace is None or self.steps is None:
            return 0.0
        between = np.diff(np.sort(self.kernel_launched_s))
        # a step under the profiler takes as much longer as its launches do
        traced_s = float(np.median(self.steps.windows[:, 1] - self.steps.windows[:, 0]))
        return float(np.median(between)) * min(self.wall_s / traced_s, 1.0) if len(between) and traced_s > 0 else 0.0

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether the device waits for the host: it is idle, and a typical kernel ends before the next is launched."""
        if self.trace is None or not len(self.kernels) or self.split.busy_share >= BUSY_ENOUGH:
            return False
        return float(np.median(self.trace.duration_s[self.kernels])) < max(LAUNCH_S, self.launch_s)

    @cached_property
    def issuing_s(self) -> float:
        """Maximum seconds per step in which the host issues work: the phases timed by the watch, less the waits for the device
        in the trace's calls. 0 without a watch."""
        if self.facts is None or self.trace is None or self.steps is None:
            return 0.0
        step = self.facts.step
        calls = self.rows(RUNTIME_CATEGORIES, lambda n: True)
        calls = calls[inside(self.trace.start_s[calls], self.steps.windows)]
        waits_s = float(np.maximum(self.trace.duration_s[calls] - WAITING_CALL_S, 0.0).sum()) / self.n_steps
        traced_s = float((self.steps.windows[:, 1] - self.steps.windows[:, 0]).mean())
        return max(min(step.copy_s + step.forward_s + step.backward_s + step.optimizer_s, traced_s - waits_s), 0.0)

    @cached_property
    def differentiates_gradients(self) -> bool:
        """Whether gradients are differentiated (``create_graph=True``): operations of a backward pass make nodes of the graph
        themselves, and are no forward pass done again, which has modules in it."""
        if self.trace is None:
            return False
        ops = self.rows(OP_CATEGORIES, lambda n: n.startswith("aten::"))
        ops = ops[self.trace.sequence[ops] != NONE]
        nodes = self.rows(OP_CATEGORIES, lambda n: n.startswith(NODE))
        starts, lanes = self.trace.start_s, self.trace.lane
        modules = self.spans_of(self.rows(("python_function",), lambda n: n.startswith(MODULE)))
        ops = ops[~inside(starts[ops], modules)]
        return any(
            inside(starts[ops[lanes[ops] == lane]], self.spans_of(nodes[lanes[nodes] == lane])).any()
            for lane in np.unique(lanes[nodes])
        )

    def compile_mend(self, why: str, mode: str = "") -> str:
        """The line that compiles what the step computes."""
        if self.differentiates_gradients:
            # aot_autograd raises on a second backward pass, and takes gradients of gradients that are inside what it compiles
            return f"loss = torch.compile(loss{mode})  # with its gradients inside, by torch.func.grad: {why}"
        return f"model = torch.compile(model{mode})  # {why}"

    def annotated(self, prefix: str) -> Floats:
        """Intervals ``[n, 2]`` of the ranges whose name begins with ``prefix``; of an optimizer's, less the closures it calls."""
        rows = self.rows(("user_annotation", *OP_CATEGORIES), lambda n: n.startswith(prefix))
        spans = self.spans_of(rows)
        return spans if self.trace is None or not prefix.startswith("Optimizer.") else difference(spans, closures(self.trace))

    def spans_of(self, rows: Ints) -> Floats:
        """Intervals ``[n, 2]`` in which any of these events runs."""
        return np.zeros((0, 2)) if self.trace is None else spans(self.trace.start_s[rows], self.trace.end_s[rows])

    def count(self, categories: Sequence[str], matches: Callable[[str], object]) -> float:
        """Events per step."""
        return len(self.rows(categories, matches)) / self.n_steps

    @cached_property
    def products(self) -> list[Product]:
        """Matrix products by shape, costliest first; seconds are the kernels' on a GPU."""
        if self.trace is None:
            return []
        trace, products = self.trace, dict[tuple[Any, ...], Product]()
        seconds, names = self._seconds_of_ops()
        rows: list[int] = []
        spent: list[float] = []
        keys: list[tuple[Any, ...]] = []
        order = np.argsort(trace.start_s[self.host_ops], kind="stable")
        ops = self.host_ops[order]
        for row, own_s in zip(ops.tolist(), self.own_s(ops).tolist(), strict=True):
            product = product_of(trace.text(row), trace.inputs(row))
            if product is None:
                continue
            entry = products.setdefault(key_of(product), product)
            if entry.count == 0:
                entry.first_s = float(trace.start_s[row])
            entry.count += 1
            rows.append(row)
            spent.append(seconds.get(row, 0.0 if self.on_gpu else own_s))
            keys.append(key_of(product))
            entry.kernels |= names.get(row, set())
        steady = self.steady_s(np.array(rows, dtype=np.int64), keys, spent)
        for key, product in products.items():
            product.seconds = steady[key] * self.factor
            product.count = round(product.count / self.n_steps)
        return sorted(products.values(), key=lambda p: -p.seconds)

    def steady_s(self, rows: Ints, keys: Sequence[Any], seconds: Sequence[float]) -> dict[Any, float]:
        """Seconds a step by key, of rows that began one after the other. Where every step made the same calls: the sum of each
        call's median over the steps, so that one which another program interrupted does not count; else the mean."""
        calls: dict[Any, list[list[float]]] = {}
        begins = np.zeros(1) if self.steps is None else self.steps.windows[:, 0]
        moments = np.zeros(0) if self.trace is None else self.trace.start_s[rows]
        at: list[int] = np.clip(np.searchsorted(begins, moments, side="right") - 1, 0, self.n_steps - 1).tolist()
        for step, key, spent in zip(at, keys, seconds, strict=True):
            if key not in calls:
                calls[key] = [list[float]() for _ in range(self.n_steps)]
            calls[key][step].append(spent)
        found: dict[Any, float] = {}
        for key, of_steps in calls.items():
            same = self.n_steps >= FEWEST_STEPS and len({len(step) for step in of_steps}) == 1
            found[key] = float(np.median(of_steps, axis=0).sum()) if same else sum(map(sum, of_steps)) / self.n_steps
        return found

    def _seconds_of_ops(self) -> tuple[dict[int, float], dict[int, set[str]]]:
        """Seconds and names of the kernels by the operation that launched them."""
        seconds: dict[int, float] = {}
        names: dict[int, set[str]] = {}
        if self.trace is None:
            return seconds, names
        for row, owner in zip(self.kernels.tolist(), self.kernel_owner.tolist(), strict=True):
            if owner != NONE:
                seconds[owner] = seconds.get(owner, 0.0) + float(self.trace.duration_s[row])
                names.setdefault(owner, set()).add(self.trace.text(row))
        return seconds, names

    def kernel_seconds(self, chosen: Flags) -> float:
        """Seconds a step of some of the kernels."""
        return 0.0 if self.trace is None else float(self.trace.duration_s[self.kernels[chosen]].sum()) / self.n_steps

    def seconds_within(self, stretches: Floats) -> float:
        """A step's, of what runs in these stretches: the kernels that were launched in them, or the processor's operations as
        they are without the profiler."""
        if self.on_gpu:
            return self.kernel_seconds(inside(self.kernel_launched_s, stretches))
        busy = difference(self.spans_of(self.host_ops), self.stalled)
        return length(intersection(stretches, busy)) / self.n_steps * self.factor

    def where(self, moment_s: float) -> str:
        """The function of the script around a moment of the trace."""
        return "" if self.lines is None else self.lines.at(moment_s)

    # -- notes

    def noted(self, kind: str, device: str = "") -> tuple[Evidence, ...]:
        """Recorded calls of one kind by line of the script, costliest first."""
        if self.facts is None:
            return ()
        return tuple(
            Evidence(c["what"], c["where"], c["n"], c["seconds"])
            for c in self.facts.calls
            if c["kind"] == kind and (not device or c["device"] == device)
        )

    @property
    def samples(self) -> int | None:
        """Samples a step; None where unknown."""
        return self.facts.step.samples or None if self.facts is not None else None

    @property
    def n_backward(self) -> float:
        """Backward passes a step: micro-batches."""
        if self.facts is not None and self.facts.step.n_backward:
            return float(self.facts.step.n_backward)
        return self.count(OP_CATEGORIES, lambda n: n == "autograd::engine::evaluate_function: torch::autograd::GraphRoot") or 1.0
