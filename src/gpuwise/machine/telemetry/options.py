"""Options of a watch: prices and how the screen shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.machine.telemetry.frames import Card
from gpuwise.units import HOUR_S, J_PER_KWH


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of power and time; None is not set."""

    usd_per_kwh: float | None = None
    usd_per_hour: float | None = None
    """Price per card, independent of its work."""
    co2_g_per_kwh: float | None = None

    @property
    def any(self) -> bool:
        """Whether anything was set."""
        return any(v is not None for v in (self.usd_per_kwh, self.usd_per_hour, self.co2_g_per_kwh))


@dataclass(frozen=True, slots=True)
class Spending:
    """Cost of the devices now and since the watch began; None where no price is set or the power is unknown."""

    power_w: float | None = None
    energy_j: float | None = None
    usd_per_hour: float | None = None
    """Now: power at its price, or the cards' hours."""
    usd: float | None = None
    """Since the watch began."""
    co2_g_per_hour: float | None = None
    co2_g: float | None = None


def spending(prices: Prices, cards: tuple[Card, ...], watched_s: float) -> Spending:
    """Cost of ``cards``; ``watched_s`` is the observed time. Cards with unknown power are left out of power and energy; both
    are None if that applies to all. Electricity of the cards alone, without host or cooling."""
    powers = [c.power_w for c in cards if c.power_w is not None]
    energies = [c.energy_j for c in cards if c.energy_j is not None]
    power_w, energy_j = (sum(powers) if powers else None), (sum(energies) if energies else None)
    hourly, total = None, None
    if prices.usd_per_kwh is not None:
        hourly = None if power_w is None else power_w * HOUR_S / J_PER_KWH * prices.usd_per_kwh
        total = None if energy_j is None else energy_j / J_PER_KWH * prices.usd_per_kwh
    elif prices.usd_per_hour is not None:
        hourly = prices.usd_per_hour * len(cards)
        total = hourly * watched_s / HOUR_S
    co2 = prices.co2_g_per_kwh
    return Spending(
        power_w,
        energy_j,
        hourly,
        total,
        None if co2 is None or power_w is None else power_w * HOUR_S / J_PER_KWH * co2,
        None if co2 is None or energy_j is None else energy_j / J_PER_KWH * co2,
    )


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """Options of the screen, from the command line."""

    interval_s: float = 1.0
    prices: Prices = field(default_factory=Prices)
    duration_s: float | None = None
    """End the watch after this."""
    count: int | None = None
    """End the watch after this many frames."""
    theme: str | None = None
    title: str = ""
    """Title if the source is not this machine: the recording's name, or ``demo``."""
