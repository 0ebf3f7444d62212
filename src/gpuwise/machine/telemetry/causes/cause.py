"""One thing that holds a card back, and the words that several rules share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpuwise.machine.telemetry.frames import Card, Window
from gpuwise.units import MEGA, MINUTE_S, format_duration

BUSY = 0.5
"""Utilisation from which a card counts as under load: clocks and the PCIe generation fall when there is nothing to do."""
SHORTEST_SPAN_S = 2.0
"""Shares over a shorter span only describe the present."""
WORTH_NAMING = 0.01
"""Share of a window from which an ended hold is still named."""


class Severity(StrEnum):
    """How much it matters, worst first."""

    FAULT = "fault"
    """Something is broken or needs a person: reset, cooling, power, repair."""
    SLOWS = "slows"
    """The card could do more."""
    NOTE = "note"
    """Normal, or worth knowing."""


ORDER = {s: n for n, s in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds a card back."""

    id: str
    """Stable: ``hw-thermal``, ``sw-power-cap``, ``lost`` ..."""
    number: int | None
    """Number of the card; None: of the machine."""
    sentence: str
    evidence: tuple[str, ...]
    cost: str | None
    """Current cost, in words: ``570 MHz (29 %) below the highest clock``; None: unknown, or no clock is lost."""
    severity: Severity
    hint: str | None = None
    """Suggested action."""


def is_busy(card: Card) -> bool:
    """Whether the card is under load at this moment."""
    return (card.sample.utilization or 0.0) >= BUSY


def clock_cost(card: Card) -> str | None:
    """Difference from the highest clock while the card is under load: ``570 MHz (29 %) below the highest clock``."""
    top_hz, now_hz = card.identity.sm_clock_max_hz, card.sample.sm_clock_hz
    if not top_hz or now_hz is None or not is_busy(card) or now_hz >= top_hz:
        return None
    lost_hz = top_hz - now_hz
    return f"{lost_hz / MEGA:.0f} MHz ({lost_hz / top_hz * 100:.0f} %) below the highest clock"


def shares_of(card: Card, reason: str) -> Iterator[str]:
    """Sentences on how long the driver slowed ``card`` down for ``reason``: by window, and since it was loaded."""
    for window in card.windows:
        share = window.shares.get(reason)
        if share and window.length_s >= SHORTEST_SPAN_S:
            yield share_words(window, share)
    total = card.health.held_back_s.get(reason) if card.health is not None else None
    if total and total >= 1.0:
        yield f"{span_words(total)} since the driver was loaded"


def share_words(window: Window, share: float) -> str:
    """``12 % of the last 5 min (driver's counters)``."""
    basis = "driver's counters" if window.basis == "counters" else "of the refreshes"
    percent = f"{share * 100:.0f} %" if share >= WORTH_NAMING else "under 1 %"
    return f"{percent} of the last {span_words(window.length_s)} ({basis})"


def span_words(seconds: float) -> str:
    """``48 s``, ``5 min``: an observed span in few digits."""
    return f"{seconds:.0f} s" if 10 <= seconds < 2 * MINUTE_S else format_duration(round(seconds, 1))


def recent_share(card: Card, reason: str) -> float:
    """Over the shortest window: what was longer ago is no reason for now."""
    return card.windows[0].shares.get(reason, 0.0) if card.windows else 0.0
