"""Whole trainings with and without the levers, where a script is so short that ``gpuwise run``'s own start decides."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuwise.train.hook.launch import Outcome
from gpuwise.train.tune.stats import Gain, gain_of

LEAST_PAIRS, MOST_PAIRS = 3, 8
SPARE = 1.5
"""Times as long as a training should take: it evaluates and writes too. Rule of this project."""


def whole_gain(
    measure: Callable[[bool, int], float | None], start_s: float, pair_s: float, until_s: float, missed: float
) -> Gain | None:
    """Speedup of whole trainings under the levers, including ``start_s`` of ``gpuwise run``. None if fewer than ``LEAST_PAIRS``
    pairs, each of about ``pair_s``, end before ``until_s`` (``time.monotonic``), or one fails.

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
        pairs.append((1.0 / plain_s, 1.0 / (levered_s + start_s)))
        if len(pairs) >= LEAST_PAIRS:
            gain = gain_of(pairs, missed=missed)
            if gain.low > 1.0 or gain.high < 1.0:
                return gain
    return gain_of(pairs, missed=missed) if len(pairs) >= LEAST_PAIRS else None


def whole_s(outcome: Outcome, *, by_clock: bool) -> float | None:
    """Seconds from the script's first line to its own end; without what other programs took of its thread, unless ``by_clock``.
    None where it did not come to its end."""
    whole = outcome.journal.last("whole")
    if not whole or not outcome.ok or outcome.ended == "enough":
        return None
    seconds = float(whole["wall_s"]) - (0.0 if by_clock else float(whole["queue_s"]))
    return seconds if seconds > 0.0 else None
