"""Rules for reduced clocks: heat, power, hardware, other cards, a user's setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.machine.devices.readings import EventReason
from gpuwise.machine.telemetry.causes.cause import WORTH_NAMING, Cause, Severity, clock_cost, is_busy, recent_share, shares_of
from gpuwise.machine.telemetry.frames import Card, Frame
from gpuwise.units import MEGA

LOW_CLOCK = 0.5
"""Share of the highest clock below which a card under load without a reason is unusual."""
LIMIT_LOWERED = 0.98
"""Tolerance relative to the default power limit: cards round their settings."""
FAR_FROM_LIMIT = 0.8
"""Share of the power limit below which a card is not limited by it."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """How one event reason is spoken of."""

    reason: EventReason
    id: str
    now: str
    """After "GPU 0 ...", while it lasts."""
    before: str
    """After "GPU 0 ...", when it was so in the last minute."""
    severity: Severity
    hint: str | None = None
    only_busy: bool = False


_HOLDS = (
    _Hold(
        EventReason.HW_THERMAL,
        "hw-thermal",
        "is too hot: its hardware has cut the clocks",
        "was too hot: its hardware cut the clocks",
        Severity.FAULT,
        "check fans, dust, airflow and the room; a lower power limit keeps it cooler",
    ),
    _Hold(
        EventReason.HW_POWER_BRAKE,
        "hw-power-brake",
        "is limited by the power brake: the power supply or the system requests it",
        "was limited by the power brake: the power supply or the system requested it",
        Severity.FAULT,
        "check the power supply, its cables and the system's power capping",
    ),
    _Hold(
        EventReason.SW_THERMAL,
        "sw-thermal",
        "is warm: the driver lowers its clocks to keep the target temperature",
        "was warm: the driver lowered its clocks to keep the target temperature",
        Severity.SLOWS,
        "more airflow, a faster fan curve or a lower power limit",
    ),
    _Hold(
        EventReason.SYNC_BOOST,
        "sync-boost",
        "waits for slower GPUs: sync boost keeps a group at one clock",
        "waited for slower GPUs: sync boost keeps a group at one clock",
        Severity.SLOWS,
        "find the slowest GPU of the group, or take the GPUs out of it",
        only_busy=True,
    ),
    _Hold(
        EventReason.RELIABILITY,
        "reliability",
        "is limited to the voltage that its reliability allows",
        "was limited to the voltage that its reliability allows",
        Severity.NOTE,
        only_busy=True,
    ),
    _Hold(
        EventReason.BOARD_LIMIT,
        "board-limit",
        "is limited by its board",
        "was limited by its board",
        Severity.SLOWS,
        "check the power connectors",
        only_busy=True,
    ),
    _Hold(
        EventReason.APPLICATION_CLOCKS,
        "application-clocks",
        "runs at application clocks below its highest",
        "ran at application clocks below its highest",
        Severity.NOTE,
        "`nvidia-smi -rac` sets them back, where nobody chose them",
        only_busy=True,
    ),
    _Hold(
        EventReason.DISPLAY_CLOCKS,
        "display-clocks",
        "is limited to the clock of its display",
        "was limited to the clock of its display",
        Severity.NOTE,
        only_busy=True,
    ),
)


def held_clocks(card: Card, frame: Frame) -> Iterator[Cause]:
    """Every reason that holds the clocks now, or did in the last minute, but the power limit (:func:`power_cap`)."""
    bits = card.sample.event_reasons or 0
    for hold in _HOLDS:
        name = str(hold.reason.name)
        now, share = bool(bits & hold.reason), recent_share(card, name)
        if not (now or share >= WORTH_NAMING) or (hold.only_busy and not is_busy(card)):
            continue
        # what is over is a fault no more, but it did slow the card
        severity = Severity.SLOWS if hold.severity is Severity.FAULT and not now else hold.severity
        yield Cause(
            hold.id,
            card.number,
            f"GPU {card.number} {hold.now if now else hold.before}.",
            (*_heat(card, hold.reason), *shares_of(card, name)),
            clock_cost(card) if now else None,
            severity,
            hold.hint,
        )


def hardware_slowdown(card: Card, frame: Frame) -> Iterator[Cause]:
    """The umbrella bit: named only where neither heat nor the brake is, and under load (nvml.h: it may also be set while the
    performance state changes)."""
    bits = card.sample.event_reasons or 0
    if bits & EventReason.HW_SLOWDOWN and not bits & (EventReason.HW_THERMAL | EventReason.HW_POWER_BRAKE) and is_busy(card):
        yield Cause(
            "hw-slowdown",
            card.number,
            f"GPU {card.number} is slowed down by its hardware, which does not say why.",
            (*_heat(card, EventReason.HW_THERMAL), *shares_of(card, "HW_SLOWDOWN")),
            clock_cost(card),
            Severity.FAULT,
            "check cooling and power: the hardware cuts the clocks for heat, the power brake or a fast rise of power",
        )


def power_cap(card: Card, frame: Frame) -> Iterator[Cause]:
    """Normal at full load: then only its cost is reported. Not normal if the limit was lowered."""
    now, share = bool((card.sample.event_reasons or 0) & EventReason.SW_POWER_CAP), recent_share(card, "SW_POWER_CAP")
    if not (now or (share >= WORTH_NAMING and is_busy(card))):
        return
    limit, usual, power = card.sample.power_limit_w, card.identity.power_limit_default_w, card.power_w
    evidence = list(shares_of(card, "SW_POWER_CAP"))
    if power is not None and limit is not None:
        evidence.insert(0, f"it draws {power:.0f} W of {limit:.0f} W")
    cost, n = clock_cost(card), card.number
    if limit is not None and usual is not None and limit < LIMIT_LOWERED * usual:
        yield Cause(
            "sw-power-cap",
            n,
            f"GPU {n} is slowed down by a power limit of {limit:.0f} W; its default is {usual:.0f} W.",
            tuple(evidence),
            cost,
            Severity.SLOWS,
            f"`sudo nvidia-smi -i {card.identity.index} -pl {usual:.0f}` sets it back",
        )
    elif now and limit is not None and power is not None and power < FAR_FROM_LIMIT * limit:
        yield Cause(
            "sw-power-cap",
            n,
            f"GPU {n} is slowed down by a power limit, though it draws far less than its own.",
            tuple(evidence),
            cost,
            Severity.SLOWS,
            "the limit is another one: of the board, the laptop's shared budget, or the adapter; check plug and power profile",
        )
    else:
        yield Cause(
            "sw-power-cap", n, f"GPU {n} runs at its power limit, as GPUs at full load do.", tuple(evidence), cost, Severity.NOTE
        )


def unknown_bits(card: Card, frame: Frame) -> Iterator[Cause]:
    """A cause if the driver lowers clocks for reasons without a known name."""
    named_bits = 0
    for reason in EventReason:
        named_bits |= int(reason)
    unnamed_bits = (card.sample.event_reasons or 0) & ~named_bits
    if unnamed_bits:
        yield Cause(
            "unknown-reason",
            card.number,
            f"GPU {card.number} is slowed down for an unknown reason: {unnamed_bits:#x}.",
            (f"event reasons {card.sample.event_reasons:#x}",),
            clock_cost(card),
            Severity.NOTE,
        )


def low_clock(card: Card, frame: Frame) -> Iterator[Cause]:
    """A cause where a busy card's clock is low and the driver gives no reason."""
    top_hz, now_hz = card.identity.sm_clock_max_hz, card.sample.sm_clock_hz
    bits = (card.sample.event_reasons or 0) & ~int(EventReason.IDLE)
    if not top_hz or now_hz is None or bits or not is_busy(card) or now_hz >= LOW_CLOCK * top_hz:
        return
    state = card.sample.performance_state
    yield Cause(
        "low-clock",
        card.number,
        f"GPU {card.number} is under load at {now_hz / MEGA:.0f} of {top_hz / MEGA:.0f} MHz, and the driver gives no reason.",
        () if state is None else (f"performance state P{state}",),
        clock_cost(card),
        Severity.SLOWS,
        "someone may have locked the clocks: `nvidia-smi -rgc` unlocks them",
    )


def hot(card: Card, frame: Frame) -> Iterator[Cause]:
    """At its temperature limit, although the clocks are not reduced (yet)."""
    s, i = card.sample, card.identity
    core = s.temperature_c is not None and i.temperature_slowdown_c is not None and s.temperature_c >= i.temperature_slowdown_c
    memory = (
        s.memory_temperature_c is not None
        and i.memory_temperature_max_c is not None
        and s.memory_temperature_c >= i.memory_temperature_max_c
    )
    if (core or memory) and not (s.event_reasons or 0) & (EventReason.HW_THERMAL | EventReason.SW_THERMAL):
        yield Cause(
            "hot",
            card.number,
            f"GPU {card.number} is as hot as it may be{'' if core else ': its memory is'}.",
            tuple(_heat(card, EventReason.HW_THERMAL)),
            None,
            Severity.NOTE,
            "check fans, dust, airflow and the room",
        )


def _heat(card: Card, reason: EventReason) -> Iterator[str]:
    if reason not in (EventReason.HW_THERMAL, EventReason.SW_THERMAL):
        return
    s, i = card.sample, card.identity
    if s.temperature_c is not None:
        limit = "" if i.temperature_slowdown_c is None else f" (the hardware cuts in at {i.temperature_slowdown_c:.0f} °C)"
        yield f"{s.temperature_c:.0f} °C{limit}"
    if s.memory_temperature_c is not None:
        limit = "" if i.memory_temperature_max_c is None else f" (highest allowed {i.memory_temperature_max_c:.0f} °C)"
        yield f"memory {s.memory_temperature_c:.0f} °C{limit}"
    if s.fan is not None:
        yield f"fan {s.fan:.0%}"
