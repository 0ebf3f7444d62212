"""Strategies as columns: one alone, several, and back."""

from __future__ import annotations

from gpuwise.predict.columns import Columns
from gpuwise.workload.strategy import COLUMNS, Strategy

STRATEGIES = (
    Strategy(dp=8, micro_batch=2, sharding="zero3", recompute="full", recompute_every=2),
    Strategy(dp=2, tp=4, pp=2, accumulation=8, schedule="interleaved", virtual_stages=2, sequence_parallel=True),
)


def test_a_list_is_read_back_and_one_alone_has_the_same_numbers_without_an_axis() -> None:
    together = Columns.from_strategies(STRATEGIES)
    assert together.shape == (2,) and [together.strategy(i) for i in range(2)] == [*STRATEGIES]
    for i, strategy in enumerate(STRATEGIES):
        alone = Columns.of(strategy)
        assert alone.shape == () and all(getattr(alone, f) == getattr(together, f)[i] for f in COLUMNS)
