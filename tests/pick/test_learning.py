"""Learning: a free notebook is found, exercises are counted, nothing is lost."""

from __future__ import annotations

from functools import cache

import pytest
from tests.pick.scenarios import KNOWN, TODAY

from gpuwise.pick.learning import Learning, exercises, learn, learning_document
from gpuwise.pick.limits import Limits

FREE, ALL, OWN = Limits(ways=("notebook",)), Limits(), Limits(ways=("buy",))
"""Exercises are predicted on every accelerator of a way; few can be had as a notebook."""
SLOWLY = pytest.mark.thorough


@cache
def learned(limits: Limits) -> Learning:
    return learn(limits, today=TODAY, known=KNOWN)


@pytest.mark.parametrize("limits", [FREE, pytest.param(ALL, marks=SLOWLY)], ids=["notebooks", "all"])
def test_without_money_a_free_t4_notebook_is_listed(limits: Limits) -> None:
    found = learned(limits)
    free = [r for r in found.ranked if r.way.notebook is not None and r.cost_usd.expected == 0]
    assert any(r.way.accelerator.id == "t4" for r in free)
    assert found.ranked[0].cost_usd.expected == 0


each = pytest.mark.parametrize(
    "limits", [FREE, *(pytest.param(limits, marks=SLOWLY) for limits in (ALL, OWN))], ids=["notebooks", "all", "own"]
)


@each
def test_more_exercises_come_before_less_money(limits: Limits) -> None:
    levels = [r.level for r in learned(limits).ranked]
    assert levels == sorted(levels)


@each
def test_ranked_and_left_out_are_all_considered(limits: Limits) -> None:
    ranking = learned(limits).ranking
    assert len(ranking.ranked) + len(ranking.left_out) == ranking.considered


@each
def test_exercises_done_and_missing_are_all_of_them(limits: Limits) -> None:
    for r in learned(limits).ranked:
        assert r.done == len(r.seconds) and r.done + len(r.missing) == len(exercises())
        assert r.time_s.expected >= 10 * 3600 or "chat with an 8B model" in dict(r.missing)


@each
def test_the_document_has_every_row(limits: Limits) -> None:
    found = learned(limits)
    assert len(learning_document(found)["ranked"]) == len(found.ranked)  # type: ignore[arg-type]
