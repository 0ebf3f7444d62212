"""The largest batch that fits and the fastest one, from at most four captures of a step.

Two captures determine how every size grows with the batch (:mod:`gpuwise.workload.capture.record.sweep`); the largest batch
that fits is searched on interpolated steps, then captured. If the interpolated step differs from the captured one, the capture
joins the sweep, the degree of the polynomials rises by one, and the search continues. If batches do not run the same
operations, each tried batch is captured, by doubling and halving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpuwise.errors import UnpredictableError
from gpuwise.predict.estimate import Estimate
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.record.sweep import Sweep, differences, sweep_of

MOST_CAPTURES = 4
FIRST_BATCHES = (4, 8)
"""Large enough that no dimension is one by accident, small enough to be captured fast."""
LARGEST_BATCH = 2**20
KNEE = 0.95
"""Share of the highest rate above which a larger batch is not worth its memory. The 80 % interval of a time is wider than the
rest."""


class Measurable(Protocol):
    """Prediction for a step on a card."""

    @property
    def fits_easily(self) -> bool: ...
    @property
    def memory_bytes(self) -> Estimate: ...
    @property
    def step_time_s(self) -> Estimate | None: ...


M = TypeVar("M", bound=Measurable)


@dataclass(frozen=True, slots=True)
class BatchPoint(Generic[M]):
    """One batch as estimated on a made or captured step."""

    batch: int
    estimate: M
    captured: bool

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second of the expected step time; None without a time."""
        time = self.estimate.step_time_s
        return None if time is None else self.batch / time.expected


@dataclass(frozen=True, slots=True)
class BatchSearch(Generic[M]):
    """``points`` are sorted by batch. ``largest`` is the largest that fits easily (without returning cached memory), 0 when
    not even one sample does; ``fastest`` has the highest rate among fitting batches, ``knee`` is the smallest with 95 % of it;
    both are None without predicted times."""

    largest: int
    fastest: int | None
    knee: int | None
    points: tuple[BatchPoint[M], ...]
    captures: int
    """Captures of the step that were run."""
    verified: bool
    """The largest batch was captured, and the step made for it was the same."""
    note: str = ""

    def point(self, batch: int) -> BatchPoint[M]:
        """The size that was tried. Raises StopIteration for another."""
        return next(p for p in self.points if p.batch == batch)


@dataclass(slots=True)
class _Search(Generic[M]):
    capture_at: Callable[[int], Capture]
    measure: Callable[[Capture], M]
    captures: dict[int, Capture]
    by_batch: dict[int, BatchPoint[M]]
    n_before: int = 0
    """Captures that were there before."""

    @property
    def ran(self) -> int:
        return len(self.captures) - self.n_before

    def captured(self, batch: int) -> Capture:
        if batch not in self.captures:
            self.captures[batch] = self.capture_at(batch)
        return self.captures[batch]

    def real(self, batch: int) -> BatchPoint[M]:
        point = self.by_batch.get(batch)
        if point is None or not point.captured:
            point = self.by_batch[batch] = BatchPoint(batch, self.measure(self.captured(batch)), captured=True)
        return point

    def point_at(self, sweep: Sweep, batch: int) -> BatchPoint[M]:
        if batch in self.captures:
            return self.real(batch)
        if batch not in self.by_batch:
            self.by_batch[batch] = BatchPoint(batch, self.measure(sweep.at(batch)), captured=False)
        return self.by_batch[batch]

    def fits_by(self, sweep: Sweep) -> Callable[[int], bool]:
        return lambda batch: self.point_at(sweep, batch).estimate.fits_easily

    def forget_made(self) -> None:
        self.by_batch = {batch: p for batch, p in self.by_batch.items() if p.captured}


def search_batches(
    capture_at: Callable[[int], Capture],
    measure: Callable[[Capture], M],
    *,
    captures: dict[int, Capture] | None = None,
    most_captures: int = MOST_CAPTURES,
    limit: int = LARGEST_BATCH,
) -> BatchSearch[M]:
    """Search batches up to ``limit`` with at most ``most_captures`` runs of ``capture_at`` (at least 3); ``captures`` are
    those there already, by batch. What ``capture_at`` raises for its first batches is raised."""
    by_batch = dict(captures or {})
    search = _Search(capture_at, measure, by_batch, {}, n_before=len(by_batch))
    for batch in FIRST_BATCHES:
        if len(by_batch) < 2:
            search.captured(batch)
    try:
        return _by_sweep(search, most_captures, limit)
    except UnpredictableError as error:
        search.forget_made()
        return _by_captures(search, most_captures, limit, error.message)


def _by_sweep(search: _Search[M], most_captures: int, limit: int) -> BatchSearch[M]:
    sweep = sweep_of(search.captures)
    while True:
        largest = _largest(search.fits_by(sweep), max(sweep.sizes), limit)
        if largest == 0:
            return _result(search, 0, verified=False)
        if largest in search.captures:
            verified = True
            break
        if search.ran >= most_captures:
            verified = False
            largest = max((b for b, p in search.by_batch.items() if p.captured and p.estimate.fits_easily), default=0)
            break
        interpolation, real = sweep.at(largest), search.captured(largest)
        if not differences(interpolation, real):
            search.real(largest)
            verified = True
            break
        sweep = sweep.with_capture(largest, real).refined()
        search.forget_made()
    for batch in _ladder(largest):
        search.point_at(sweep, batch)
    return _result(search, largest, verified=verified)


def _largest(fits: Callable[[int], bool], start: int, limit: int) -> int:
    """The largest batch up to ``limit`` for which ``fits`` holds, which it does up to some batch and not beyond."""
    low, high = 0, min(start, limit)
    while fits(high):
        low = high
        if high == limit:
            return limit
        high = min(high * 2, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _ladder(largest: int) -> list[int]:
    """Powers of two up to ``largest``, from 1, and itself."""
    return sorted({2**i for i in range(largest.bit_length())} | {largest}) if largest else []


def _by_captures(search: _Search[M], most_captures: int, limit: int, why: str) -> BatchSearch[M]:
    """Captures alone, by doubling and halving."""
    for batch in sorted(search.captures):
        search.real(batch)
    while search.ran < most_captures:
        fitting = [b for b, p in search.by_batch.items() if p.estimate.fits_easily]
        failing = [b for b, p in search.by_batch.items() if not p.estimate.fits_easily]
        low, high = max(fitting, default=0), min(failing, default=limit + 1)
        proposed = _proposed(search, low, high)
        if proposed is None:
            break
        try:
            search.real(proposed)
        except UnpredictableError:
            break
    largest = max((b for b, p in search.by_batch.items() if p.estimate.fits_easily), default=0)
    return _result(search, largest, verified=largest > 0, note=f"searched by captures alone: {why}")


def _proposed(search: _Search[M], low: int, high: int) -> int | None:
    """The next batch to capture, strictly between ``low`` and ``high``: midway once one failed, else four times as
    large."""
    if high - low <= 1:
        return None
    any_tight = any(not p.estimate.fits_easily for p in search.by_batch.values())
    return (low + high) // 2 if any_tight else min(low * 4, high - 1)


def _result(search: _Search[M], largest: int, *, verified: bool, note: str = "") -> BatchSearch[M]:
    points = tuple(search.by_batch[b] for b in sorted(search.by_batch))
    rates = {p.batch: r for p in points if p.batch <= largest and p.estimate.fits_easily and (r := p.samples_per_s) is not None}
    best = max(rates.values(), default=0.0)
    fastest = max(rates, key=lambda b: rates[b], default=None)
    knee = min((b for b, r in rates.items() if r >= KNEE * best), default=None)
    return BatchSearch(largest, fastest, knee, points, search.ran, verified, note)
