"""Whole trainings with and without the levers, from the start of the process to its end: what a person gains."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuwise.train.hook.launch import Outcome
from gpuwise.train.tune.start import Start
from gpuwise.train.tune.stats import Gain, gain_of

LEAST_PAIRS, MOST_PAIRS = 3, 8
SPARE = 1.5
"""Times as long as a training should take: it evaluates and writes too. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Seconds of the whole process as it is and under the levers, and the gain."""

    before_s: float
    after_s: float
    gain: Gain
    is_measured: bool
    """By whole runs; else counted from a step's gain and what occurs once."""


def counted(gain: Gain, length_s: float, *, once_s: float, added_s: float, filling_s: float = 0.0) -> Whole:
    """The whole training by the gain of its steps: ``length_s`` of steps as they are, of which ``filling_s`` (the first epoch of
    a cache) gain nothing; ``once_s`` for imports, data and building; ``added_s`` for the start of ``gpuwise run`` and
    compilation."""
    before_s = once_s + length_s

    def after_s(ratio: float) -> float:
        return once_s + added_s + filling_s + (length_s - filling_s) / ratio

    ratio, low, high = (before_s / after_s(ratio) for ratio in (gain.ratio, max(gain.low, 1e-9), gain.high))
    return Whole(before_s, after_s(gain.ratio), Gain(ratio, low, high, gain.n_pairs), is_measured=False)


def whole_gain(
    measure: Callable[[bool, int], float | None], start: Start, pair_s: float, until_s: float, missed: float
) -> Whole | None:
    """Whole trainings measured under the levers, imports and the start of ``gpuwise run`` included. None if fewer than
    ``LEAST_PAIRS`` pairs, each of about ``pair_s``, end before ``until_s`` (``time.monotonic``), or one fails.

    ``measure(levered, at)`` returns the seconds of the training in pair ``at``. Pairs alternate their order and are added
    until the interval is on one side of 1.
    """
    pairs: list[tuple[float, float]] = []
    for at in range(MOST_PAIRS):
        needed_s = pair_s * (max(LEAST_PAIRS - at, 1))
        if time.monotonic() + needed_s > until_s:
            break
        began_s = time.monotonic()
        order = (False, True) if at % 2 == 0 else (True, False)
        taken = {levered: measure(levered, at) for levered in order}
        plain_s, levered_s = taken[False], taken[True]
        if plain_s is None or levered_s is None:
            return None
        pair_s = time.monotonic() - began_s or pair_s
        pairs.append((1.0 / (start.import_s + plain_s), 1.0 / (start.import_s + start.added_s + levered_s)))
        if len(pairs) >= LEAST_PAIRS:
            gain = gain_of(pairs, missed=missed)
            if gain.low > 1.0 or gain.high < 1.0:
                break
    if len(pairs) < LEAST_PAIRS:
        return None
    before_s = statistics.median(1.0 / a for a, _ in pairs)
    gain = gain_of(pairs, missed=missed)
    return Whole(before_s, before_s / gain.ratio, gain, is_measured=True)


def whole_s(outcome: Outcome, *, by_clock: bool) -> float | None:
    """Seconds from the script's first line to its own end; without what other programs took of its thread, unless ``by_clock``.
    None where it did not come to its end."""
    whole = outcome.journal.last("whole")
    if not whole or not outcome.ok or outcome.ended == "enough":
        return None
    seconds = float(whole["wall_s"]) - (0.0 if by_clock else float(whole["queue_s"]))
    return seconds if seconds > 0.0 else None
