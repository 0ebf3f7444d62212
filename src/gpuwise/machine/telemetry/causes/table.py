"""Why is it slow: what holds each card back, in a sentence with evidence. Pure: a frame in, causes out.

What is normal is not shouted: a card at full load at its usual power limit gets a note with the cost in MHz and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwise.machine.telemetry.causes import clocks as causes_clocks
from gpuwise.machine.telemetry.causes import faults as causes_faults
from gpuwise.machine.telemetry.causes import waiting as causes_waiting
from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Card, Frame

__all__ = ["Cause", "Severity", "card_causes", "find_causes"]

CauseRule = Callable[[Card, Frame], Iterator[Cause]]

RULES: tuple[CauseRule, ...] = (
    causes_faults.errors,
    causes_faults.xids,
    causes_clocks.held_clocks,
    causes_clocks.hardware_slowdown,
    causes_clocks.hot,
    causes_clocks.power_cap,
    causes_clocks.low_clock,
    causes_clocks.unknown_bits,
    causes_faults.links,
    causes_waiting.waiting,
    causes_waiting.memory,
)
"""Asked of a card that answers, in this order within one severity."""
AWAY_RULES: tuple[CauseRule, ...] = (causes_faults.away, causes_faults.xids)
"""Asked of a card that does not."""

ORDER = {severity: n for n, severity in enumerate(Severity)}


def find_causes(frame: Frame) -> tuple[Cause, ...]:
    """Every cause in a frame: worst first, then by card."""
    causes = [cause for card in frame.cards for cause in card_causes(card, frame)] + list(causes_waiting.host_memory(frame.host))
    return tuple(sorted(causes, key=lambda c: (ORDER[c.severity], -1 if c.number is None else c.number)))


def card_causes(card: Card, frame: Frame) -> Iterator[Cause]:
    """The causes of one card."""
    for rule in RULES if card.ok else AWAY_RULES:
        yield from rule(card, frame)
