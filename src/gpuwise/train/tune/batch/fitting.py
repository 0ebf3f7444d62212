"""A batch that does not fit split into micro-batches that do, at the same global batch."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import GpuwiseError
from gpuwise.train.tune.batch.capacity import Capacity
from gpuwise.train.tune.batch.finder import BatchMeasurement, find_batch
from gpuwise.train.tune.batch.probe import CannotError, Prober
from gpuwise.train.tune.batch.sizes import BLOCKS, Run, runs_of
from gpuwise.train.tune.parity import Verdict


@dataclass(frozen=True, slots=True)
class Fitting:
    """The micro-batch and the levers under which a step fits."""

    own: int
    capacity: str
    levers: tuple[tuple[str, object], ...]
    part: int | None
    """Rows that go through the model at a time; None where its blocks recompute instead."""
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    """Earlier attempts, and why they are not used."""
    parity: Verdict | None = None
    """Parity with the untouched script on batches that fit; None without such batches."""


def fit(prober: Prober, batch: int, capacity: Capacity) -> Fitting:
    """Find them by runs. Raises GpuwiseError where nothing fits."""
    notes: list[str] = []
    if batch > 1:
        try:
            search = find_batch(
                lambda part: _part(prober, batch, part), capacity.memory_bytes, start=max(batch // 2, 1), most=batch - 1
            )
            n_parts = parts_of(batch, search.largest)
            return Fitting(batch, capacity.words, (("micro_batches", n_parts),), -(-batch // n_parts), tuple(runs_of(search)))
        except CannotError as error:
            notes.append(f"not in parts: {error.message}")
        except GpuwiseError as error:
            notes.append(f"in parts: {error.message}")
    try:
        probe = prober.probe(BLOCKS)
        if probe.fits:
            run = Run(batch, True, probe.memory_bytes, probe.rate, ("checkpointing=blocks",))
            return Fitting(batch, capacity.words, tuple(BLOCKS.items()), None, (run,), tuple(notes))
        notes.append("it does not fit with blocks that recompute either")
    except CannotError as error:
        notes.append(f"not with blocks that recompute: {error.message}")
    raise GpuwiseError(
        f"the script's batch of {batch} does not fit in {capacity.words}; " + "; ".join(notes), hint="give it a smaller batch"
    )


def parts_of(batch: int, part: int) -> int:
    """The fewest micro-batches of at most ``part`` samples."""
    return -(-batch // part)


def _part(prober: Prober, batch: int, part: int) -> BatchMeasurement:
    probe = prober.probe({"micro_batches": parts_of(batch, part)})
    return BatchMeasurement(part, probe.fits, probe.memory_bytes, probe.rate)
