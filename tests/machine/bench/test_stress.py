"""A card that answers differently is faulty, whenever that happens; one that only gets warm is not."""

from __future__ import annotations

import itertools
import math

import pytest
from doubles import card, timed

from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.stress import StressResult, record_of, stress, stress_together
from gpuwise.machine.bench.subjects import Subject
from gpuwise.machine.devices.null import NullCard, NullDevices


def product_that(corrupt_at: int | None = None, wrong: object = b"rigth", raises: Exception | None = None) -> PreparedCase:
    counter = itertools.count()

    def digest() -> object:
        n = next(counter)
        if raises is not None and n == 7:
            raise raises
        return wrong if n == corrupt_at else b"right"

    return timed([1e-3], 1e12, digest=digest)


def run(work: PreparedCase, duration_s: float = 50.0) -> StressResult:
    clock = itertools.count()
    return stress(card(), duration_s, make=lambda c, s: work, clock=lambda: float(next(clock)))


def test_the_same_answer_every_time_is_healthy() -> None:
    result = run(product_that())
    assert not result.faulty
    assert result.executions > 10
    assert record_of(result, 1.0, {}).correct is True


@pytest.mark.parametrize("when", [1, 5, 12])
def test_one_wrong_bit_is_a_faulty_card(when: int) -> None:
    result = run(product_that(corrupt_at=when))
    assert result.faulty
    assert result.mismatches == 1
    assert result.first_wrong_s is not None
    assert record_of(result, 1.0, {}).correct is False


def test_what_is_not_a_number_equals_nothing() -> None:
    assert run(product_that(corrupt_at=4, wrong=math.nan)).faulty


def test_a_card_that_stops_computing_is_faulty() -> None:
    result = run(product_that(raises=RuntimeError("CUDA error: unspecified launch failure")))
    assert result.faulty
    assert "unspecified launch failure" in (result.failed or "")
    assert record_of(result, 1.0, {}).value is None


def test_a_first_answer_outside_its_bound_is_wrong_even_if_it_repeats() -> None:
    work = timed([1e-3], 1e12, check=lambda: Check(False, 3.0, "all"), digest=lambda: b"same")
    assert run(work).faulty


def test_the_next_product_is_taken_where_the_first_does_not_exist() -> None:
    asked: list[str] = []

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        asked.append(case.dtype)
        if case.dtype == "bf16":
            raise NotHereError("no bf16 unit")
        return product_that()

    clock = itertools.count()
    assert not stress(card(), 20.0, make=make, clock=lambda: float(next(clock))).faulty
    assert asked == ["bf16", "fp32"]


def test_a_rate_that_falls_with_heat_is_seen() -> None:
    times = itertools.accumulate(itertools.chain([0.0] * 4, [1.0] * 20, itertools.repeat(3.0)))
    result = stress(card(), 60.0, make=lambda c, s: product_that(), clock=lambda: next(times))
    assert result.rate_first is not None
    assert result.rate_last is not None
    assert result.rate_first > 2 * result.rate_last


def test_all_cards_at_once_and_only_the_bad_one_is_named() -> None:
    seams = NullDevices([NullCard("h100-sxm")] * 3)
    cards = [card(i, backend=seams, backend_index=i) for i in range(3)]
    results = stress_together(cards, 0.05, make=lambda c, s: product_that(corrupt_at=3 if s.index == 1 else None))
    assert [r.subject.index for r in results if r.faulty] == [1]
    assert all(r.samples for r in results)
