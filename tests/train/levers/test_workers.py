from __future__ import annotations

import os
import time

import pytest

from gpuwise.errors import InputError
from gpuwise.train.levers.workers import Probe, predicted_rate, probe_items, workers_to_try
from studies import loader_runs
from studies.loader_runs import Check, choose_workers, run_loader, working_cores


class Waits:
    """Items from something slow that is not this processor."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        return index


class Works:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return sum(range(300_000)) + index


def test_waiting_and_working_are_told_apart() -> None:
    waits, works = probe_items(Waits()), probe_items(Works())
    assert waits.waiting > 0.5 > works.cpu_s / works.item_s * 0.1
    assert waits.item_s >= 0.004
    assert works.cpu_s > 10 * waits.cpu_s


def test_waiting_scales_with_workers_and_working_with_free_cores() -> None:
    waits, works = Probe(0.01, 0.0002, 40), Probe(0.01, 0.01, 40)
    assert [predicted_rate(waits, w, 2.0) for w in (1, 2, 4, 8)] == pytest.approx([100, 200, 400, 800])
    assert [predicted_rate(works, w, 1.5) for w in (1, 2, 4, 8)] == pytest.approx([100, 150, 150, 150])


def test_the_fewest_workers_that_do_and_their_neighbours() -> None:
    assert workers_to_try(Probe(0.01, 0.0025, 40), 1.0, 16) == (4, 8, 2)
    assert workers_to_try(Probe(0.01, 0.01, 40), 2.0, 4) == (2, 4, 1)


def test_no_more_workers_than_the_training_takes() -> None:
    assert workers_to_try(Probe(0.01, 0.0, 40), 8.0, 16, needed_rate=250.0)[0] == 3


def test_an_empty_dataset() -> None:
    with pytest.raises(InputError, match="no items"):
        probe_items([])


@pytest.mark.parametrize(
    ("rates", "needed", "chosen", "run"),
    [
        # as predicted: one run
        ({8: 790.0}, float("inf"), 8, [8]),
        # no faster with more than four: the fewest of those that do as much
        ({8: 400.0, 4: 390.0}, float("inf"), 4, [8, 4]),
        # what the training takes, and no more
        ({3: 250.0}, 250.0, 3, [3]),
        # slower than predicted, and the double makes up for it
        ({3: 150.0, 6: 260.0}, 250.0, 6, [3, 6]),
    ],
)
def test_the_prediction_is_checked_by_running(
    rates: dict[int, float], needed: float, chosen: int, run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_runs, "probe_items", lambda dataset: Probe(0.01, 0.0, 40))
    monkeypatch.setattr(
        loader_runs, "run_loader", lambda d, workers, predicted, **_: Check(workers, predicted, rates[workers], 1.0)
    )
    found = choose_workers(Waits(), cores=4, free=4.0, needed_rate=needed)
    assert (found.workers, found.rate) == (chosen, rates[chosen])
    assert [c.workers for c in found.checks] == run


@pytest.mark.parametrize("workers", [0, 3])
def test_a_run_of_a_loader(workers: int) -> None:
    """More workers than this machine may have cores, and more items than there are: no warning."""
    pytest.importorskip("torch")
    seen: list[int] = []

    def collate(rows: list[int]) -> list[int]:
        seen.extend(rows)
        return rows

    check = run_loader(range(10), workers, 5.0, items=30, batch=2, collate=collate)
    assert (check.workers, check.predicted) == (workers, 5.0)
    assert check.measured > 0 and check.seconds > 0
    if workers == 0:
        assert seen == [k % 10 for k in range(32)]


def test_cores_that_items_get_side_by_side() -> None:
    works, waits = probe_items(Works()), probe_items(Waits())
    # a machine with other work gives any share
    assert 0.0 < working_cores(Works(), works, 2) <= 2.0
    assert 0.5 <= working_cores(Waits(), waits, 2) <= 2.0


@pytest.mark.parametrize(("rate", "cores"), [(60.0, 1.2), (95.0, 1.9), (140.0, 2.0)])
def test_cores_are_those_that_the_items_made_side_by_side_used(
    monkeypatch: pytest.MonkeyPatch, rate: float, cores: float
) -> None:
    """Two processes whose items work 10 ms each; more than there are cores is none."""
    monkeypatch.setattr(loader_runs, "_make", lambda dataset, order, together, other: other.send(rate))
    assert working_cores(Works(), Probe(0.01, 0.01, 40), 2) == pytest.approx(cores)


class Fails(Works):
    """In any process but the first."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int) -> int:
        if os.getpid() != self._pid:
            os._exit(3)
        return super().__getitem__(index)


def test_items_that_fail_side_by_side_leave_the_free_cores() -> None:
    assert 0.5 <= working_cores(Fails(), probe_items(Fails()), 2) <= 2.0
