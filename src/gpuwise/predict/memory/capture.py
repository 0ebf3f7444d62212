"""Device memory of a captured step: torch's allocated and reserved bytes, and nvidia-smi's process memory.

    allocated = blocks of live storages and hidden workspaces          (torch.cuda.max_memory_allocated)
    reserved  = segments the caching allocator took for them           (torch.cuda.max_memory_reserved)
    process   = reserved + CUDA context + NCCL's communicators         (nvidia-smi)

Each peaks at its own moment. The allocator is replayed event by event
(:mod:`gpuwise.predict.memory.allocator.simulation`); whether it
fits is decided by a second replay with the card's memory as the limit, cached blocks given back as torch does; where what
lives at once is more than that limit, only the place at which it runs out is left to say, and the replay waits until asked.
Left out: other processes on the card, extensions that allocate past torch (apex, bitsandbytes' own buffers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate, fit_probability, weakest
from gpuwise.predict.memory.allocator.simulation import AllocatorRun, AllocatorSettings, Fragmentation, Peaks, simulate
from gpuwise.predict.memory.compiled import compiled_capture
from gpuwise.predict.memory.context import Loading, communicators_estimate, process_context
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kernel_limits import KernelFailure, kernel_failures
from gpuwise.predict.memory.workspaces import Events, with_workspaces, workspace_sizes
from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.row_codes import Phase

Step = Literal["worst", "first", "steady"]
Verdict = Literal["fits", "borderline", "does not fit", "fails"]
STEPS: tuple[Step, ...] = ("worst", "first", "steady")
LARGEST = 12
"""Storages named at the peak."""


@dataclass(frozen=True, slots=True)
class Place:
    """An operation in the person's words."""

    op: int
    """Index into the capture's operations; -1 before the first."""
    name: str
    phase: str
    """``set-up``, ``forward``, ``recompute``, ``backward`` or ``optimizer``."""
    module: str
    line: str


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """A storage that lives at the peak."""

    size_bytes: int
    category: Category
    dtype: str
    made_by: Place


@dataclass(frozen=True, slots=True)
class StepPeak:
    """Most bytes at once within one step, each at its own moment."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemoryAt:
    """Place where memory runs out on the card."""

    place: Place
    step: int
    """Captured step it happens in; -1 in set-up."""
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    reason: str


@dataclass(frozen=True)
class LimitedReplay:
    """The replay with the card's memory as the limit."""

    events: Events
    capture: Capture
    settings: AllocatorSettings
    room_bytes: int
    """Bytes available to torch."""
    device_bytes: int

    @cached_property
    def is_overfull(self) -> bool:
        """Whether the live tensors exceed the memory regardless of placement."""
        return int(self.events.live_bytes().max(initial=0)) > self.room_bytes

    @cached_property
    def run(self) -> AllocatorRun:
        """The second replay, run on first use."""
        return replay(self.events, self.settings, capacity_bytes=max(self.room_bytes, 1), device_bytes=self.device_bytes)

    @cached_property
    def oom(self) -> OutOfMemoryAt | None:
        """Where memory runs out; None if it suffices."""
        return _out_of_memory(self.run, self.events, self.capture)


class Replayed(NamedTuple):
    """A replay without a limit: the same on all accelerators whose kernels have equal workspaces. See :class:`CapturedMemory`."""

    run: AllocatorRun
    events: Events
    peaks: Peaks
    most_reserved_bytes: int
    first: StepPeak
    steady: StepPeak
    peak: Place
    by_category: dict[Category, int]
    largest: tuple[LiveStorage, ...]


@dataclass(frozen=True, slots=True)
class CapturedMemory:
    """The answer; ``peak`` and what follows describe the moment of the most allocated bytes."""

    allocated: Estimate
    reserved: Estimate
    process: Estimate
    needed: Estimate
    """Minimum process memory in nvidia-smi when memory is scarce: allocated blocks, context and communicators."""
    context: Estimate
    communicators: Estimate
    first: StepPeak
    steady: StepPeak
    peak: Place
    by_category: dict[Category, int]
    """Requested bytes at the peak; blocks are rounded up, so their sum is a little below ``allocated``."""
    largest: tuple[LiveStorage, ...]
    capacity_bytes: float
    """Device memory available to a process."""
    fits: bool
    fit_probability: float
    """That the process stays within ``capacity_bytes``, from the spread of the prediction; never exactly 0 or 1."""
    verdict: Verdict
    """``fits`` without giving cached memory back; ``borderline`` where it does so, or where its tensors are less than the
    card's memory but the pieces between them too small: there the order of allocations decides, which varies from run to run;
    ``fails`` where there is memory but a kernel cannot take the sizes."""
    failures: tuple[KernelFailure, ...]
    """Kernels that fail on their input sizes, regardless of memory."""
    run: AllocatorRun = field(repr=False)
    """The replay without a limit."""
    events: Events = field(repr=False)
    capture: Capture = field(repr=False)
    """The replayed capture: the compiled step, if compiled."""
    limited: LimitedReplay | None = field(repr=False)
    """None where the replay without a limit stays within the card."""

    @property
    def oom(self) -> OutOfMemoryAt | None:
        """Where memory runs out on the card; None if it suffices."""
        return None if self.limited is None else self.limited.oom

    @property
    def retries(self) -> int:
        """Times cached memory had to be given back for it to fit."""
        return 0 if self.limited is None else self.limited.run.retries

    @property
    def fragmentation(self) -> Fragmentation:
        """Location of the unused bytes when most is reserved."""
        return self.run.fragmentation()


def captured_memory(
    capture: Capture,
    accelerator: Accelerator,
    *,
    allocator_conf: str | None = None,
    torch_version: str | None = None,
    capacity_bytes: float | None = None,
    step: Step = "worst",
    loading: Loading = "lazy",
    group_sizes: Sequence[int] | None = None,
    compiled: bool | None = None,
    replays: dict[object, Replayed] | None = None,
) -> CapturedMemory:
    """Memory of ``capture`` on ``accelerator``.

    ``allocator_conf`` (``PYTORCH_CUDA_ALLOC_CONF``) and ``torch_version`` default to what the capture found. ``capacity_bytes``
    is the memory available to a process (default: the published visible total). ``step`` chooses which peak is reported: the
    worst of set-up and all steps, the first step, or the steady one. ``group_sizes`` are the ranks of each communicator; by
    default those of the captured collectives. ``compiled``: memory under torch.compile (default: for the regions the step
    compiles itself). ``replays``: earlier replays of this capture by their inputs; an accelerator on which kernels have equal
    workspaces is not replayed again.

    Raises InputError for a capture without steps or a capacity that is not positive, FieldError for a bad
    ``allocator_conf``.
    """
    if step not in STEPS:
        raise InputError(f"step is {step!r}", hint="one of " + ", ".join(STEPS))
    if not capture.steps:
        raise InputError("the capture holds no step", hint="capture at least one step")
    if compiled or (compiled is None and capture.settings.compiled):
        capture = compiled_capture(capture, everything=bool(compiled))
    usable = usable_bytes(accelerator) if capacity_bytes is None else capacity_bytes
    if not math.isfinite(usable) or usable <= 0:
        raise InputError(f"capacity_bytes is {usable:g}", hint="give the GPU's memory in bytes, for example 24e9")
    version = torch_version or capture.settings.torch_version
    conf = capture.settings.allocator_conf if allocator_conf is None else allocator_conf
    settings = AllocatorSettings.parse(conf, torch_version=version)
    outside = process_context(accelerator, loading, cudnn=uses_cudnn(capture))
    sizes = _group_sizes(capture) if group_sizes is None else group_sizes
    communicators = communicators_estimate(sizes)
    room = int(usable - outside.expected - communicators.expected)
    asked = settings, step, workspace_sizes(capture, accelerator, version)
    known = {} if replays is None or capture.settings.cudnn_benchmark else replays
    if asked not in known:
        events = with_workspaces(capture, accelerator, version, room_bytes=max(room, 0))
        known[asked] = _replayed(capture, events, settings, step)
    replayed = known[asked]
    run, events = replayed.run, replayed.events
    limited = None
    if replayed.most_reserved_bytes > room:
        # a search never fails a job: it makes do with less
        bare = with_workspaces(capture, accelerator, version, room_bytes=0) if events.empty_cache else events
        limited = LimitedReplay(bare, capture, settings, room, int(usable))
    fits = limited is None or not (limited.is_overfull or limited.oom)
    failures = kernel_failures(capture, accelerator, version)
    sigma = load_json("captured_memory")["log_sigma"]
    reserved = Estimate.from_log_sigma(float(replayed.peaks.reserved_bytes), float(sigma["reserved"]), "fitted")
    process = _sum(reserved, outside, communicators)
    allocated = Estimate.from_log_sigma(float(replayed.peaks.allocated_bytes), float(sigma["allocated"]), "fitted")
    return CapturedMemory(
        allocated=allocated,
        reserved=reserved,
        process=process,
        needed=_sum(allocated, outside, communicators),
        context=outside,
        communicators=communicators,
        first=replayed.first,
        steady=replayed.steady,
        peak=replayed.peak,
        by_category=replayed.by_category,
        largest=replayed.largest,
        capacity_bytes=float(usable),
        fits=fits,
        fit_probability=_probability(process, usable, fits=fits),
        verdict=_verdict(limited, failures),
        failures=failures,
        run=run,
        events=events,
        capture=capture,
        limited=limited,
    )


def _replayed(capture: Capture, events: Events, settings: AllocatorSettings, step: Step) -> Replayed:
    run = replay(events, settings)
    begin, end = (min(at, run.n_events) for at in _span(events, capture, step))
    peak_event = begin + int(run.allocated()[begin:end].argmax()) if end > begin else 0
    # a run of terabytes ends before its steps do
    steps = [(min(first, run.n_events), last) for first, last in (_step_span(events, capture, i) for i in (0, -1))]
    peaks, whole, *each = run.peaks_of((begin, end), (0, run.n_events), *steps)
    first, steady = (StepPeak(p.allocated_bytes, p.reserved_bytes, p.requested_bytes) for p in each)
    return Replayed(
        run,
        events,
        peaks,
        whole.reserved_bytes,
        first,
        steady,
        place_of(capture, int(events.event_op[peak_event])),
        bytes_by_category(events, peak_event),
        _largest(run, events, capture, peak_event),
    )


def uses_cudnn(capture: Capture) -> bool:
    """Whether an operation of the capture runs in cuDNN: a convolution, its batch normalisation, its recurrent layers."""
    return any("convolution" in s.op or "cudnn" in s.op for s in capture.signatures)


def replay(
    events: Events, settings: AllocatorSettings, *, capacity_bytes: int | None = None, device_bytes: int | None = None
) -> AllocatorRun:
    """The allocator over ``events``, with the cache emptied where cuDNN's benchmark mode empties it."""
    return simulate(
        events.event_storage,
        events.event_sign,
        events.storage_bytes,
        events.storage_stream,
        settings=settings,
        capacity_bytes=capacity_bytes,
        device_bytes=device_bytes,
        empty_cache=events.empty_cache,
    )


def place_of(capture: Capture, op: int) -> Place:
    """Operation ``op`` in words; -1 is set-up before the first."""
    if not 0 <= op < capture.op_signature.size:
        return Place(-1, "", "set-up", "", "")
    inside = any(s.first_op <= op < s.end_op for s in capture.steps)
    return Place(
        op,
        capture.signatures[int(capture.op_signature[op])].op,
        Phase(int(capture.op_phase[op])).name.lower() if inside else "set-up",
        capture.modules[int(capture.op_module[op])],
        capture.lines[int(capture.op_line[op])],
    )


def bytes_by_category(events: Events, event: int) -> dict[Category, int]:
    """Requested bytes live right after ``event``, workspaces as their own category."""
    part = slice(0, event + 1)
    storage = events.event_storage[part]
    signed = events.event_sign[part].astype(np.int64) * events.storage_bytes[storage]
    sums = np.bincount(events.storage_category[storage], weights=signed, minlength=len(Category))
    return {category: int(sums[category]) for category in Category if sums[category]}


def _span(events: Events, capture: Capture, step: Step) -> tuple[int, int]:
    """Half-open range of events that ``step`` is about."""
    if step == "worst":
        return 0, events.event_storage.size
    return _step_span(events, capture, 0 if step == "first" else -1)


def _step_span(events: Events, capture: Capture, step: int) -> tuple[int, int]:
    """A captured step's events, among those with workspaces."""
    span = capture.steps[step]
    captured_events = np.flatnonzero(events.source_event >= 0)
    n = captured_events.size
    begin = int(captured_events[span.first_event]) if span.first_event < n else events.event_storage.size
    end = int(captured_events[span.end_event]) if span.end_event < n else events.event_storage.size
    return begin, end


def _group_sizes(capture: Capture) -> tuple[int, ...]:
    """Ranks of each group that a captured collective ran in."""
    groups: set[tuple[int, object]] = set()
    for signature in capture.signatures:
        size = signature.attribute("group_size")
        if isinstance(size, int) and size > 1:
            groups.add((size, str(signature.attribute("group_ranks", ""))))
    return tuple(size for size, _ in sorted(groups, key=str))


def _largest(run: AllocatorRun, events: Events, capture: Capture, event: int) -> tuple[LiveStorage, ...]:
    live = run.live(event)
    order = live[np.argsort(-events.storage_bytes[live], kind="stable")][:LARGEST]
    return tuple(
        LiveStorage(
            int(events.storage_bytes[s]),
            Category(int(events.storage_category[s])),
            capture.storage_dtype[s] if s < events.captured_storages else "u8",
            place_of(capture, int(events.storage_op[s])),
        )
        for s in (int(i) for i in order)
    )


def _out_of_memory(run: AllocatorRun, events: Events, capture: Capture) -> OutOfMemoryAt | None:
    if run.oom is None:
        return None
    op = int(events.event_op[run.oom.event])
    step = next((i for i, s in enumerate(capture.steps) if s.first_op <= op < s.end_op), -1)
    return OutOfMemoryAt(
        place_of(capture, op), step, run.oom.requested_bytes, run.oom.allocated_bytes, run.oom.reserved_bytes, run.oom.reason
    )


def _sum(reserved: Estimate, *others: Estimate) -> Estimate:
    """Independent parts: deviations add in squares."""
    parts = (reserved, *others)
    expected = sum(p.expected for p in parts)
    low = math.sqrt(sum((p.expected - p.low) ** 2 for p in parts))
    high = math.sqrt(sum((p.high - p.expected) ** 2 for p in parts))
    bases: list[Basis] = [p.basis for p in parts if p.expected]
    return Estimate(expected - low, expected, expected + high, weakest(*bases) if bases else "fitted")


def _verdict(limited: LimitedReplay | None, failures: tuple[KernelFailure, ...]) -> Verdict:
    if limited is not None and limited.is_overfull:
        return "does not fit"
    if failures:
        return "fails"
    return "borderline" if limited is not None and (limited.oom is not None or limited.run.retries) else "fits"


def _probability(process: Estimate, usable: float, *, fits: bool) -> float:
    """:func:`fit_probability`; at least 1/2 if the replay fits (after returning cached memory), else at most that."""
    p = fit_probability(process.expected, process.log_sigma, usable)
    return max(p, 0.5) if fits else min(p, 0.5)
