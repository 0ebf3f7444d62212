"""Loaders run to see what the prediction is worth: a check of :mod:`gpuwise.train.levers.workers`, no part of an installation."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from gpuwise.train.levers.workers import ENOUGH, PROBE_ITEMS, Probe, free_cores, predicted_rate, probe_items, workers_to_try

CROWD_S, CROWD_WAIT_S, MOST_CROWD = 0.3, 20.0, 4
"""Side by side: so long, no answer after so long, and no more processes than so many for each core."""
BORNE_OUT = 0.9
"""A measured rate of this share of the predicted one bears it out. Rule of this project."""
CHECK_ITEMS, CHECK_S, BATCH = 320, 20.0, 4
"""Items of a check, or as many as fit in the time; and items of a batch in it."""


def working_cores(dataset: Any, probe: Probe, cores: int) -> float:
    """Cores of ``cores`` that the items get where enough processes to fill them make items at the same moment, for
    ``CROWD_S``. The free ones where items hardly work, or where processes cannot be forked."""
    n = math.ceil(cores * probe.item_s / probe.cpu_s) if probe.cpu_s > 0 else math.inf
    if n > MOST_CROWD * cores or sys.platform != "linux":
        return free_cores(cores)
    context = multiprocessing.get_context("fork")
    together = context.Barrier(int(n))
    order = range(0, len(dataset), max(len(dataset) // PROBE_ITEMS, 1))
    pipes: list[Connection] = []
    crowd: list[Any] = []
    for at in range(int(n)):
        end, other = context.Pipe(duplex=False)
        arguments = (dataset, order[at % len(order) :], together, other)
        crowd.append(context.Process(target=_make, args=arguments, daemon=True))
        with warnings.catch_warnings():
            # this process has threads, as every one with torch; a DataLoader forks it just so
            warnings.simplefilter("ignore", DeprecationWarning)
            crowd[-1].start()
        other.close()
        pipes.append(end)
    rate = 0.0
    try:
        for end in pipes:
            if not end.poll(CROWD_WAIT_S):
                raise EOFError
            rate += float(end.recv())
    except EOFError:
        # one that failed or takes too long says nothing of all of them
        rate = 0.0
    for process in crowd:
        process.kill()
        process.join()
    return min(rate * probe.cpu_s, float(cores)) if rate else free_cores(cores)


def _make(dataset: Any, order: Sequence[int], together: Any, other: Connection) -> None:
    """In a process of its own: items a second while the others make theirs."""
    together.wait(CROWD_WAIT_S)
    began, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < CROWD_S or not n:
        dataset[order[n % len(order)]]
        n += 1
    other.send(n / spent if spent > 0 else 0.0)
    # as the others still work
    while time.perf_counter() - began < 2 * CROWD_S:
        dataset[order[n % len(order)]]


@dataclass(frozen=True, slots=True)
class Check:
    """One loader run with so many workers, and no training."""

    workers: int
    predicted: float
    measured: float
    """Items a second, from the moment when every worker has given its first batch."""
    seconds: float
    """Of all of it, the start of the workers with it."""


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """A number of workers and the rate it reached in a run."""

    workers: int
    rate: float
    probe: Probe
    checks: tuple[Check, ...]
    """In the order in which they were run."""
    seconds: float
    """From the question to the answer."""


def choose_workers(
    dataset: Any,
    *,
    cores: int,
    free: float | None = None,
    needed_rate: float = float("inf"),
    items: int = CHECK_ITEMS,
    batch: int = BATCH,
    collate: Callable[[list[Any]], Any] | None = None,
) -> WorkerChoice:
    """How many workers make this dataset's items fastest, up to two for each of ``cores``, or fast enough for ``needed_rate``
    items a second.

    One probe predicts, one run checks; only where the run does not bear the prediction out are half and double of it run too.
    ``free``: cores that items made side by side get; measured where it is not given. Raises InputError for a dataset without
    items.
    """
    began = time.perf_counter()
    probe = probe_items(dataset)
    free = working_cores(dataset, probe, cores) if free is None else free
    checks: list[Check] = []
    for workers in workers_to_try(probe, free, 2 * cores, needed_rate=needed_rate):
        check = run_loader(dataset, workers, predicted_rate(probe, workers, free), items=items, batch=batch, collate=collate)
        checks.append(check)
        more = len(checks) > 1 and check.workers > checks[0].workers and check.measured > checks[0].measured
        if more or check.measured >= BORNE_OUT * min(check.predicted, needed_rate):
            break
    best = max(check.measured for check in checks)
    choice = min((c for c in checks if c.measured >= ENOUGH * best), key=lambda c: c.workers)
    return WorkerChoice(choice.workers, choice.measured, probe, tuple(checks), time.perf_counter() - began)


def run_loader(
    dataset: Any,
    workers: int,
    predicted: float = float("nan"),
    *,
    items: int = CHECK_ITEMS,
    batch: int = BATCH,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Check:
    """About ``items`` items (in whole batches, as many from each worker) through a ``DataLoader``; where there
    are fewer, they come again."""
    from torch.utils.data import DataLoader

    began = time.perf_counter()
    processes = max(workers, 1)
    most = max(items // (batch * processes), 1) * processes
    order = [k % len(dataset) for k in range((processes + most) * batch)]
    with warnings.catch_warnings():
        # up to twice the cores is meant
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        batches = iter(DataLoader(dataset, batch_size=batch, sampler=order, num_workers=workers, collate_fn=collate))
    for _ in islice(batches, processes):
        pass
    full = now = time.perf_counter()
    n = 0
    for _ in batches:
        n, now = n + 1, time.perf_counter()
        if now - full > CHECK_S:
            break
    return Check(workers, predicted, n * batch / (now - full), now - began)
