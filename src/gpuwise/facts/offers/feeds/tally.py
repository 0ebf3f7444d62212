"""Result of a feed's parser: certain offers, and the skipped rows by reason and number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuwise.facts.offers.table import Offer


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows skipped for one reason."""

    reason: str
    count: int
    example: str
    """One of them, as the feed writes it."""


@dataclass(frozen=True, slots=True)
class ParsedFeed:
    """Offers of one feed and provider."""

    offers: tuple[Offer, ...]
    skipped: tuple[SkippedRows, ...]
    rows: int
    """Rows that price an accelerator at all; those without one are not counted."""


@dataclass(slots=True)
class Tally:
    """Counts reasons; the first row of each is its example."""

    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _examples: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, reason: str, example: str, n: int = 1) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + n
        self._examples.setdefault(reason, " ".join(example.split())[:100])

    def skipped(self) -> tuple[SkippedRows, ...]:
        """Most frequent first."""
        by_count = sorted(self._counts.items(), key=lambda item: -item[1])
        return tuple(SkippedRows(reason, n, self._examples[reason]) for reason, n in by_count)


def merge_skipped(parts: Sequence[tuple[SkippedRows, ...]]) -> tuple[SkippedRows, ...]:
    """Several lists of skipped rows as one."""
    tally = Tally()
    for part in parts:
        for skipped in part:
            tally.add(skipped.reason, skipped.example, skipped.count)
    return tally.skipped()
