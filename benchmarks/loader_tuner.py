"""The loader's tuner against runs: predicted rates by workers, and its time to an answer beside a grid search's.

    PYTHONPATH=. python benchmarks/loader_tuner.py [--wait-ms 10] [--items 320] [--cores 4]

Items that wait (``time.sleep``) and items that work (Python arithmetic) through a ``DataLoader`` with 1, 2, 4 and 8 workers,
beside what one probe predicts; the cores that items made side by side get are measured before each run, and beside it stands
how many were there for the loader while it ran. Then the tuner (probe, and runs that check it) and a grid of 0 to 2 x cores
workers, each with as many items: both in seconds of waiting for an answer, and what the tuner's choice reaches of the grid's
best rate. Needs a machine that nothing else holds; what others used meanwhile is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from gpuwise.train.levers.workers import predicted_rate, probe_items
from gpuwise.train.tune.facts import usable_cores
from studies.loader_runs import choose_workers, run_loader, working_cores

WORKERS = (1, 2, 4, 8)


class Waits:
    """Items from something slow that is not this processor."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        time.sleep(self._seconds)
        return index


class Works:
    """Items that take a processor some milliseconds."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        return sum(range(300_000)) + index


@contextmanager
def shared(found: dict[str, float]) -> Iterator[None]:
    """Cores that others used, and those that were there for this process and its children, while the block ran."""
    before, own, at_s = psutil.cpu_times(), os.times(), time.perf_counter()
    yield
    wall_s, after, now = time.perf_counter() - at_s, psutil.cpu_times(), os.times()
    idle = (after.idle - before.idle + after.iowait - before.iowait) / wall_s
    mine = sum(now[:4]) - sum(own[:4])
    cores = usable_cores()
    found["there"] = min(idle + mine / wall_s, cores)
    found["others"] = max(cores - found["there"], 0.0)


def rates(name: str, dataset: Any, items: int) -> None:
    """One row for each number of workers."""
    probe, cores = probe_items(dataset), usable_cores()
    print(f"\n{name}: {probe.n_items} items, {1e3 * probe.item_s:.2f} ms each, {1e3 * probe.cpu_s:.2f} ms of it on a processor\n")
    head = (
        "workers",
        "cores side by side",
        "predicted, items/s",
        "measured",
        "off",
        "cores there meanwhile",
        "predicted with these",
        "off",
    )
    row(*head)
    row(*["---"] * len(head))
    for workers in WORKERS:
        free, found = working_cores(dataset, probe, cores), dict[str, float]()
        with shared(found):
            check = run_loader(dataset, workers, predicted_rate(probe, workers, free), items=items)
        there, rate = predicted_rate(probe, workers, found["there"]), check.measured
        row(
            workers,
            f"{free:.2f}",
            f"{check.predicted:.1f}",
            f"{rate:.1f}",
            f"{check.predicted / rate - 1:+.1%}",
            f"{found['there']:.2f}",
            f"{there:.1f}",
            f"{there / rate - 1:+.1%}",
        )


def row(*values: object) -> None:
    """Of a table."""
    print("| " + " | ".join(map(str, values)) + " |")


def race(name: str, dataset: Any, cores: int, items: int) -> None:
    """The tuner and the grid, to an answer each."""
    found: dict[str, float] = {}
    with shared(found):
        chosen = choose_workers(dataset, cores=cores, items=items)
        began = time.perf_counter()
        grid = {w: run_loader(dataset, w, items=items) for w in range(2 * cores + 1)}
        grid_s = time.perf_counter() - began
    best = max(grid.values(), key=lambda c: c.measured)
    row(
        name,
        chosen.workers,
        len(chosen.checks),
        f"{chosen.seconds:.2f} s",
        f"0 to {2 * cores}",
        best.workers,
        f"{grid_s:.2f} s",
        f"{grid_s / chosen.seconds:.1f}x",
        f"{grid[chosen.workers].measured / best.measured:.1%}",
        f"{found['others']:.2f}",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-ms", type=float, default=10.0, help="of an item that waits")
    parser.add_argument("--items", type=int, default=320, help="in each run")
    parser.add_argument("--cores", type=int, default=usable_cores(), help="whose grid of workers is searched")
    given = parser.parse_args()
    torch.set_num_threads(1)
    waits = Waits(given.wait_ms / 1e3)
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.platform()}, {usable_cores()} cores, {software}; load {os.getloadavg()[0]:.1f} at the start")
    rates("Items that wait", waits, given.items)
    rates("Items that work", Works(), given.items)
    print()
    head = (
        "items",
        "chosen",
        "runs",
        "time to it",
        "grid",
        "its best",
        "time to it",
        "faster",
        "rate of the best",
        "others' cores",
    )
    row(*head)
    row(*["---"] * len(head))
    race("wait", waits, given.cores, given.items)
    race("work", Works(), given.cores, given.items)


if __name__ == "__main__":
    main()
