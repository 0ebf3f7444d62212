"""Which worker runs which rooms: what is dear to start is started by one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

STARTED_ONCE = (("train/ranks",), ("ui", "report", "train"))
"""Rooms whose tests share processes that a worker starts once: servers with PyTorch imported, a web server, a browser. The rooms
of a group begin the share of one worker, and none of theirs is left when another takes from the end of it."""


def in_shares(items: list[pytest.Item], workers: int, root: Path) -> list[pytest.Item]:
    """``items`` in an order whose contiguous shares, one for each of so many workers as ``--dist worksteal`` cuts them, each
    begin with rooms of :data:`STARTED_ONCE` below ``root``."""
    groups: list[list[pytest.Item]] = [[] for _ in STARTED_ONCE]
    rest: list[pytest.Item] = []
    for item in items:
        inside = (k for k, rooms in enumerate(STARTED_ONCE) if any(item.path.is_relative_to(root / room) for room in rooms))
        groups[k].append(item) if (k := next(inside, None)) is not None else rest.append(item)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = [item for group in groups[worker::workers] for item in group]
        n = (len(items) - len(ordered)) // (workers - worker) - len(share)
        if n < 0:
            return items
        ordered += share + rest[:n]
        rest = rest[n:]
    return ordered
