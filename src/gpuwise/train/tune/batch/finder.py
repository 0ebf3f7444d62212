"""The largest batch that fits, in as few runs as can be, and the one worth taking; never one that was not run.

Peak memory of a training step is a line in the batch: M(b) = a + c b (weights, gradients and optimizer states; activations). A
run that fits at b also bounds every other: with a >= 0, M(b') <= b'/b M(b), so b' = C b / M(b) fits in C bytes. The first
probe is the user's batch (or 1, if that does not fit), the second the largest that the first proves safe; the line through
both predicts the limit, and one run there verifies it. If memory is not linear (a rounding allocator, a kernel with another
workspace), the line is redrawn through the last points until the limit is between two measured sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError, InputError

KNEE = 0.95
"""The smallest batch that reaches this share of the best rate is taken: step time a sample flattens long before the memory is
full, and what is left free is room for longer samples. Rule of this project."""
APART = 0.9
MOST_RUNS = 12
LARGEST = 2**24


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """One run at one batch size, with the longest samples and an optimizer step."""

    batch: int
    fits: bool
    memory_bytes: float | None = None
    """Peak; known where it fits."""
    rate: float | None = None
    """Samples a second."""


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """The result of a search. ``largest`` and ``chosen`` were both run."""

    largest: int
    chosen: int
    runs: tuple[BatchMeasurement, ...]
    exact: bool
    """The next size was run and does not fit, or the memory of the largest leaves no room for one more by the line."""
    at_most: bool = False
    """``largest`` is the most that was to be tried: memory does not end there."""

    @property
    def rates(self) -> dict[int, float]:
        """Samples per second of the sizes that fit, if known."""
        return {m.batch: m.rate for m in self.runs if m.fits and m.rate is not None}


def find_batch(
    run: Callable[[int], BatchMeasurement],
    capacity_bytes: float,
    *,
    start: int = 1,
    most: int = LARGEST,
    most_runs: int = MOST_RUNS,
    knee_runs: int = 0,
) -> BatchSearch:
    """``run(b)`` measures one size in a separate process; ``most`` is the maximum (the number of samples in the data).
    ``knee_runs`` more runs search for a smaller size that is equally fast, between measured ones. Raises InputError for an
    invalid start, capacity or ``most``, and GpuwiseError if not even one sample fits."""
    if start < 1 or start > LARGEST:
        raise InputError(f"a batch of {start} is not possible", hint="start from a whole number of at least 1")
    if not capacity_bytes > 0:
        raise InputError(f"{capacity_bytes:g} bytes are not a capacity")
    if most < 1:
        raise InputError(f"a largest batch of {most} is not possible", hint="the data needs at least one sample")
    finder = _Finder(run, capacity_bytes, most_runs, min(most, LARGEST))
    finder.try_size(min(start, most))
    if not finder.fitting:
        finder.try_size(1)
        if not finder.fitting:
            raise GpuwiseError("not even a batch of 1 fits", hint="recompute activations, shard, or take a shorter format")
    finder.climb()
    finder.look_for_the_knee(knee_runs)
    return finder.result()


class _Finder:
    def __init__(self, run: Callable[[int], BatchMeasurement], capacity: float, most_runs: int, most: int) -> None:
        self._run, self._capacity, self._most_runs, self._most = run, capacity, most_runs, most
        self.fitting: dict[int, BatchMeasurement] = {}
        self.failing: set[int] = set()
        self.runs: list[BatchMeasurement] = []

    def try_size(self, size: int) -> None:
        measured = self._run(size)
        self.runs.append(measured)
        over = measured.memory_bytes is not None and measured.memory_bytes > self._capacity
        if measured.fits and not over:
            self.fitting[size] = measured
        else:
            self.failing.add(size)

    @property
    def wall(self) -> int:
        """The smallest size known not to fit."""
        return min(self.failing, default=self._most + 1)

    def climb(self) -> None:
        """Until the largest that fits has its neighbour known, or predicted, not to fit."""
        while len(self.runs) < self._most_runs:
            size = self._next()
            if size is None:
                return
            self.try_size(size)

    def look_for_the_knee(self, n_runs: int) -> None:
        """Halfway (by ratio) between the smallest size that is as fast as any and the next below it."""
        for _ in range(n_runs):
            chosen = self.knee()
            below = max((s for s in self.fitting if s < chosen), default=chosen)
            middle = round((below * chosen) ** 0.5)
            if chosen < 2 * below or middle in self.fitting:
                return
            self.try_size(middle)

    def knee(self) -> int:
        """The smallest size that reaches ``KNEE`` of the best rate; the largest if rates are unknown."""
        rates = {size: m.rate for size, m in self.fitting.items() if m.rate is not None}
        if not rates:
            return max(self.fitting)
        return min(size for size, rate in rates.items() if rate >= KNEE * max(rates.values()))

    def _next(self) -> int | None:
        best = max(self.fitting)
        if best + 1 >= self.wall:
            return None
        if len(self.fitting) == 1:
            second = self._second(best)
            return None if second in self.fitting or second in self.failing else second
        predicted = self._predicted()
        if predicted == best:
            return None
        if self.failing and predicted >= self.wall and self.wall - best > 2:
            # the line has been wrong here
            return best + (self.wall - best) // 2
        return min(max(predicted, best + 1), self.wall - 1)

    def _second(self, first: int) -> int:
        memory = self.fitting[first].memory_bytes
        if memory is None or memory <= 0:
            return min(2 * first, self.wall - 1)
        safe = min(int(self._capacity * first / memory), self.wall - 1)
        if safe > first:
            return safe
        # no upper bound is certain: the second point is below
        return first // 2 if first > 1 else 2

    def _predicted(self) -> int:
        """The largest size on the line through the largest that fits and the next that is well below it: between neighbours
        the allocator's rounding is more than a sample."""
        every = sorted(self.fitting)
        sizes = [max((s for s in every[:-1] if s <= APART * every[-1]), default=every[-2]), every[-1]]
        low, high = (self.fitting[s] for s in sizes)
        if low.memory_bytes is None or high.memory_bytes is None or high.memory_bytes <= low.memory_bytes:
            return min(2 * sizes[1], LARGEST)
        slope = (high.memory_bytes - low.memory_bytes) / (sizes[1] - sizes[0])
        room = self._capacity - high.memory_bytes
        # a whole sample that fits to the last byte fits: rounding of the slope must not lose it
        return min(sizes[1] + int(room / slope + 1e-9), LARGEST)

    def result(self) -> BatchSearch:
        largest = max(self.fitting)
        exact = largest + 1 in self.failing or (len(self.fitting) > 1 and self._predicted() == largest)
        return BatchSearch(largest, self.knee(), tuple(self.runs), exact, largest == self._most and not exact)
