"""How many loader workers: one probe predicts the rate of every number of them, and trials check it.

A worker makes items one after the other, each taking t_item seconds of which t_cpu on a processor; w of them do
rate(w) = min(w / t_item, cores / t_cpu) items a second: the first until the processors are full. Of the cores only what they
give to items made side by side counts: others may use them, and two that share a core's units or its memory are not two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwise.errors import InputError

PROBE_ITEMS, PROBE_S = 40, 2.0
"""Items of a probe, or as many as fit in the time."""
ENOUGH = 0.95
"""The fewest workers that reach this share of the best predicted rate are taken. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Medians of making one item."""

    item_s: float
    cpu_s: float
    n_items: int

    @property
    def waiting(self) -> float:
        """Share of an item's time that is no work of the processor: files, network."""
        return max(1.0 - self.cpu_s / self.item_s, 0.0) if self.item_s else 0.0


def probe_items(dataset: Any, indices: Sequence[Any] | None = None) -> Probe:
    """Make items in this process, one after the other. Raises InputError for a dataset without items."""
    if indices is None:
        total = len(dataset)
        indices = range(0, total, max(total // PROBE_ITEMS, 1))
    walls: list[float] = []
    cpus: list[float] = []
    began = time.perf_counter()
    for index in list(indices)[:PROBE_ITEMS]:
        wall, cpu = time.perf_counter(), time.thread_time()
        dataset[index]
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        if time.perf_counter() - began > PROBE_S and len(walls) >= 3:
            break
    if not walls:
        raise InputError("the dataset has no items")
    return Probe(statistics.median(walls), statistics.median(cpus), len(walls))


def predicted_rate(probe: Probe, workers: int, free_cores: float) -> float:
    """Items per second with that many workers; 0 workers is the loop's own process."""
    processes = max(workers, 1)
    by_processes = processes / probe.item_s
    return min(by_processes, free_cores / probe.cpu_s) if probe.cpu_s > 0 and workers else by_processes


def workers_to_try(probe: Probe, free_cores: float, most: int, *, needed_rate: float = float("inf")) -> tuple[int, ...]:
    """The fewest workers whose predicted rate is ``ENOUGH`` of the best (or of ``needed_rate``, what the training takes), then
    its half and its double, for where a run shows the prediction wrong."""
    predicted = {w: predicted_rate(probe, w, free_cores) for w in range(1, most + 1)}
    target = ENOUGH * min(max(predicted.values()), needed_rate)
    first = min(w for w, rate in predicted.items() if rate >= target)
    return tuple(dict.fromkeys(w for w in (first, min(2 * first, most), max(first // 2, 1))))


def free_cores(usable: int, sample_s: float = 0.2) -> float:
    """Idle cores of this machine, at least a half: a busy machine still gives a share."""
    import psutil

    busy = psutil.cpu_percent(sample_s) / 100.0 * (psutil.cpu_count() or 1)
    return max(usable - busy, 0.5)
