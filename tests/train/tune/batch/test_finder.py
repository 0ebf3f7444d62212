"""The wall test: a device that holds exactly 100 samples (execution.md 3.1's question), asked from every start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.train.tune.batch.finder import BatchMeasurement, BatchSearch, find_batch

MIB, GIB = 2**20, 2**30


def device(memory: Callable[[int], float], capacity: float, rate: Callable[[int], float] = lambda b: b / (b + 5.0)):
    def run(batch: int) -> BatchMeasurement:
        used = memory(batch)
        return BatchMeasurement(batch, True, used, rate(batch)) if used <= capacity else BatchMeasurement(batch, False)

    return run


def check(found: BatchSearch, truth: int) -> None:
    sizes = {m.batch: m for m in found.runs}
    assert sizes[found.largest].fits and sizes[found.chosen].fits
    assert found.largest == truth


@pytest.mark.parametrize("fixed", [0.0, 3.7 * GIB, 9.5 * GIB])
def test_the_exact_wall_in_at_most_four_runs_from_every_start(fixed: float) -> None:
    capacity = 10.0 * GIB
    slope = (capacity - fixed) / 100.4
    for start in range(1, 1001):
        found = find_batch(device(lambda b: fixed + slope * b, capacity), capacity, start=start)
        check(found, 100)
        assert len(found.runs) <= 4, (start, [m.batch for m in found.runs])
        assert found.exact


@pytest.mark.parametrize("grain", [2 * MIB, 64 * MIB, 512 * MIB])
def test_an_allocator_that_rounds(grain: int) -> None:
    capacity = 10 * GIB

    def memory(b: int) -> float:
        return -(-(1.3 * GIB + 83.7 * MIB * b) // grain) * grain

    truth = max(b for b in range(1, 300) if memory(b) <= capacity)
    for start in (1, 3, 16, 64, 101, 128, 1000):
        found = find_batch(device(memory, capacity), capacity, start=start)
        sizes = {m.batch for m in found.runs}
        assert found.largest in sizes and memory(found.largest) <= capacity
        assert found.largest >= 0.95 * truth
        assert len(found.runs) <= 12


def test_a_jump_on_the_way_up() -> None:
    """A kernel takes another workspace from 60 samples on: the line through small sizes promises too much."""
    capacity = 10 * GIB
    found = find_batch(device(lambda b: GIB + 80 * MIB * b + (2 * GIB if b >= 60 else 0), capacity), capacity, start=1)
    check(found, max(b for b in range(60, 200) if GIB + 80 * MIB * b + 2 * GIB <= capacity))
    assert found.exact


def test_the_knee_is_taken_not_the_largest() -> None:
    capacity = 10 * GIB
    found = find_batch(device(lambda b: 90 * MIB * b, capacity, rate=lambda b: min(b, 20) * 10.0), capacity, start=32)
    assert found.largest > 32
    assert found.chosen == 32
    assert found.chosen in {m.batch for m in found.runs}


def test_nothing_fits() -> None:
    with pytest.raises(GpuwiseError, match="not even a batch of 1"):
        find_batch(device(lambda b: 11 * GIB, 10 * GIB), 10 * GIB, start=8)


@pytest.mark.parametrize(("start", "capacity"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_bad_input(start: int, capacity: float) -> None:
    with pytest.raises(InputError):
        find_batch(device(lambda b: b, 10.0), capacity, start=start)


@pytest.mark.parametrize("start", [1, 3, 70, 128, 256, 1000])
def test_a_dataset_of_70_rows(start: int) -> None:
    """The memory holds 100, and there are 70 rows: 128 was answered by a finder that had run 70."""
    capacity, ran = 10.0 * GIB, list[int]()

    def run(batch: int) -> BatchMeasurement:
        ran.append(batch)
        assert batch <= 70
        return device(lambda b: capacity / 100.4 * b, capacity)(batch)

    found = find_batch(run, capacity, start=start, most=70)
    check(found, 70)
    assert len(ran) <= 4 and found.at_most and not found.exact
    with pytest.raises(InputError, match="at least one sample"):
        find_batch(run, capacity, most=0)


@pytest.mark.parametrize("start", [1, 3, 128, 256, 1000])
def test_the_wall_where_the_data_is_larger(start: int) -> None:
    capacity = 10.0 * GIB
    found = find_batch(device(lambda b: capacity / 100.4 * b, capacity), capacity, start=start, most=101)
    check(found, 100)
    assert len(found.runs) <= 4 and found.exact and not found.at_most


def test_the_knee_between_sizes_that_were_run() -> None:
    """From 64 samples on nothing gets faster, and the wall is at 20,000: halfway by ratio, three runs more."""
    capacity = 20_000.5 * MIB
    run = device(lambda b: b * MIB, capacity, rate=lambda b: min(b, 64) * 10.0)
    found = find_batch(run, capacity, start=1, knee_runs=3)
    check(found, 20_000)
    assert 64 <= found.chosen <= 20_000**0.5 and len(found.runs) <= 7
    assert found.rates[found.chosen] >= 0.95 * 640


def test_an_allocator_that_rounds_more_than_a_sample_between_neighbours() -> None:
    """Resident memory of a process: a line with some MiB of noise, which says nothing between 51 and 52 samples."""
    capacity = 600 * MIB
    noise = {b: ((b * 2654435761) % 97 / 97 - 0.5) * 6 * MIB for b in range(1, 400)}

    def memory(b: int) -> float:
        return 300 * MIB + 4 * MIB * b + noise[b]

    for start in (1, 8, 50, 52, 128, 300):
        found = find_batch(device(memory, capacity), capacity, start=start)
        assert memory(found.largest) <= capacity and found.largest >= 72
        assert len(found.runs) <= 8, (start, [m.batch for m in found.runs])
