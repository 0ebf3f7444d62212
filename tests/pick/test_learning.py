"""Learning: a free notebook is found, exercises are counted, nothing is lost."""

from __future__ import annotations

from functools import cache

from tests.pick.scenarios import KNOWN, TODAY

from gpuwise.pick.learning import Learning, exercises, learn, learning_document
from gpuwise.pick.limits import Limits


@cache
def learned(limits: Limits) -> Learning:
    return learn(limits, today=TODAY, known=KNOWN)


def test_without_money_a_free_t4_notebook_is_listed() -> None:
    found = learned(Limits())
    free = [r for r in found.ranked if r.way.notebook is not None and r.cost_usd.expected == 0]
    assert any(r.way.accelerator.id == "t4" for r in free)
    assert found.ranked[0].cost_usd.expected == 0


def test_more_exercises_come_before_less_money() -> None:
    for limits in (Limits(), Limits(ways=("buy",))):
        levels = [r.level for r in learned(limits).ranked]
        assert levels == sorted(levels)


def test_ranked_and_left_out_are_all_considered() -> None:
    ranking = learned(Limits()).ranking
    assert len(ranking.ranked) + len(ranking.left_out) == ranking.considered


def test_exercises_done_and_missing_are_all_of_them() -> None:
    for r in learned(Limits(ways=("buy",))).ranked:
        assert r.done == len(r.seconds) and r.done + len(r.missing) == len(exercises())
        assert r.time_s.expected >= 10 * 3600 or "chat with an 8B model" in dict(r.missing)


def test_the_document_has_every_row() -> None:
    found = learned(Limits())
    assert len(learning_document(found)["ranked"]) == len(found.ranked)  # type: ignore[arg-type]
