"""The order in which the workers of a run take the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.shares import STARTED_ONCE, in_shares

ROOT = Path("/tests")


class Item:
    """What of a test its place depends on."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path


def shares(rooms: list[str], workers: int) -> list[list[str]]:
    """The rooms of each worker's share, as ``--dist worksteal`` cuts them."""
    items = cast(Any, [Item(f"{room}/test_{i}.py") for i, room in enumerate(rooms)])
    ordered = in_shares(items, workers, ROOT)
    assert sorted(map(id, ordered)) == sorted(map(id, items))
    cut: list[list[str]] = []
    for worker in range(workers):
        n = (len(ordered) - sum(map(len, cut))) // (workers - worker)
        at = sum(map(len, cut))
        cut.append([item.path.parent.relative_to(ROOT).as_posix() for item in ordered[at : at + n]])
    return cut


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_room_that_starts_servers_is_one_workers_and_comes_first(workers: int) -> None:
    rooms = ["agreement"] * 9 + ["cli"] * 30 + ["train/hook"] * 3 + ["train/ranks"] * 5 + ["ui"] * 4 + ["workload"] * 11
    cut = shares(rooms, workers)
    for group in STARTED_ONCE:
        inside = [[r.startswith(group) and (group == ("train/ranks",) or r != "train/ranks") for r in share] for share in cut]
        assert sum(any(share) for share in inside) == 1
    dear = [[r in ("train/hook", "train/ranks", "ui") for r in share] for share in cut]
    assert all(share == sorted(share, reverse=True) for share in dear)


def test_where_a_room_is_more_than_a_share_the_order_stays() -> None:
    rooms = ["cli"] * 2 + ["train/ranks"] * 8
    assert shares(rooms, 2) == [rooms[:5], rooms[5:]]
