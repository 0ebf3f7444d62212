"""Items are kept where making them draws no random number and follows nothing that changes, and else made every time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, Dataset

from gpuwise.train.levers.items import Items
from gpuwise.workload.capture.device.patching import Patches

Keep = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Puts the lever on until the test ends; returns what it reports."""
    patches, reports = Patches(), list[dict[str, Any]]()

    def keeping() -> list[dict[str, Any]]:
        Items(patches, True, lambda _, **report: reports.append(report))
        return reports

    yield keeping
    patches.undo()


class Rows(Dataset[Any]):
    """Items that are drawn, or follow what changes, each in its own way."""

    factor = 1.0
    total = torch.zeros(1)

    def __init__(self, way: str) -> None:
        self.way, self.epoch, self.calls, self.noise = way, 0, 0, {"at": [0.0]}
        self.own, self.older = np.random.default_rng(0), np.random.RandomState(0)
        self.python, self.torch = random.Random(0), torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.calls += self.way == "counts its calls"
        added = {
            "torch": lambda: torch.rand(1).item(),
            "numpy": lambda: np.random.rand(),  # noqa: NPY002
            "python": random.random,
            "a flip": lambda: float(random.random() < 0.5),
            "default_rng of its own": self.own.random,
            "RandomState of its own": self.older.rand,
            "Random of its own": self.python.random,
            "torch.Generator of its own": lambda: torch.rand(1, generator=self.torch).item(),
            "default_rng of the module": GENERATOR.random,
            "a fresh generator": lambda: np.random.default_rng().random(),
            "the clock": time.perf_counter,
            "its epoch": lambda: float(self.epoch),
            "its class": lambda: Rows.factor,
            "a tensor": lambda: self.total.item(),
            "what it holds": lambda: self.noise["at"][0],
            "the module": lambda: SETTING["scale"],
            "counts its calls": lambda: float(self.calls),
        }.get(self.way, float)()
        return torch.tensor([index + added], dtype=torch.float64)  # two readings of a clock differ


GENERATOR, SETTING = np.random.default_rng(1), {"scale": 0.0}
WAYS = (
    *("torch", "numpy", "python", "a flip", "default_rng of its own", "RandomState of its own", "Random of its own"),
    *("torch.Generator of its own", "default_rng of the module", "a fresh generator", "the clock", "its epoch", "its class"),
    *("a tensor", "what it holds", "the module", "counts its calls"),
)


def epochs(way: str) -> list[list[float]]:
    """The items of three epochs of ``Rows`` in order, all generators seeded."""
    global GENERATOR
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    GENERATOR = np.random.default_rng(1)
    rows, found = Rows(way), []
    loader = DataLoader(rows, batch_size=4)
    for epoch in range(3):
        rows.epoch = Rows.factor = SETTING["scale"] = rows.noise["at"][0] = float(epoch)  # type: ignore[assignment]
        Rows.total[0] = epoch
        found.append([v for batch in loader for v in batch.flatten().tolist()])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_items_that_are_drawn_or_follow_what_changes_are_not_kept(keep: Keep, way: str) -> None:
    plain = epochs(way)
    reports = keep()
    cached = epochs(way)
    assert not reports[-1]["applied"] and reports[-1]["why"]
    if way in ("a fresh generator", "the clock"):  # no run gives another's
        assert all(len({row[k] for row in cached}) == 3 for k in range(8))
    else:
        assert cached == plain


def test_items_that_are_computed_are_kept(keep: Keep) -> None:
    plain = epochs("")
    reports = keep()
    Rows.factor, SETTING["scale"], Rows.total[0] = 0.0, 0.0, 0.0
    rows = Rows("")
    loader = DataLoader(rows, batch_size=4)
    assert [[v for batch in loader for v in batch.flatten().tolist()] for _ in range(3)] == plain
    assert [t["applied"] for t in reports] == [True]
