"""The batch finder on a real script: the largest batch that fits, the recommended one, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import GpuwiseError
from gpuwise.train.tune.batch.capacity import Capacity
from gpuwise.train.tune.batch.finder import LARGEST, BatchSearch, find_batch
from gpuwise.train.tune.batch.merging import MergedBatch, lines_of, merge
from gpuwise.train.tune.batch.probe import CannotError, Prober
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.stats import LEAST_GAIN, Gain, gain_of
from gpuwise.train.tune.trial import Trial

STEP_S = 20.0
"""Batches whose step would take longer are not tried. Rule of this project."""
KNEE_RUNS = 3
PAIRS, MOST_PAIRS = 3, 4
BLOCKS: dict[str, object] = {"checkpointing": "blocks"}


@dataclass(frozen=True, slots=True)
class Run:
    """One size that was run."""

    batch: int
    fits: bool
    memory_bytes: float | None
    rate: float | None
    levers: tuple[str, ...] = ()
    """Beside the batch: ``checkpointing=blocks``."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The result of the batch finder. A larger batch changes the training, so it is only suggested."""

    own: int
    capacity: str
    runs: tuple[Run, ...] = ()
    largest: int | None = None
    chosen: int | None = None
    levers: tuple[tuple[str, object], ...] = ()
    """Beside the batch, for the chosen one."""
    ends: str = ""
    """Why ``largest`` is the largest."""
    gain: Gain | None = None
    """Gain of the chosen batch over the script's own, from pairs of runs; None if it is the script's own."""
    trial: Trial | None = None
    """Trial of the chosen batch, in the script's own order."""
    blocks: str | None = None
    """Effect of recomputing the blocks."""
    longest: str = ""
    words: str = ""
    """On what the larger batch means for the training."""
    merged: MergedBatch | None = None
    why: str | None = None
    """There is nothing: why."""


def find_sizes(prober: Prober, facts: Facts, rate: float | None, capacity: Capacity, script: Path, kept: Sequence[str]) -> Sizes:
    """``rate``: samples per second of the script's own batch; ``kept``: names of the levers that the trials use."""
    batch = facts.batch
    if batch is None:
        return Sizes(0, capacity.words, why="the script has no DataLoader whose batches could be larger")
    most = most_of(facts, rate)
    runs: list[Run] = []
    try:
        search = find_batch(prober.size, capacity.memory_bytes, start=batch, most=most, knee_runs=KNEE_RUNS)
        runs += runs_of(search)
        chosen, levers, blocks = search.chosen, dict[str, object](), None
        if search.chosen == search.largest and not search.at_most and facts.checkpoints == 0.0 and "checkpointing" not in kept:
            other, blocks = _with_blocks(prober, search, capacity, most)
            runs += runs_of(other, BLOCKS) if other is not None else []
            if other is not None and blocks is None:
                chosen, levers, blocks = other.chosen, BLOCKS, "recomputing the blocks lets a larger batch fit that is faster"
        merged = merge(prober, batch, facts.accumulation, search.largest, lambda b, left: lines_of(script, b, left))
        gain, trial = _pairs(prober, batch, chosen, levers)
        if gain is not None and gain.ratio <= 1.0:
            chosen, levers, gain, trial = batch, {}, None, None
    except GpuwiseError as error:
        return Sizes(batch, capacity.words, tuple(runs), why=error.message)
    return Sizes(
        batch,
        capacity.words,
        tuple(sorted(runs, key=lambda r: (r.levers, r.batch))),
        search.largest,
        chosen,
        tuple(levers.items()),
        ends_of(search, facts, most),
        gain,
        trial,
        blocks,
        longest_words(prober, search.runs[0].batch),
        learning_rate_words(facts, batch, chosen),
        merged,
    )


def most_of(facts: Facts, rate: float | None) -> int:
    """The largest batch worth a run: the data has no more samples, or a step would take longer than ``STEP_S``."""
    most = facts.n_samples or LARGEST
    if rate:
        most = min(most, max(int(rate * STEP_S / facts.accumulation), 1))
    return max(most, facts.batch or 1) if facts.n_samples is None else max(min(most, facts.n_samples), 1)


def runs_of(search: BatchSearch, levers: dict[str, object] | None = None) -> list[Run]:
    """Runs with the levers they had beside the batch."""
    words = tuple(f"{k}={v}" for k, v in (levers or {}).items())
    return [Run(m.batch, m.fits, m.memory_bytes, m.rate, words) for m in search.runs]


def _with_blocks(prober: Prober, search: BatchSearch, capacity: Capacity, most: int) -> tuple[BatchSearch | None, str | None]:
    """The finder again with blocks that recompute, where the rate still rises at the wall; why not, where that gives nothing."""
    best = max(search.rates.values(), default=0.0)
    start = min(2 * search.largest, most)
    try:
        first = prober.size(start, BLOCKS)
    except CannotError as error:
        return None, f"recomputing the blocks: {error.message}"
    one = BatchSearch(start, start, (first,), exact=False)
    if not first.fits:
        return one, f"a batch of {start} does not fit with blocks that recompute either"
    if first.rate is None or first.rate < LEAST_GAIN * best:
        return one, f"with blocks that recompute a batch of {start} fits and is not faster"
    other = find_batch(lambda b: prober.size(b, BLOCKS), capacity.memory_bytes, start=start, most=most)
    return other, None


def _pairs(prober: Prober, batch: int, chosen: int, levers: dict[str, object]) -> tuple[Gain | None, Trial | None]:
    """The chosen batch against the script's own, one right after the other, in turns the other way round."""
    if chosen == batch and not levers:
        return None, None
    sides: tuple[dict[str, object], ...] = ({"batch": batch}, {"batch": chosen, **levers})
    pairs: list[tuple[float, float]] = []
    after: list[Trial] = []
    for at in range(MOST_PAIRS):
        if at >= PAIRS and gain_of(pairs).verdict != "undecided":
            break
        order = sides if at % 2 == 0 else sides[::-1]
        ran = [prober.rate(side, at) for side in order]
        a, b = ran if at % 2 == 0 else ran[::-1]
        if a.rate is None or b.rate is None:
            raise CannotError(f"a batch of {chosen} did not run a second time: {a.error or b.how}")
        pairs.append((a.rate, b.rate))
        after.append(b)
    return gain_of(pairs), sorted(after, key=lambda t: t.rate or 0.0)[len(after) // 2]


def ends_of(search: BatchSearch, facts: Facts, most: int) -> str:
    """Limit above the largest size."""
    if search.at_most:
        return "the data has no more samples" if most == facts.n_samples else f"a step of more would take over {STEP_S:.0f} s"
    return "one more does not fit" if search.exact else "the next larger size that was run does not fit"


def longest_words(prober: Prober, batch: int) -> str:
    """Description of how the longest samples were found."""
    description = prober.probe({"batch": batch}).longest
    if description is None or not description.get("looked_at"):
        return "samples in the script's own order: the longest ones are unknown"
    if not description["varies"]:
        return f"all {description['looked_at']} samples that were looked at are of one size"
    seen, total = description["looked_at"], description["n_items"]
    return "the longest samples" if seen >= total else f"the longest of {seen} samples out of {total} that were looked at"


def learning_rate_words(facts: Facts, batch: int, chosen: int) -> str:
    """Advice on the learning rate for another global batch, by kind of optimizer."""
    if chosen == batch:
        return ""
    factor = chosen / batch
    adaptive = any("adam" in name.lower() or name in ("Adagrad", "RMSprop", "Lion") for name in facts.optimizers)
    if adaptive:
        rule = f"{factor**0.5:.2g} times the learning rate (the square-root rule of adaptive optimizers; Malladi et al. 2022)"
    else:
        rule = f"{factor:.2g} times the learning rate, after a warm-up (the linear rule of SGD; Goyal et al. 2017)"
    return (
        f"{chosen * facts.accumulation} samples a step in place of {batch * facts.accumulation}: another training, with fewer "
        f"steps an epoch. A start for its learning rate: {rule}; the loss has to bear it out."
    )
