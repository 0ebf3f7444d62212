"""The batch search: never more than four captures, right where memory is affine, square, padded, or anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.plan.changes.batch_search import BatchSearch, search_batches
from gpuwise.predict.estimate import Estimate
from gpuwise.workload.capture.captured import Capture, Category, Settings, StepSpan

Size = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Judged:
    fits_easily: bool
    memory_bytes: Estimate
    step_time_s: Estimate | None


def capture_of(batch: int, size: Size, n_ops: int = 0) -> Capture:
    """A step that holds one tensor of ``size(batch)`` bytes beside a weight."""
    none = np.zeros(n_ops, dtype=np.int64)
    return Capture(
        (),
        ("",),
        ("",),
        ("",),
        none,
        none,
        none,
        none,
        none,
        none,
        storage_bytes=np.array([1000, size(batch)]),
        storage_category=np.array([Category.PARAMETER, Category.ACTIVATION]),
        storage_op=np.array([-1, -1]),
        storage_module=np.zeros(2, dtype=np.int64),
        storage_dtype=("fp32", "fp32"),
        storage_stream=np.zeros(2, dtype=np.int64),
        event_storage=np.array([0, 1, 1]),
        event_sign=np.array([1, 1, -1], dtype=np.int8),
        event_op=np.array([-1, -1, -1]),
        steps=(StepSpan(0, n_ops, 1, 3),),
        settings=Settings("2.13.0", (8, 0)),
        batch=batch,
    )


class Card:
    """Counts what is captured; a step takes ``fixed`` seconds and one more for each sample."""

    def __init__(self, size: Size, room: int, fixed: float = 8.0, program: Callable[[int], int] = lambda _: 0) -> None:
        self.size, self.room, self.fixed, self.program, self.ran = size, room, fixed, program, [0][:0]

    def capture(self, batch: int) -> Capture:
        self.ran.append(batch)
        made = capture_of(batch, self.size)
        # another program: storages of other lives
        return replace(made, event_op=np.array([-1, -1, -1 - self.program(batch)]))

    def measure(self, capture: Capture) -> Judged:
        peak, batch = capture.peak_bytes(), capture.batch or 0
        bytes_ = Estimate(peak * 0.9, float(peak), peak * 1.1, "fitted")
        seconds = self.fixed + batch
        return Judged(peak <= self.room, bytes_, Estimate(seconds * 0.9, seconds, seconds * 1.1, "fitted"))

    def search(self, limit: int = 2**20) -> BatchSearch[Judged]:
        return search_batches(self.capture, self.measure, limit=limit)


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(per_sample=st.integers(1, 10_000), fixed=st.integers(0, 100_000), room=st.integers(0, 10_000_000))
def test_affine_memory_takes_three_captures(per_sample: int, fixed: int, room: int) -> None:
    card = Card(lambda b: fixed + per_sample * b, room)
    found = card.search(limit=10_000)
    truth = max(min((room - 1000 - fixed) // per_sample, 10_000), 0)
    assert found.largest == truth
    assert len(card.ran) == found.captures <= 3 and len(set(card.ran)) == len(card.ran)
    assert found.verified == (truth > 0)


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(square=st.integers(1, 50), per_sample=st.integers(0, 1000), room=st.integers(60_000, 50_000_000))
def test_a_loss_over_all_pairs_is_found_in_four(square: int, per_sample: int, room: int) -> None:
    card = Card(lambda b: square * b * b + per_sample * b, room)
    found = card.search()
    assert found.captures <= 4
    size = 1000 + square * found.largest**2 + per_sample * found.largest
    above = 1000 + square * (found.largest + 1) ** 2 + per_sample * (found.largest + 1)
    assert size <= room
    if found.verified:
        assert above > room


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(jump=st.integers(1, 200), pad=st.integers(1, 50_000), room=st.integers(2_000, 200_000))
def test_what_is_said_to_be_verified_fits(jump: int, pad: int, room: int) -> None:
    """A kernel that takes a workspace from some batch on: no line, no parabola; the answer is still one that fits."""
    card = Card(lambda b: 100 * b + (pad if b >= jump else 0), room)
    found = card.search(limit=4096)
    assert found.captures <= 4
    if found.largest:
        assert card.size(found.largest) + 1000 <= room


def test_another_program_at_every_batch_falls_back_to_captures() -> None:
    card = Card(lambda b: 100 * b, 4_200, program=lambda b: b)
    found = card.search()
    assert found.captures <= 4 and "captures alone" in found.note
    assert all(p.captured for p in found.points)
    assert 0 < found.largest <= 32 and 1000 + 100 * found.largest <= 4_200


def test_the_fastest_and_the_knee() -> None:
    found = Card(lambda b: 10 * b, 1000 + 10 * 1000, fixed=8.0).search()
    assert found.largest == 1000 and found.fastest == 1000
    rates = {p.batch: p.samples_per_s for p in found.points}
    assert found.knee == 256  # 256 / 264 is 97 % of 1000 / 1008, 128 / 136 is 94.9 %
    assert rates[256] == pytest.approx(256 / 264)
    assert found.point(256).batch == 256


def test_nothing_fits() -> None:
    found = Card(lambda b: 10 * b, 500).search()
    assert (found.largest, found.fastest, found.knee, found.verified) == (0, None, None, False)


def test_captures_that_are_there_are_used() -> None:
    card = Card(lambda b: 10 * b, 1000 + 10 * 99)
    held = {16: capture_of(16, card.size), 32: capture_of(32, card.size)}
    found = search_batches(card.capture, card.measure, captures=held)
    assert found.largest == 99 and card.ran == [99] and found.captures == 1


def test_what_a_step_raises_is_raised() -> None:
    def broken(batch: int) -> Capture:
        raise InputError("the step is broken")

    with pytest.raises(InputError, match="broken"):
        search_batches(broken, Card(lambda b: b, 1).measure)
