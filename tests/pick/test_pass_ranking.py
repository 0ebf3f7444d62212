"""Accelerators ranked for passes."""

from __future__ import annotations

import datetime

import pytest

from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.pass_ranking import rank_passes
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.passes import batches

TODAY = datetime.date(2026, 11, 23)


@pytest.mark.thorough
def test_the_cheapest_for_a_million_pairs_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "REQUESTS", 300)
    ranked = rank_passes(find_model("bert-base"), "rerank", parse_targets("e2e_p95=50ms"), 1000.0, None, today=TODAY)
    costs = [a.usd_per_million for a in ranked]
    assert len(ranked) > 10 and costs == sorted(costs, key=lambda usd: usd or 0.0)
