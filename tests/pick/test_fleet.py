"""The split of a purse: exact, checked against every combination by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pick.scenarios import TODAY

from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.fleet import YEAR_H, Choice, best_splits, fleet
from gpuwise.pick.limits import Have, Limits

CARDS = ("a", "b", "c", "d")


@st.composite
def choices(draw: st.DrawFn) -> list[list[Choice]]:
    """Small roles whose options share a few cards, some of them rented."""
    price = {name: draw(st.integers(0, 20)) for name in CARDS}
    return [
        [
            Choice(
                name,
                draw(st.integers(1, 50)) / 10,
                price[name],
                draw(st.integers(0, 10)),
                draw(st.sampled_from([100.0, 3000.0, 6000.0])),
                draw(st.integers(1, 3)),
                100.0 * draw(st.integers(1, 4)),
            )
            for name in draw(st.lists(st.sampled_from(CARDS), min_size=1, max_size=4, unique=True))
        ]
        for _ in range(3)
    ]


def by_hand(options: list[list[Choice]], budget: float, have: Have | None) -> tuple[float, float] | None:
    """(score, cost) of the best combination, by looking at each."""
    best: tuple[float, float] | None = None
    for combination in itertools.product(*options):
        owned = {c.name: c for c in reversed(combination) if c.fixed_usd}
        cost = sum(c.run_usd for c in combination) + sum(c.fixed_usd for c in owned.values())
        hours = {name: sum(c.hours for c in combination if c.name == name and c.fixed_usd) for name in owned}
        rented = [c for c in combination if not c.fixed_usd]
        slots = sum(c.slots for c in owned.values()) + sum(c.slots for c in rented)
        watts = sum(c.power_w for c in owned.values()) + sum(c.power_w for c in rented)
        if cost > budget or any(h > YEAR_H for h in hours.values()):
            continue
        if have is not None and (slots > (have.slots or 99) or watts + 250 > (have.psu_w or 1e9)):
            continue
        score = sum(math.log(c.speed / max(o.speed for o in of)) for c, of in zip(combination, options, strict=True)) / 3
        if best is None or (round(score, 12), -cost) > (round(best[0], 12), -best[1]):
            best = score, cost
    return best


@settings(deadline=None, max_examples=3 * settings().max_examples)
@given(choices(), st.integers(0, 60), st.booleans())
def test_the_best_split_is_the_best_of_all(options: list[list[Choice]], budget: int, small_machine: bool) -> None:
    have = Have(slots=4, psu_w=900) if small_machine else None
    found = best_splits(options, budget, have=have)
    expected = by_hand(options, budget, have)
    if expected is None:
        assert found == []
    else:
        assert math.log(found[0].relative) == pytest.approx(expected[0], abs=1e-9)
        assert found[0].cost_usd == pytest.approx(expected[1]) and found[0].cost_usd <= budget


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(choices(), st.integers(0, 60), st.integers(0, 30))
def test_a_larger_purse_is_never_worse(options: list[list[Choice]], budget: int, more: int) -> None:
    small, large = best_splits(options, budget), best_splits(options, budget + more)
    assert not small or large[0].relative >= small[0].relative - 1e-12


def test_a_shared_card_is_paid_for_once_while_its_hours_last() -> None:
    mine = [Choice("card", 1.0, 100.0, 1.0, 2000.0)]
    assert best_splits([mine, mine, mine], 103)[0].cost_usd == 103
    busy = [Choice("card", 1.0, 100.0, 1.0, 4000.0)]
    assert best_splits([busy, busy, busy], 1000) == []


def test_no_options_no_split() -> None:
    assert best_splits([], 10) == [] and best_splits([[], [Choice("a", 1, 0, 0, 1)]], 10) == []


@pytest.mark.thorough
def test_a_year_with_a_real_model_stays_within_its_budget() -> None:
    found = fleet(find_model("llama-3.2-1b"), Limits(budget_usd=1500, ways=("buy",)), today=TODAY)
    assert found.best is not None and found.best.cost_usd <= 1500
    assert sum(r.cost_usd for r in found.rows()) == pytest.approx(found.best.cost_usd)
    assert [r.role for r in found.rows()] == ["train", "serve", "develop"] and found.verdict


def test_a_purse_too_small_is_said_with_what_would_do() -> None:
    found = fleet(find_model("llama-3.2-1b"), Limits(budget_usd=1, ways=("buy",)), today=TODAY)
    assert found.best is None and "$1" in found.verdict[0]
