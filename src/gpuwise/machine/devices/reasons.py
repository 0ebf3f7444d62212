"""Words for what holds the clocks back."""

from __future__ import annotations

from gpuwise.machine.devices.readings import EventReason

REASON_WORDS: dict[EventReason, str] = {
    EventReason.IDLE: "idle",
    EventReason.APPLICATION_CLOCKS: "clocks set by a person",
    EventReason.SW_POWER_CAP: "power limit",
    EventReason.HW_SLOWDOWN: "hardware slowdown",
    EventReason.SYNC_BOOST: "kept in step with other GPUs",
    EventReason.SW_THERMAL: "heat (driver)",
    EventReason.HW_THERMAL: "heat (hardware)",
    EventReason.HW_POWER_BRAKE: "power brake (power supply)",
    EventReason.DISPLAY_CLOCKS: "clocks of the display",
    EventReason.BOARD_LIMIT: "limit of the board",
    EventReason.RELIABILITY: "voltage kept low for reliability",
}
"""Bit -> what it says, in the order of the bits."""

FAULTS = EventReason.HW_SLOWDOWN | EventReason.HW_THERMAL | EventReason.HW_POWER_BRAKE | EventReason.SW_THERMAL
"""Bits that a healthy and well cooled card does not show under load."""


def event_reason_words(bits: int | None) -> tuple[str, ...]:
    """What each bit says, the lowest first; a bit nobody knows as ``unknown (0x800)``. Of None or 0: nothing."""
    if not bits:
        return ()
    words: list[str] = []
    for i in range(bits.bit_length()):
        bit = 1 << i
        if bits & bit:
            words.append(REASON_WORDS.get(EventReason(bit), f"unknown (0x{bit:x})"))
    return tuple(words)
