"""Findings about a device whose clocks are reduced, which the script cannot change."""

from __future__ import annotations

from gpuwise.train.profile.finding import Evidence, Finding
from gpuwise.train.profile.profile_data import ProfileData

HOT = ("HW_THERMAL_SLOWDOWN", "SW_THERMAL_SLOWDOWN", "HW_SLOWDOWN")
CAPPED = ("SW_POWER_CAP", "HW_POWER_BRAKE_SLOWDOWN")
"""Names of ``machine.devices.readings.EventReason``."""
LOST = 0.15
"""Assumed loss of speed while the clocks are reduced: the actual drop differs by card. Rule of this project; hence the low
confidence."""


def heat(data: ProfileData) -> Finding | None:
    """Clocks reduced because of temperature."""
    return _clock_finding(
        data,
        HOT,
        "slowed down by heat",
        "The GPU's clocks are reduced because it is hot",
        ("gpuwise top  # temperatures; then fans, dust, the inlet's air, cards too close",),
    )


def power(data: ProfileData) -> Finding | None:
    """Clocks reduced by the power limit."""
    return _clock_finding(
        data,
        CAPPED,
        "slowed down by power",
        "The GPU's clocks are reduced by its power limit",
        ("nvidia-smi -q -d POWER  # is the limit below the default?",),
    )


def _clock_finding(data: ProfileData, reasons: tuple[str, ...], kind: str, title: str, fix: tuple[str, ...]) -> Finding | None:
    if data.facts is None:
        return None
    held = {r: s for r, s in data.facts.held_back.items() if r.upper() in reasons and s > 0}
    if not held:
        return None
    share = min(max(held.values()), 1.0)
    said = tuple(Evidence(f"{r.lower().replace('_', ' ')}, {100 * s:.0f} % of the time") for r, s in held.items())
    return Finding(kind, title, LOST * share * data.split.busy_s, "low", said, fix)
